"""Reader of Mooncake request traces: JSON Lines with times, lengths and prefix block ids.

Format as in kvcache-ai/Mooncake (FAST'25 release): `timestamp` in whole milliseconds, `input_length` and
`output_length` in tokens, `hash_ids` with one id for each 512 tokens of the prompt, the last block mostly
partial. The block size is not in the file. Equal ids mean equal tokens from the start of the prompt on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from kvcanary_cli.errors import InputError, nearest
from kvcanary_cli.trace.decode import NotJsonError, parse_strictly
from kvcanary_cli.trace.files import LineError, TruncatedError, open_bytes
from kvcanary_cli.trace.requests import Request
from kvcanary_cli.trace.slots import describe

BLOCK_TOKENS = 512
NUMBER_KEYS = ("timestamp", "input_length", "output_length")
KEYS = (*NUMBER_KEYS, "hash_ids")
MAX_TOKENS = (1 << 31) - 1  # more would not fit into a page table of int32
YEAR_MS = 366 * 24 * 3600 * 1000


class Row(NamedTuple):
    """A row with possible values; `timestamp` in milliseconds, `hash_ids` None where the row has none."""

    line: int
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] | None


class BlockCountError(LineError):
    """A row's number of ids does not go with its prompt length and the block size."""


class _PlainRow(msgspec.Struct, forbid_unknown_fields=True):
    """The row as nearly every line has it; whatever else is accepted goes the slow way."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_PlainRow).decode


class MooncakeTrace:
    """The requests of a file, in order of arrival.

    The file is read once to check every row, and again for each iteration, so that only a file whose times
    go back, or standard input, is held in memory.

    Attributes:
        path: name for messages.
        records: rows that give a request.
        longest: tokens, prompt and output, of the largest request.
        reordered: rows with an earlier time than the row before; such a file is sorted, equal times in
            the order of the file.
        moved_ids: block ids that were seen at two positions or behind two predecessors, so they name
            content, not prefixes.
        unknown_keys: keys that this reader does not use, with the number of rows that have them.
        bad_lines: lines that were skipped.
    """

    def __init__(
        self,
        path: str,
        *,
        block_size: int = BLOCK_TOKENS,
        limit: int | None = None,
        skip_bad_lines: bool = False,
    ) -> None:
        self.path = "<stdin>" if path == "-" else path
        self.records = self.longest = self.reordered = self.moved_ids = 0
        self.unknown_keys: Counter[str] = Counter()
        self.bad_lines: list[int] = []
        self._file = path
        self._block_size = block_size
        self._limit = limit
        self._skips = skip_bad_lines
        self._held = self._scan()

    def __iter__(self) -> Iterator[Request]:
        for row in self._read(Counter(), []) if self._held is None else self._held:
            yield Request(
                rid=f"req-{row.line}",
                arrival_s=row.timestamp / 1000,
                input_length=row.input_length,
                output_length=row.output_length,
                block_ids=row.hash_ids or (),
                block_size=self._block_size,
            )

    def _scan(self) -> list[Row] | None:
        """Check all rows and fill the attributes; the sorted rows if they must be held."""
        held: list[Row] | None = [] if self._file == "-" else None
        places: dict[int, tuple[int, tuple[int, int]]] = {}
        moved: set[int] = set()
        first = before = None
        for row in self._read(self.unknown_keys, self.bad_lines):
            first = row.timestamp if first is None else first
            self._check_year(row, first)
            self.reordered += before is not None and row.timestamp < before
            before = row.timestamp
            self.records += 1
            self.longest = max(self.longest, row.input_length + row.output_length)
            ids = row.hash_ids or ()
            for place in enumerate(pairwise((-1, *ids))):
                block_id = place[1][1]
                if places.setdefault(block_id, place) != place:
                    moved.add(block_id)
            if held is not None:
                held.append(row)
        self.moved_ids = len(moved)
        if self.reordered and held is None:
            held = list(self._read(Counter(), []))
        if held is not None:
            held.sort(key=lambda row: row.timestamp)
        return held

    def _check_year(self, row: Row, first: int) -> None:
        apart = abs(row.timestamp - first)
        if apart > YEAR_MS:
            raise InputError(
                f"the time is {apart:,} ms away from the first row's, more than a year",
                where=f"{self.path}:{row.line}",
                path="$.timestamp",
                hint="times of Mooncake traces are milliseconds",
            )

    def _read(self, unknown: Counter[str], bad_lines: list[int]) -> Iterator[Row]:
        """Checked rows in the order of the file; a bad one raises, or is skipped and counted."""
        name, source = open_bytes(self._file)
        count = 0
        with source:
            while count != self._limit:
                try:
                    line = next(source)
                    if line.isspace():
                        continue
                    row = _row(line, source.line, unknown)
                    _check_blocks(row, self._block_size)
                except StopIteration:
                    return
                except LineError as error:
                    error.where = f"{name}:{source.line}"
                    if not self._skips:
                        raise self._with_hint(error) from None
                    bad_lines.append(source.line)
                    continue
                count += 1
                yield row

    def _with_hint(self, error: LineError) -> LineError:
        """A wrong number of ids mostly means a wrong block size: say which sizes fit."""
        if isinstance(error, BlockCountError) and self._file != "-":
            error.hint = _block_size_hint(self._file)
        return error


def _row(line: bytes, number: int, unknown: Counter[str]) -> Row:
    """The row of a line, not yet compared with a block size; counts keys that are not used."""
    try:
        plain = _decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return _slow_row(line, number, unknown)
    ids = None if plain.hash_ids is msgspec.UNSET else tuple(plain.hash_ids)
    # one colon a key, as none can hide in a string: so no key is there twice
    if line.count(b":") != 3 + (ids is not None):
        return _slow_row(line, number, unknown)
    return _checked(Row(number, plain.timestamp, plain.input_length, plain.output_length, ids))


def _slow_row(line: bytes, number: int, unknown: Counter[str]) -> Row:
    """As `_row`, for a line that the fast way can't take: accept it, or say what is wrong with it."""
    try:
        data = parse_strictly(line)
    except NotJsonError as error:
        if line.endswith(b"\n"):
            raise
        raise TruncatedError(
            f"the last line is truncated after {len(line)} bytes ({error.message})"
        ) from None
    if not isinstance(data, dict):
        raise LineError(f"an object is expected, found {describe(data)}", path="$")
    others = [key for key in data if key not in KEYS]
    for key in NUMBER_KEYS:
        if key not in data:
            close = nearest(key, others)
            found = f', found "{close}"' if close else ""
            raise LineError(f'key "{key}" is missing{found}', path="$")
    unknown.update(others)
    timestamp, input_length, output_length = (_whole(data[key], f"$.{key}") for key in NUMBER_KEYS)
    ids = _ids(data["hash_ids"]) if "hash_ids" in data else None
    return _checked(Row(number, timestamp, input_length, output_length, ids))


def _whole(value: Any, path: str) -> int:
    """A whole number; 1e3 is one, true is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise LineError(f"a whole number is expected, found {describe(value)}", path=path)
    return value


def _ids(value: Any) -> tuple[int, ...]:
    """Block ids; some tools write them as decimal strings."""
    if not isinstance(value, list):
        raise LineError(f"a list of whole numbers is expected, found {describe(value)}", path="$.hash_ids")
    ids = []
    for index, item in enumerate(value):
        is_decimal = isinstance(item, str) and item.isascii() and item.isdigit()
        ids.append(int(item) if is_decimal else _whole(item, f"$.hash_ids[{index}]"))
    return tuple(ids)


def _checked(row: Row) -> Row:
    if row.timestamp < 0:
        raise LineError(f"the time is {row.timestamp:,} ms, times begin at 0", path="$.timestamp")
    lengths = (("input_length", row.input_length, 1), ("output_length", row.output_length, 0))
    for key, value, least in lengths:
        if not least <= value <= MAX_TOKENS:
            raise LineError(
                f"{value:,} tokens are not possible, {least} to {MAX_TOKENS:,} are", path=f"$.{key}"
            )
    for index, block_id in enumerate(row.hash_ids or ()):
        if block_id < 0:
            raise LineError(f"block id {block_id} is below 0", path=f"$.hash_ids[{index}]")
    return row


def _check_blocks(row: Row, block_size: int) -> None:
    """Refuse a number of ids that is neither rounded up, as Mooncake does, nor down, as other tools do."""
    if row.hash_ids is None:
        return
    least, most = row.input_length // block_size, -(-row.input_length // block_size)
    if not least <= len(row.hash_ids) <= most:
        fit = f"{most:,}" if least == most else f"{least:,} or {most:,}"
        raise BlockCountError(
            f"{len(row.hash_ids):,} block ids for {row.input_length:,} tokens, "
            f"blocks of {block_size:,} make {fit}",
            path="$.hash_ids",
        )


def _block_size_hint(path: str) -> str:
    """Which block sizes explain the number of ids in every row, partial blocks counted."""
    least, most = 1, MAX_TOKENS
    with open_bytes(path)[1] as source:
        for line in source:
            try:
                row = _row(line, source.line, Counter())
            except LineError:
                continue
            count = len(row.hash_ids or ())
            if count:
                least = max(least, -(-row.input_length // count))
            if count > 1:
                most = min(most, (row.input_length - 1) // (count - 1))
    if least > most:
        return "no block size explains the number of ids in every row"
    if least == most:
        return f"`--block-size {least}` fits every row"
    return f"`--block-size N` fits every row with N from {least:,} to {most:,}"
