"""The requests of any request trace: what all formats have in common once a reader understands a row.

A reader turns lines into `Row`s and says what is wrong with a line that is none. Here rows are checked against
limits, put in order of arrival, made relative to the earliest, and counted.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.block_sizes import BlockSizes
from kvcanary_cli.trace.files import ByteReader, LineError, open_bytes, reads_once
from kvcanary_cli.trace.requests import MAX_TOKENS, Request

SECOND_NS = 10**9
YEAR_NS = 366 * 24 * 3600 * SECOND_NS


class Row(NamedTuple):
    """A row that its reader understands.

    Attributes:
        line: where it stands, for messages (1-based, a header counts).
        time_ns: nanoseconds on any clock that all rows of the file share.
        block_ids: None where the row has none, though others of its format may.
        delay_ns: from the end of `after` to this request's sending.
    """

    line: int
    rid: str
    time_ns: int
    input_length: int
    output_length: int
    block_ids: tuple[int, ...] | None = None
    session: str | None = None
    after: str | None = None
    delay_ns: int = 0
    priority: int = 0
    prompt_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something about a file that is unusual, or assumed, and no reason to refuse it.

    Attributes:
        text: in words, without the count.
        count: rows that it is true of.
        line: the first of them; None for the file as a whole.
    """

    text: str
    count: int
    line: int | None = None


class Notes:
    """Collects notes while a file is read.

    Attributes:
        lacking: what a scheduler needs and this file has not, though others of its format may.
    """

    def __init__(self) -> None:
        self.lacking: list[str] = []
        self._counts: Counter[str] = Counter()
        self._lines: dict[str, int | None] = {}

    def add(self, text: str, line: int | None = None) -> None:
        """One more row of which `text` is true."""
        self._counts[text] += 1
        self._lines.setdefault(text, line)

    def lack(self, what: str) -> None:
        """The file has no `what`, such as "arrival times"."""
        if what not in self.lacking:
            self.lacking.append(what)

    def all(self) -> list[Note]:
        """In the order in which they turned up."""
        return [Note(text=text, count=count, line=self._lines[text]) for text, count in self._counts.items()]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """What a user decides about reading.

    Attributes:
        block_size: tokens that a block id names; None: as the format or the file says.
        limit: rows that are read.
        skip_bad_lines: go on after rows that can't be used, and count them.
        hint: what to do about a bad row that is not skipped; None: nothing is said.
        tables: folder with the side tables of a trace that has some; None: beside the file.
    """

    block_size: int | None = None
    limit: int | None = None
    skip_bad_lines: bool = False
    hint: str | None = None
    tables: str | None = None


class Reader(Protocol):
    """One pass over a file of one format; a new one is made for each pass.

    Attributes:
        block_size: tokens that a block id names; 1 where the format has no ids. Known after the first row.
        counts_up: whether the last, partial block of a prompt has an id of its own; None: both occur.
        has_prefix_ids: whether an id stands for everything before its block too, so that it has one position.
        unknown_keys: keys that the reader does not use, with the number of rows that have them.
        notes: what is unusual or assumed.
    """

    block_size: int
    counts_up: bool | None
    has_prefix_ids: bool
    unknown_keys: Counter[str]
    notes: Notes

    def rows(self, source: ByteReader) -> Iterator[Row | LineError]:
        """Rows in the order of the file; for one that can't be used its error, with the JSON path (or column)
        but without file and line where they are those of `source`.
        """
        ...


class Format(Protocol):
    """A format of request traces.

    Attributes:
        name: what `--input-format` calls it.
        title: in words, for reports.
        has_lengths, has_times: False where the format lacks what a scheduler needs; `inspect` reads it all the same.
    """

    name: str
    title: str
    has_lengths: bool
    has_times: bool

    def reader(self, path: str, options: ReadOptions) -> Reader: ...


class BlockCountError(LineError):
    """A row's number of ids does not go with its prompt length and the block size.

    Attributes:
        counts: tokens and ids of that row.
    """

    counts: tuple[int, int] | None = None


class RequestTrace:
    """The requests of a file, in order of arrival.

    The file is read once to check every row, and again for each iteration, so that only a file whose times
    go back, or a pipe, is held in memory.

    Attributes:
        path: name for messages.
        format: what the file is.
        records: rows that give a request.
        longest: tokens, prompt and output, of the largest request.
        reordered: rows with an earlier time than the row before; such a file is sorted, equal times in
            the order of the file.
        simultaneous: rows with the time of the row before.
        moved_ids: block ids that were seen at two positions or behind two predecessors, so they name
            content, not prefixes.
        span_s: from the first arrival to the last.
        block_size: tokens that a block id names.
        block_ids: whether any row has ids.
        lacks: what a scheduler needs and the file has not.
        unknown_keys, notes: as the reader has them.
        bad_lines: lines that were skipped.
    """

    def __init__(self, path: str, format: Format, options: ReadOptions | None = None) -> None:
        self.path = "<stdin>" if path == "-" else path
        self.format = format
        self.records = self.longest = self.reordered = self.moved_ids = 0
        self.simultaneous = 0
        self.block_ids = False
        self.bad_lines: list[int] = []
        self._file = path
        self._reads_once = reads_once(path)
        self._options = options or ReadOptions()
        self._first_ns = 0
        self._last_ns = 0
        reader = format.reader(path, self._options)
        self._held = self._scan(reader)
        self.lacks = [*_lacks(format), *reader.notes.lacking]
        self.block_size = reader.block_size
        self.unknown_keys = reader.unknown_keys
        self.notes = reader.notes.all()

    @property
    def span_s(self) -> float:
        return (self._last_ns - self._first_ns) / SECOND_NS

    @property
    def block_size_from(self) -> str:
        """Who says what the block size is: the user, or the format or file."""
        return "--block-size" if self._options.block_size == self.block_size else self.format.title

    def require_schedulable(self) -> None:
        """Refuse a file without what a scheduler needs; `inspect` has a use for it all the same.

        Raises: InputError that names what is missing.
        """
        if self.lacks:
            raise InputError(
                f"{self.format.title}: the file has no {' and no '.join(self.lacks)}, so it can't be scheduled",
                where=self.path,
                hint=f"`kvcanary inspect {shlex.quote(self.path)}` shows what it has",
            )

    def __iter__(self) -> Iterator[Request]:
        if self._held is not None:
            rows: Iterable[Row] = self._held
        else:
            rows = self._read(self._format_reader(), [])
        for row in rows:
            yield Request(
                rid=row.rid,
                arrival_s=(row.time_ns - self._first_ns) / SECOND_NS,
                input_length=row.input_length,
                output_length=row.output_length,
                block_ids=row.block_ids or (),
                block_size=self.block_size,
                session=row.session,
                after=row.after,
                delay_s=row.delay_ns / SECOND_NS,
                priority=row.priority,
                prompt_tokens=row.prompt_tokens,
            )

    def _format_reader(self) -> Reader:
        return self.format.reader(self._file, self._options)

    def _scan(self, reader: Reader) -> list[Row] | None:
        """Check all rows and fill the attributes; the sorted rows if they must be held."""
        held: list[Row] | None = [] if self._reads_once else None
        places: dict[int, tuple[int, tuple[int, int]]] = {}
        moved: set[int] = set()
        before: Row | None = None
        sizes = BlockSizes()
        is_sorted = True
        for row in self._read(reader, self.bad_lines):
            if before is None:
                self._first_ns = self._last_ns = row.time_ns
            else:
                is_sorted &= row.time_ns >= before.time_ns
                # a later turn may have no time of its own, and is then as early as the turn before it
                self.reordered += row.time_ns < before.time_ns and row.after is None
                self.simultaneous += row.time_ns == before.time_ns
            self._first_ns = min(self._first_ns, row.time_ns)
            self._last_ns = max(self._last_ns, row.time_ns)
            self._check_year(row)
            before = row
            self.records += 1
            self.longest = max(self.longest, row.input_length + row.output_length)
            if row.block_ids:
                sizes.add(row.input_length, len(row.block_ids))
                for place in enumerate(pairwise((-1, *row.block_ids))):
                    block_id = place[1][1]
                    if places.setdefault(block_id, place) != place:
                        moved.add(block_id)
            if held is not None:
                held.append(row)
        self.moved_ids = len(moved)
        self.block_ids = bool(places)
        if reader.counts_up is None and not sizes.fit(reader.block_size):
            raise BlockCountError(
                f"blocks of {reader.block_size:,} tokens explain the number of ids in each row, but not in all",
                where=self.path,
                hint=sizes.hint(),
            )
        if not is_sorted and held is None:
            held = list(self._read(self._format_reader(), []))
        if held is not None:
            held.sort(key=lambda row: row.time_ns)
        return held

    def _check_year(self, row: Row) -> None:
        apart = self._last_ns - self._first_ns
        if apart > YEAR_NS:
            raise InputError(
                f"the time is {apart / SECOND_NS:,.0f} s away from another row's, more than a year",
                where=f"{self.path}:{row.line}",
                hint=f"{self.format.title}: is that the format, and its unit of time?",
            )

    def _read(self, reader: Reader, bad_lines: list[int]) -> Iterator[Row]:
        """Checked rows in the order of the file; a bad one raises, or is skipped and counted."""
        name, source = open_bytes(self._file)
        count = 0
        with source:
            for found in reader.rows(source):
                row = found if isinstance(found, LineError) else _checked(found, reader)
                if isinstance(row, LineError):
                    line = source.line if isinstance(found, LineError) else found.line
                    can_skip = row.where is None
                    row.where = row.where or f"{name}:{line}"
                    if not self._options.skip_bad_lines:
                        raise self._with_hint(row, can_skip=can_skip) from None
                    bad_lines.append(line)
                    continue
                count += 1
                yield row
                if count == self._options.limit:
                    return

    def _with_hint(self, error: LineError, *, can_skip: bool) -> LineError:
        """What to do: a wrong number of ids mostly means a wrong block size, so say which sizes fit."""
        if isinstance(error, BlockCountError) and not self._reads_once:
            error.hint = block_size_hint(self._file, self._format_reader())
        if can_skip:
            error.hint = error.hint or self._options.hint
        return error


def _checked(row: Row, reader: Reader) -> Row | LineError:
    """The row, or why it is impossible."""
    for key, value, least in (("input", row.input_length, 1), ("output", row.output_length, 0)):
        if not least <= value <= MAX_TOKENS:
            return LineError(f"{value:,} {key} tokens are not possible, {least} to {MAX_TOKENS:,} are")
    if row.block_ids is None:
        return row
    return block_count_error(row.input_length, len(row.block_ids), reader) or row


def block_count_error(
    tokens: int, count: int, reader: Reader, path: str | None = None
) -> BlockCountError | None:
    """What is wrong with `count` ids for a prompt of `tokens`; `path` is where they stand in their line."""
    size = reader.block_size
    least, most = tokens // size, -(-tokens // size)
    if reader.counts_up is not None:
        least = most = most if reader.counts_up else least
    if least <= count <= most:
        return None
    fit = f"{most:,}" if least == most else f"{least:,} or {most:,}"
    error = BlockCountError(
        f"{count:,} block ids for {tokens:,} tokens, blocks of {size:,} make {fit}", path=path
    )
    error.counts = (tokens, count)
    return error


def block_size_hint(path: str, reader: Reader) -> str:
    """Which block sizes explain the number of ids in every row, partial blocks counted."""
    sizes = BlockSizes()
    with open_bytes(path)[1] as source:
        for row in reader.rows(source):
            if isinstance(row, BlockCountError):
                tokens, count = row.counts or (0, 0)
            else:
                tokens, count = (
                    (0, 0) if isinstance(row, LineError) else (row.input_length, len(row.block_ids or ()))
                )
            if count:
                sizes.add(tokens, count)
    return sizes.hint()


def _lacks(format: Format) -> list[str]:
    """What no file of a format has."""
    return ["arrival times"] * (not format.has_times) + ["output lengths"] * (not format.has_lengths)
