"""What readers of JSON request traces share: lines to objects, values with their JSON path, the block ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from kvcanary_cli.errors import nearest
from kvcanary_cli.trace.decode import NotJsonError, parse_strictly
from kvcanary_cli.trace.files import ByteReader, LineError, TruncatedError
from kvcanary_cli.trace.request_trace import (
    MAX_TOKENS,
    SECOND_NS,
    Notes,
    Reader,
    ReadOptions,
    Row,
    block_count_error,
)
from kvcanary_cli.trace.slots import describe

MS_NS = SECOND_NS // 1000
NO_OUTPUT = "the output has 0 tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonFormat:
    """A `Format` whose reader is made by `make`."""

    name: str
    title: str
    make: Callable[[str, ReadOptions], Reader]
    has_lengths: bool = True
    has_times: bool = True

    def reader(self, path: str, options: ReadOptions) -> Reader:
        """A reader for one pass over the file."""
        return self.make(path, options)


class MissingKeyError(LineError):
    """A key that must be there is not."""

    def __init__(self, key: str, path: str) -> None:
        self.key = key
        super().__init__(f'key "{key}" is missing', path=path)


class JsonLinesReader:
    """A `Reader` of one JSON object a line; a format says in `line_rows` what an object means.

    Args:
        default: block size where neither user nor file say one.
    """

    counts_up: bool | None = True
    has_prefix_ids = True
    known: frozenset[str] = frozenset()

    def __init__(self, options: ReadOptions, default: int = 1) -> None:
        self.options = options
        self.block_size = options.block_size or default
        self.unknown_keys: Counter[str] = Counter()
        self.notes = Notes()

    def rows(self, source: ByteReader) -> Iterator[Row | LineError]:
        """As `Reader.rows`."""
        while True:
            try:
                line = next(source)
                if line.isspace():
                    continue
                found = self.line_rows(line, source.line)
            except StopIteration:
                return
            except LineError as error:
                yield error
                continue
            yield from found

    def line_rows(self, line: bytes, number: int) -> Iterable[Row]:
        """The requests of a line; LineError if it can't be used."""
        data = json_object(line)
        self.unknown_keys.update(key for key in data if key not in self.known)
        try:
            return self.object_rows(data, number)
        except MissingKeyError as error:
            close = self.misspelt(error.key, data) if error.path == "$" else None
            if close:
                error.message += f', found "{close}"'
            raise

    def misspelt(self, key: str, data: dict[str, Any]) -> str | None:
        """A key of the row that the format does not have and that looks like `key`."""
        return nearest(key, [found for found in data if found not in self.known])

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """The requests of a line's object; LineError if it can't be used."""
        raise NotImplementedError

    def block_ids(self, value: Any, tokens: int, path: str) -> tuple[int, ...]:
        """Checked ids of a prompt of `tokens`; LineError with JSON path."""
        ids = whole_list(value, path, least=0)
        error = block_count_error(tokens, len(ids), self, path)
        if error is not None:
            raise error
        return ids

    def take_block_size(self, said: int, path: str, *, is_first: bool) -> None:
        """Use the block size that a file states: its first row's, which `--block-size` and all others confirm.

        Raises: LineError for another one.
        """
        if is_first and self.options.block_size is None:
            self.block_size = said
        if said != self.block_size:
            is_asked = self.options.block_size is not None
            other = "`--block-size` says" if is_asked else "rows before have"
            raise LineError(
                f"blocks of {said:,} tokens, {other} {self.block_size:,}",
                path=path,
                hint="without `--block-size` the file's own counts" if is_asked else None,
            )

    def output(self, data: dict[str, Any], key: str, number: int, at: str = "$") -> int:
        """Tokens of an output, 0 with a note."""
        value = length(data, key, at=at, least=0)
        if value == 0:
            self.notes.add(NO_OUTPUT, number)
        return value


class Links:
    """Requests seen so far, by id, so that each id is there once and `after` names an earlier one."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def add(self, rid: str, line: int, time_ns: int, path: str) -> None:
        """One more request; LineError if its id was there before."""
        if rid in self._seen:
            raise LineError(f"{describe(rid)} is the request of line {self._seen[rid][0]} already", path=path)
        self._seen[rid] = (line, time_ns)

    def __contains__(self, rid: str) -> bool:
        return rid in self._seen

    def time_ns(self, rid: str) -> int:
        """Earliest time of a request that was added."""
        return self._seen[rid][1]


def json_object(line: bytes) -> dict[str, Any]:
    """The object of a line; LineError if there is none, with the cut last line of a file told apart."""
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
    return data


def needed(data: dict[str, Any], key: str, at: str = "$") -> Any:
    """The value of a key that must be there."""
    if key not in data:
        raise MissingKeyError(key, at)
    return data[key]


def whole(value: Any, path: str) -> int:
    """A whole number; 1e3 is one, true is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise LineError(f"a whole number is expected, found {describe(value)}", path=path)
    return value


def whole_list(value: Any, path: str, *, least: int, what: str = "block id") -> tuple[int, ...]:
    """Whole numbers of at least `least`; some tools write them as decimal strings."""
    if not isinstance(value, list):
        raise LineError(f"a list of whole numbers is expected, found {describe(value)}", path=path)
    numbers = []
    for index, item in enumerate(value):
        is_decimal = isinstance(item, str) and len(item) <= 40 and item.isascii() and item.isdigit()
        number = int(item) if is_decimal else whole(item, f"{path}[{index}]")
        if number < least:
            raise LineError(f"{what} {number} is below {least}", path=f"{path}[{index}]")
        numbers.append(number)
    return tuple(numbers)


def length(data: dict[str, Any], key: str, *, at: str = "$", least: int = 1) -> int:
    """A number of tokens."""
    path = f"{at}.{key}"
    value = whole(needed(data, key, at), path)
    if not least <= value <= MAX_TOKENS:
        raise LineError(f"{value:,} tokens are not possible, {least} to {MAX_TOKENS:,} are", path=path)
    return value


def number(value: Any, path: str) -> int | float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise LineError(f"a number is expected, found {describe(value)}", path=path)
    return value


def time_ns(value: Any, unit_ns: int, unit: str, path: str, *, what: str = "time") -> int:
    """A time of at least 0 as nanoseconds; `unit` is its unit in words, `unit_ns` how long that is."""
    found = number(value, path)
    if found < 0:
        least = ", times begin at 0" if what == "time" else ", it can't be below 0"
        raise LineError(f"the {what} is {found:,} {unit}{least}", path=path)
    if isinstance(found, int):
        return found * unit_ns
    # whole units apart: a double of Unix seconds times 1e9 would lose more than it has to
    return int(found) * unit_ns + round((found - int(found)) * unit_ns)


def text(value: Any, path: str) -> str:
    """A string that is not empty, or a whole number as one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise LineError(f"a string that is not empty is expected, found {describe(value)}", path=path)
    return value


def inner(data: dict[str, Any], key: str, at: str = "$") -> dict[str, Any]:
    """An object inside an object."""
    value = needed(data, key, at)
    if not isinstance(value, dict):
        raise LineError(f"an object is expected, found {describe(value)}", path=f"{at}.{key}")
    return value
