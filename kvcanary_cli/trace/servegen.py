"""Reader of ServeGen's offline traces: JSON Lines with lengths and no times.

Format as in alibaba/ServeGen, `data/offline`. Files a to c have block ids (16 tokens, partial blocks counted)
and no output lengths, files d to f output lengths and no ids. Neither can be scheduled as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.json_rows import JsonFormat, JsonLinesReader, Links, length, needed, text
from kvcanary_cli.trace.request_trace import ReadOptions, Row

BLOCK_TOKENS = 16


class ServeGenReader(JsonLinesReader):
    """See `Reader`; output lengths are 0 where the file has none, which `notes.lacking` says."""

    known = frozenset(
        ("request_id", "type", "input_length", "output_length", "hash_ids", "img_ids", "duration")
    )

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options, BLOCK_TOKENS)
        self._links = Links()
        self._has_output: bool | None = None

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """One request."""
        for key in ("timestamp", "arrival_time"):
            if key in data:
                raise LineError("the row has a time, which this format has not", path=f"$.{key}")
        tokens = length(data, "input_length")
        has_output = "output_length" in data
        if self._has_output is None:
            self._has_output = has_output
            if not has_output:
                self.notes.lack("output lengths")
        if has_output != self._has_output:
            found = (
                "is there, the rows before have none" if has_output else "is missing, the rows before have it"
            )
            raise LineError(f'key "output_length" {found}', path="$")
        output = self.output(data, "output_length", number) if has_output else 0
        ids = self.block_ids(data["hash_ids"], tokens, "$.hash_ids") if "hash_ids" in data else None
        rid = text(needed(data, "request_id"), "$.request_id")
        self._links.add(rid, number, 0, "$.request_id")
        return (Row(number, rid, 0, tokens, output, ids),)


FORMAT = JsonFormat(name="servegen", title="ServeGen offline trace", make=ServeGenReader, has_times=False)
