"""Reader of Mooncake request traces: JSON Lines with times, lengths and prefix block ids.

Format as in kvcache-ai/Mooncake (FAST'25 release): `timestamp` in whole milliseconds, `input_length` and
`output_length` in tokens, `hash_ids` with one id for each 512 tokens of the prompt, the last block mostly
partial. The block size is not in the file. Equal ids mean equal tokens from the start of the prompt on.

Other tools write more under this name, and all of it may be mixed. AIPerf: `session_id`, `delay` in
milliseconds after the turn before, turns without a time, rows without ids. Dynamo: `request_id`, and other
names of the same keys. kvcache-simulator: `block_size` and the tokens of each block in every row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.json_rows import (
    MS_NS,
    JsonFormat,
    JsonLinesReader,
    Links,
    length,
    needed,
    text,
    time_ns,
    whole,
    whole_list,
)
from kvcanary_cli.trace.request_trace import MAX_TOKENS, ReadOptions, Row, block_count_error

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
# other names of keys, as Dynamo writes them
ALIASES = {
    "timestamp": "created_time",
    "input_length": "input_tokens",
    "output_length": "output_tokens",
    "delay": "delay_ms",
}
TEXT_KEYS = ("text_input", "messages", "payload")
OWN_KEYS = ("session_id", "request_id", "block_size", "block_tokens")


class _PlainRow(msgspec.Struct, forbid_unknown_fields=True):
    """The row as nearly every line has it; whatever else is accepted goes the slow way."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_PlainRow).decode


class MooncakeReader(JsonLinesReader):
    """See `Reader`; ids may be counted up, as Mooncake does, or down, as other tools do."""

    counts_up: bool | None = None
    known = frozenset((*KEYS, *ALIASES, *ALIASES.values(), *TEXT_KEYS, *OWN_KEYS))

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options, BLOCK_TOKENS)
        self._first: tuple[int, bool] | None = None
        self._turns: dict[str, Row] = {}
        self._links = Links()

    def line_rows(self, line: bytes, number: int) -> Iterable[Row]:
        """The fast way for a row that has the four keys and possible values, else the slow one."""
        row = self._plain(line, number)
        return (row,) if row is not None else super().line_rows(line, number)

    def _plain(self, line: bytes, number: int) -> Row | None:
        try:
            plain = _decode(line)
        except (msgspec.MsgspecError, RecursionError):
            return None
        ids = None if plain.hash_ids is msgspec.UNSET else tuple(plain.hash_ids)
        # one colon a key, as none can hide in a string: so no key is there twice
        if line.count(b":") != 3 + (ids is not None):
            return None
        if plain.timestamp < 0 or not 1 <= plain.input_length <= MAX_TOKENS or (ids and min(ids) < 0):
            return None
        if not 0 < plain.output_length <= MAX_TOKENS or not (self._first or (0, False))[1]:
            return None
        if ids is not None and block_count_error(plain.input_length, len(ids), self) is not None:
            return None
        return Row(
            number, f"req-{number}", plain.timestamp * MS_NS, plain.input_length, plain.output_length, ids
        )

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """One request."""
        _refuse_text(data)
        session = text(data["session_id"], "$.session_id") if "session_id" in data else None
        before = self._turns.get(session) if session is not None else None
        time, delay = self._time(data, number, before), self._delay(data, session, number, before)
        tokens = length(data, _key(data, "input_length") or "input_length")
        output = self.output(data, _key(data, "output_length") or "output_length", number)
        if "block_size" in data:
            self.take_block_size(length(data, "block_size"), "$.block_size", is_first=self._first is None)
        rid = f"req-{number}"
        if "request_id" in data:
            rid = text(data["request_id"], "$.request_id")
            self._links.add(rid, number, time, "$.request_id")
        if self._first is None:
            self._first = (number, _key(data, "timestamp") is not None)
        row = Row(
            line=number,
            rid=rid,
            time_ns=time,
            input_length=tokens,
            output_length=output,
            block_ids=self._ids(data, tokens),
            session=session,
            after=None if before is None or delay is None else before.rid,
            delay_ns=delay or 0,
        )
        if session is not None:
            self._turns[session] = row
        return (row,)

    def _time(self, data: dict[str, Any], number: int, before: Row | None) -> int:
        """Earliest time of a row: its own, and that of the turn before where it waits for that turn."""
        least = before.time_ns if before is not None else 0
        key = _key(data, "timestamp")
        if key is None:
            is_timed = self._first is not None and self._first[1]
            if before is None and (is_timed or self.misspelt("timestamp", data)):
                needed(data, "timestamp")
            if not is_timed:
                self.notes.lack("arrival times")
            return least
        if self._first is not None and not self._first[1]:
            raise LineError(f"the row has a time, the one of line {self._first[0]} has none", path=f"$.{key}")
        time = time_ns(whole(data[key], f"$.{key}"), MS_NS, "ms", f"$.{key}")
        return time if _key(data, "delay") is None else max(time, least)

    def _delay(
        self, data: dict[str, Any], session: str | None, number: int, before: Row | None
    ) -> int | None:
        """Nanoseconds from the end of the turn before; None where a row does not wait for it."""
        key = _key(data, "delay")
        if key is None:
            return 0 if before is not None and _key(data, "timestamp") is None else None
        delay = time_ns(data[key], MS_NS, "ms", f"$.{key}", what="delay")
        if session is None:
            raise LineError("a delay follows the turn before, and the row has no session_id", path=f"$.{key}")
        if before is None:
            self.notes.add("the first turn of a session has a delay, which is not used", number)
            return None
        return delay

    def _ids(self, data: dict[str, Any], tokens: int) -> tuple[int, ...] | None:
        if "hash_ids" not in data:
            return None
        ids = self.block_ids(data["hash_ids"], tokens, "$.hash_ids")
        if "block_tokens" in data:
            self._check_block_tokens(data["block_tokens"], len(ids), tokens)
        return ids

    def _check_block_tokens(self, value: Any, count: int, tokens: int) -> None:
        """Every block is full but the last, which ends the prompt."""
        path, size = "$.block_tokens", self.block_size
        counts = whole_list(value, path, least=1, what="the token count")
        if len(counts) != count:
            raise LineError(f"{len(counts):,} token counts for {count:,} block ids", path=path)
        for index, found in enumerate(counts):
            full = size if index < count - 1 else min(size, tokens - size * (count - 1))
            if found != full:
                raise LineError(
                    f"block {index} has {found:,} tokens, {full:,} are expected of a prompt of {tokens:,} "
                    f"in blocks of {size:,}",
                    path=f"{path}[{index}]",
                )


def _key(data: dict[str, Any], key: str) -> str | None:
    """Which of its two names a key has in a row; None if it is not there."""
    other = ALIASES[key]
    if key in data and other in data:
        raise LineError(f'keys "{key}" and "{other}" mean the same, one is expected', path="$")
    return key if key in data else other if other in data else None


def _refuse_text(data: dict[str, Any]) -> None:
    for key in TEXT_KEYS:
        if key not in data:
            continue
        if _key(data, "input_length") is not None:
            raise LineError(f'keys "{key}" and "input_length" exclude each other', path="$")
        raise LineError(
            f'key "input_length" is missing, the row has its prompt as text ("{key}"), '
            "which only the model's tokenizer can count",
            path="$",
        )


FORMAT = JsonFormat(name="mooncake", title="Mooncake request trace", make=MooncakeReader)
