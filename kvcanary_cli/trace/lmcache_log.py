"""Reader of LMCache's lookup log: JSON Lines, what each request looked up, without output lengths.

`timestamp` is Unix seconds, `seq_len` the prompt, `chunk_hashes` a hex hash for each full chunk of
`chunk_size` tokens, which stands for all before it too (LMCache 0.5.6, `lookup_hashes_*.jsonl`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.json_rows import JsonFormat, JsonLinesReader, Links, length, needed, text, time_ns
from kvcanary_cli.trace.pieces import own_id
from kvcanary_cli.trace.request_trace import SECOND_NS, ReadOptions, Row, block_count_error
from kvcanary_cli.trace.slots import describe

CHUNK_TOKENS = 256
MAX_HEX = 128


class LookupLogReader(JsonLinesReader):
    """See `Reader`."""

    counts_up: bool | None = False
    known = frozenset(
        (
            *("timestamp", "request_id", "model_name", "chunk_size", "seq_len"),
            *("dtypes", "shapes", "chunk_hashes"),
        )
    )

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options, CHUNK_TOKENS)
        self._links = Links()
        self._models: list[str] = []
        self._is_first = True

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """One lookup."""
        time = time_ns(needed(data, "timestamp"), SECOND_NS, "s", "$.timestamp")
        self.take_block_size(length(data, "chunk_size"), "$.chunk_size", is_first=self._is_first)
        self._is_first = False
        tokens = length(data, "seq_len")
        model = text(data.get("model_name", "unknown"), "$.model_name")
        hashes = [own_id(model, found, self._models) for found in _hashes(needed(data, "chunk_hashes"))]
        error = block_count_error(tokens, len(hashes), self, "$.chunk_hashes")
        if error is not None:
            raise error
        rid = text(needed(data, "request_id"), "$.request_id")
        if rid in self._links:
            self.notes.add("the request was looked up before, and counts as one of its own", number)
            rid = f"{rid}@{number}"
        self._links.add(rid, number, time, "$.request_id")
        return (Row(number, rid, time, tokens, 0, tuple(hashes)),)


def _hashes(value: Any) -> list[int]:
    path = "$.chunk_hashes"
    if not isinstance(value, list):
        raise LineError(f"a list of hex hashes is expected, found {describe(value)}", path=path)
    hashes = []
    for index, item in enumerate(value):
        try:
            if not isinstance(item, str) or not 0 < len(item) <= MAX_HEX or not item.isalnum():
                raise ValueError
            hashes.append(int(item, 16))
        except ValueError:
            raise LineError(
                f"a hash in hex digits is expected, found {describe(item)}", path=f"{path}[{index}]"
            ) from None
    return hashes


FORMAT = JsonFormat(
    name="lmcache-lookup", title="LMCache lookup log", make=LookupLogReader, has_lengths=False
)
