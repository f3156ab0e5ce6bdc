"""Reader of RAGPulse traces: JSON Lines whose prompts are lists of pieces, and side tables with their lengths.

Format as in flashserve/RAGPulse: `timestamp` a string of whole seconds, `hash_ids` an object of five lists of
content ids. A piece has the same text wherever it stands, so pieces are laid end to end, in the order of the
keys in the row, and cut into blocks. What the pieces don't explain of a prompt (6 to 12 tokens of a template)
ends it and is its own. The side tables are found beside the file by their content.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.files import LineError, open_bytes
from kvcanary_cli.trace.json_rows import (
    JsonFormat,
    JsonLinesReader,
    inner,
    json_object,
    length,
    needed,
    text,
    whole,
    whole_list,
)
from kvcanary_cli.trace.pieces import LAID_NOTE, LAID_TOKENS, lay
from kvcanary_cli.trace.request_trace import SECOND_NS, ReadOptions, Row
from kvcanary_cli.trace.slots import describe
from kvcanary_cli.trace.tokens import fnv1a64

# list of a row -> id of its side table
TABLES = {
    "sys_prompt": "sys_prompt_id",
    "passages_ids": "passage_id",
    "history": "history_id",
    "web_search": "web_search_id",
    "user_input": "user_input_id",
}
Lengths = dict[str, dict[int, int]]


class RagPulseReader(JsonLinesReader):
    """See `Reader`."""

    known = frozenset(("timestamp", "input_length", "output_length", "hash_ids", "session_id"))

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options)
        self.block_size = options.block_size or LAID_TOKENS
        self._path = path
        self._lengths = read_tables(path, options.tables)
        self._before: tuple[int, int] | None = None

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """One request."""
        time = self._time(data)
        tokens, output = length(data, "input_length"), self.output(data, "output_length", number)
        pieces = self._pieces(inner(data, "hash_ids"), tokens, number)
        if self._before is not None and time < self._before[1]:
            raise self._restart(self._before, number, time)
        self._before = (number, time)
        return (
            Row(
                line=number,
                rid=f"req-{number}",
                time_ns=time * SECOND_NS,
                input_length=tokens,
                output_length=output,
                block_ids=None if pieces is None else lay(pieces, self.block_size),
                session=text(needed(data, "session_id"), "$.session_id"),
            ),
        )

    def _time(self, data: dict[str, Any]) -> int:
        value = needed(data, "timestamp")
        if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 18:
            raise LineError(
                f"a string of whole seconds is expected, found {describe(value)}", path="$.timestamp"
            )
        return int(value)

    def _restart(self, before: tuple[int, int], number: int, time: int) -> InputError:
        file = shlex.quote(self._path)
        return InputError(
            f"the clock restarts: line {before[0]} is at {before[1]:,} s, line {number} at {time:,} s",
            where=f"{self._path}:{number}",
            path="$.timestamp",
            hint=f"split the file: `head -n {number - 1} {file}` and `tail -n +{number} {file}`",
        )

    def _pieces(self, lists: dict[str, Any], tokens: int, number: int) -> list[tuple[int, int]] | None:
        """(id, tokens) of each piece of a prompt; None without side tables."""
        pieces = []
        for key, value in lists.items():
            path = f"$.hash_ids.{key}"
            if key not in TABLES:
                raise LineError(f"unknown list, {', '.join(TABLES)} are expected", path=path)
            ids = whole_list(value, path, least=0, what="id")
            if not self._lengths:
                continue
            table = self._lengths.get(TABLES[key], {})
            for index, found in enumerate(ids):
                if found not in table:
                    raise LineError(
                        f"no side table gives the length of {TABLES[key]} {found}", path=f"{path}[{index}]"
                    )
                pieces.append((found * len(TABLES) + list(TABLES).index(key), table[found]))
        if not self._lengths:
            self.notes.add(
                "no side tables beside the file: pieces have no lengths, so nothing is shared", number
            )
            return None
        rest = tokens - sum(count for _, count in pieces)
        if rest < 0:
            raise LineError(f"{tokens:,} tokens, the pieces have {tokens - rest:,}", path="$.input_length")
        self.notes.add(LAID_NOTE.replace(str(LAID_TOKENS), str(self.block_size)), number)
        return [*pieces, (fnv1a64(f"{number} rest") * len(TABLES), rest)]


def read_tables(path: str, folder: str | None) -> Lengths:
    """Tokens of each piece, by id field, from all side tables in a folder; the trace's own if None.

    Raises: InputError for a table with a bad line, or for a given folder without any.
    """
    if path == "-" and folder is None:
        return {}
    place = Path(folder) if folder is not None else Path(path).parent
    try:
        files = sorted(file for file in place.iterdir() if ".json" in file.name and file.is_file())
    except OSError as error:
        raise InputError(
            f"can't be read as the folder of side tables ({error.strerror})", where=str(place)
        ) from None
    lengths: Lengths = {}
    for file in files:
        if (field := _table_field(file)) is not None:
            _read_table(str(file), field, lengths.setdefault(field, {}))
    if folder is not None and not lengths:
        raise InputError("no side table in the folder", where=folder)
    return lengths


def _table_field(file: Path) -> str | None:
    """The id field of a side table; None for any other file."""
    try:
        with open_bytes(str(file))[1] as source:
            data = json_object(next(line for line in source if not line.isspace()))
    except InputError:
        return None
    found = [field for field in TABLES.values() if field in data]
    return found[0] if found and "token_length" in data else None


def _read_table(name: str, field: str, lengths: dict[int, int]) -> None:
    with open_bytes(name)[1] as source:
        for line in source:
            if line.isspace():
                continue
            try:
                data = json_object(line)
                found = whole(needed(data, field), f"$.{field}")
                if found in lengths:
                    raise LineError(f"{field} {found} is there twice", path=f"$.{field}")
                lengths[found] = length(data, "token_length")
            except LineError as error:
                error.where = f"{name}:{source.line}"
                # a bad table spoils every row that uses it, so it is never skipped
                raise InputError(error.message, where=error.where, path=error.path) from None


FORMAT = JsonFormat(name="ragpulse", title="RAGPulse trace", make=RagPulseReader)
