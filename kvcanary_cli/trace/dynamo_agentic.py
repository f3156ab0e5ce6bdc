"""Reader of Dynamo's agentic Mooncake traces, version 2: a header and requests that wait for others.

Format as ai-dynamo 1.6.1 has it: `not_before_ms` from the start, and `dependencies` on the dispatch or the
completion of earlier requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvcanary_cli.trace.files import ByteReader, LineError
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
)
from kvcanary_cli.trace.pieces import own_id
from kvcanary_cli.trace.request_trace import ReadOptions, Row
from kvcanary_cli.trace.slots import describe

SCHEMA = "dynamo.agentic_mooncake"
VERSION = 2
TRIGGERS = ("dispatch", "completion")


class AgenticReader(JsonLinesReader):
    """See `Reader`."""

    known = frozenset(
        (
            *("schema", "version", "block_size", "hash_id_scope", "source"),
            *("request_id", "play_id", "session_id", "model", "input_length", "output_length", "hash_ids"),
            *("not_before_ms", "dependencies"),
        )
    )

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options)
        self._links = Links()
        self._rows: dict[str, tuple[str | None, int, int]] = {}  # rid -> (after, delay_ns, time_ns)
        self._models: list[str] = []
        self._has_header = False

    def rows(self, source: ByteReader) -> Iterator[Row | LineError]:
        """As `Reader.rows`; without a header nothing can be read, so that is never skipped."""
        for row in super().rows(source):
            if isinstance(row, LineError) and not self._has_header:
                row.where = f"{source.name}:{source.line}"
                raise row
            yield row

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """A request; nothing for the header."""
        if not self._has_header:
            self._take_header(data)
            return ()
        if "schema" in data:
            raise LineError("a second header", path="$.schema")
        rid = text(needed(data, "request_id"), "$.request_id")
        tokens = length(data, "input_length")
        output = self.output(data, "output_length", number)
        model = text(data.get("model", "unknown"), "$.model")
        ids = self.block_ids(needed(data, "hash_ids"), tokens, "$.hash_ids")
        time = time_ns(needed(data, "not_before_ms"), MS_NS, "ms", "$.not_before_ms")
        after, delay, time = self._waits(data, rid, time, number)
        session = text(data["session_id"], "$.session_id") if "session_id" in data else None
        self._links.add(rid, number, time, "$.request_id")
        self._rows[rid] = (after, delay, time)
        return (
            Row(
                line=number,
                rid=rid,
                time_ns=time,
                input_length=tokens,
                output_length=output,
                block_ids=tuple(own_id(model, block_id, self._models) for block_id in ids),
                session=session,
                after=after,
                delay_ns=delay,
            ),
        )

    def _take_header(self, data: dict[str, Any]) -> None:
        if data.get("schema") != SCHEMA:
            found = describe(data["schema"]) if "schema" in data else "none"
            raise LineError(f'the header is missing: schema "{SCHEMA}" is expected, found {found}', path="$")
        version = whole(needed(data, "version"), "$.version")
        if version != VERSION:
            raise LineError(f"version is {version}, {VERSION} is expected", path="$.version")
        self.take_block_size(length(data, "block_size"), "$.block_size", is_first=True)
        scope = data.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise LineError(f"{describe(scope)} is neither local nor global", path="$.hash_id_scope")
        self._has_header = True

    def _waits(self, data: dict[str, Any], rid: str, time: int, number: int) -> tuple[str | None, int, int]:
        """(after, delay in ns, earliest time in ns) from the dependencies of a request.

        A dispatch is waited for as the other request itself is waited for, and a request that waits for
        several completions for the last one that is listed.
        """
        value = needed(data, "dependencies")
        if not isinstance(value, list):
            raise LineError(f"a list is expected, found {describe(value)}", path="$.dependencies")
        after, delay = None, 0
        for index, item in enumerate(value):
            on, is_completion, lag = self._dependency(item, rid, f"$.dependencies[{index}]")
            other_after, other_delay, other_time = self._rows[on]
            if is_completion:
                found: tuple[str | None, int] = (on, lag)
                time = max(time, other_time)
            else:
                found = (other_after, other_delay + lag if other_after is not None else 0)
                time = max(time, other_time + lag)
            if found[0] is None:
                continue
            if after is not None and after != found[0]:
                self.notes.add("waits for several requests, of which the last one listed is kept", number)
            after, delay = found
        return after, delay, time

    def _dependency(self, item: Any, rid: str, at: str) -> tuple[str, bool, int]:
        """(request, whether for its completion, delay in ns)."""
        if not isinstance(item, dict):
            raise LineError(f"an object is expected, found {describe(item)}", path=at)
        on = text(needed(item, "request_id", at), f"{at}.request_id")
        if on == rid:
            raise LineError(f"request {describe(on)} waits for itself", path=f"{at}.request_id")
        if on not in self._links:
            raise LineError(f"{describe(on)} is no earlier request", path=f"{at}.request_id")
        trigger = needed(item, "trigger", at)
        if trigger not in TRIGGERS:
            raise LineError(f"{describe(trigger)} is none of {', '.join(TRIGGERS)}", path=f"{at}.trigger")
        return (
            on,
            trigger == "completion",
            time_ns(item.get("delay_ms", 0), MS_NS, "ms", f"{at}.delay_ms", what="delay"),
        )


FORMAT = JsonFormat(name="dynamo-agentic", title="Dynamo agentic Mooncake trace v2", make=AgenticReader)
