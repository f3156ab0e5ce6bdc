"""CSV request traces: the header checked once, then each line cut into cells that know their column.

A row is one line; a quoted cell may hold commas but no line end, so that the number of a line always is the
number of its row. Line ends may be LF or CRLF, and the last one may be missing.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NamedTuple, Protocol

from kvcanary_cli.errors import InputError, nearest
from kvcanary_cli.trace.csv_formats import SEPARATORS
from kvcanary_cli.trace.files import ByteReader, LineError, TruncatedError
from kvcanary_cli.trace.request_trace import SECOND_NS, Notes, ReadOptions, Row
from kvcanary_cli.trace.slots import describe

NO_IDS = "`--block-size` changes nothing, the format has no block ids"
MAX_COUNT = 10**18
MAX_SECONDS = 10**12  # 31,700 years: whatever is larger counts no seconds

_whole = re.compile(r"[+-]?[0-9]{1,18}").fullmatch
# bounded, as a number of a million digits takes minutes to convert
_decimal = re.compile(
    r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?"
).fullmatch


class Cells(NamedTuple):
    """The cells of one row; all methods raise `LineError` that names the column."""

    line: int
    values: list[str]
    columns: dict[str, int]

    def text(self, column: str) -> str:
        """What stands in a column, without spaces around it; empty where the file has no such column."""
        at = self.columns.get(column)
        return "" if at is None else self.values[at].strip()

    def has(self, column: str) -> bool:
        """Whether the file has the column."""
        return column in self.columns

    def whole(self, column: str) -> int:
        """A whole number; 120.0 and 1e3 are some."""
        text = self.text(column)
        if _whole(text):
            return int(text)
        value = _as_decimal(text)
        if value is not None and abs(value) < MAX_COUNT and value == value.to_integral_value():
            return int(value)
        if text.isdigit():
            raise self.error(column, f"a number of {len(text):,} digits is too large")
        raise self.error(column, f"a whole number is expected, found {_shown(text)}")

    def seconds_ns(self, column: str) -> int:
        """Seconds, from 0, in nanoseconds; digits below a nanosecond are rounded."""
        text = self.text(column)
        value = _as_decimal(text)
        if value is None:
            raise self.error(column, f"a time in seconds is expected, found {_shown(text)}")
        if not 0 <= value < MAX_SECONDS:
            raise self.error(column, f"a time from 0 to {MAX_SECONDS:,} s is expected, found {_shown(text)}")
        return int((value * SECOND_NS).to_integral_value())

    def error(self, column: str, message: str, *, hint: str | None = None) -> LineError:
        """What is wrong with a cell."""
        return LineError(message, path=f'column "{column}"', hint=hint)


class RowMaker(Protocol):
    """Makes the rows of one pass over a file."""

    def row(self, cells: Cells) -> Row:
        """The row; raises LineError for one that can't be used."""
        ...


@dataclass(kw_only=True, slots=True)
class CsvFormat:
    """One CSV format.

    Attributes:
        name: what `--input-format` calls it.
        title: in words, for reports.
        needed: columns that a file must have.
        known: columns that it may have besides; any other is counted as unknown.
        maker: makes the maker of one pass.
        has_lengths, has_times: False where the format lacks what a scheduler needs.
    """

    name: str
    title: str
    needed: tuple[str, ...]
    known: tuple[str, ...] = ()
    maker: Callable[[Notes], RowMaker]
    has_lengths: bool = True
    has_times: bool = True

    def reader(self, path: str, options: ReadOptions) -> CsvReader:
        return CsvReader(self, options)


class CsvReader:
    """One pass over a CSV file of one format; see `Reader`."""

    block_size = 1
    counts_up: bool | None = None
    has_prefix_ids = False

    def __init__(self, format: CsvFormat, options: ReadOptions) -> None:
        self.unknown_keys: Counter[str] = Counter()
        self.notes = Notes()
        self._format = format
        self._maker = format.maker(self.notes)
        self._unused: list[str] = []
        if options.block_size is not None:
            self.notes.add(NO_IDS)

    def rows(self, source: ByteReader) -> Iterator[Row | LineError]:
        """Rows in the order of the file, and the error of each line that is none.

        Raises: InputError for a header that does not fit, and for a file without any line after it.
        """
        index = self._header(source)
        is_empty = True
        while True:
            try:
                line = next(source)
            except StopIteration:
                break
            except LineError as error:
                is_empty = False
                yield error
                continue
            if line.isspace():
                continue
            is_empty = False
            yield self._row(line, source.line, index)
        if is_empty:
            raise InputError("no records, only a header", where=f"{source.name}:{source.line}")

    def _row(self, line: bytes, number: int, index: dict[str, int]) -> Row | LineError:
        try:
            cells = split_line(line)
            if len(cells) != len(index):
                message = f"{len(cells)} cells, the header has {len(index)}"
                if not line.endswith(b"\n"):
                    return TruncatedError(f"the last line is truncated after {len(line)} bytes ({message})")
                return LineError(message)
            row = self._maker.row(Cells(number, cells, index))
        except LineError as error:
            return error
        for column in self._unused:
            self.unknown_keys[column] += 1
        return row

    def _header(self, source: ByteReader) -> dict[str, int]:
        """The position of each column."""
        line = next(line for line in source if not line.isspace())
        try:
            columns = [cell.strip() for cell in split_line(line)]
            self._check_header(columns)
        except LineError as error:
            where = error.where or f"{source.name}:{source.line}"
            raise InputError(error.message, where=where, path=error.path, hint=error.hint) from None
        mine = {*self._format.needed, *self._format.known}
        self._unused = [column for column in columns if column not in mine]
        return {column: at for at, column in enumerate(columns)}

    def _check_header(self, columns: list[str]) -> None:
        format = self._format
        hint = f"the header of {format.title}: `{','.join(format.needed)}`"
        for separator, name in SEPARATORS.items():
            if len(columns) == 1 and separator in columns[0]:
                raise LineError(f"cells are separated by {name}, commas are expected", hint=hint)
        by_case = {column.casefold(): column for column in (*format.needed, *format.known)}
        for column in columns:
            right = by_case.get(column.casefold(), column)
            if right != column:
                raise LineError(f'column "{column}" is "{right}" in this format, case counts', hint=hint)
            if columns.count(column) > 1:
                raise LineError(f'column "{column}" is there {columns.count(column)} times', hint=hint)
        for column in format.needed:
            if column not in columns:
                close = nearest(column, [name for name in columns if name not in by_case.values()])
                found = f', found "{close}"' if close else ""
                raise LineError(f'column "{column}" is missing{found}', hint=hint)


def split_line(line: bytes) -> list[str]:
    """The cells of a line; raises LineError for quotes that do not match."""
    text = line.decode().rstrip("\r\n")
    if "\r" in text:
        raise LineError("a carriage return stands inside the line, lines end with LF or CRLF")
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise LineError(f"a quoted cell is wrong: {error}") from None


def check_total(cells: Cells, column: str, total: int, notes: Notes) -> None:
    """Note a stated total that is not the sum of prompt and output."""
    if cells.has(column) and cells.whole(column) != total:
        notes.add(f'"{column}" is not prompt + output, it is not used', cells.line)


def _as_decimal(text: str) -> Decimal | None:
    if not _decimal(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _shown(text: str) -> str:
    return describe(text) if text else "an empty cell"
