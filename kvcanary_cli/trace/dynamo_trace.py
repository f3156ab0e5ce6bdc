"""Reader of Dynamo's request trace v1: JSON Lines of finished requests, tools and payloads.

Format as ai-dynamo 1.6.1 writes it: Unix milliseconds, ids for blocks of `trace_block_size` tokens, rows in
order of completion. Only `request_end` records with a `replay` part are requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.json_rows import (
    MS_NS,
    JsonFormat,
    JsonLinesReader,
    Links,
    inner,
    length,
    needed,
    text,
    time_ns,
)
from kvcanary_cli.trace.request_trace import ReadOptions, Row
from kvcanary_cli.trace.slots import describe

SCHEMA = "dynamo.request.trace.v1"


class DynamoReader(JsonLinesReader):
    """See `Reader`."""

    counts_up: bool | None = None
    known = frozenset(
        ("schema", "event_type", "event_time_unix_ms", "agent_context", "request", "tool", "request_id")
    )

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options)
        self._links = Links()
        self._is_first = True

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """A request, or nothing for a record of another kind."""
        kind = data.get("event_type")
        if "schema" not in data and kind == "request_payload":
            self.notes.add("request_payload records are skipped", number)
            return ()
        schema = needed(data, "schema")
        if schema != SCHEMA:
            raise LineError(f'schema is {describe(schema)}, "{SCHEMA}" is expected', path="$.schema")
        kind = needed(data, "event_type")
        if kind == "request_payload" or (isinstance(kind, str) and kind.startswith("tool")):
            self.notes.add(f"{kind} records are skipped", number)
            return ()
        if kind != "request_end":
            raise LineError(
                f"unknown record {describe(kind)}, request_end, request_payload or tool records are expected",
                path="$.event_type",
            )
        return (self._request(inner(data, "request"), data, number),)

    def _request(self, request: dict[str, Any], data: dict[str, Any], number: int) -> Row:
        rid = text(needed(request, "request_id", "$.request"), "$.request.request_id")
        if "replay" not in request:
            raise LineError(
                f"request {rid} has no replay part (prompt length and block ids), so it can't be replayed",
                path="$.request",
                hint="record the trace with its replay part",
            )
        replay = inner(request, "replay", "$.request")
        at = "$.request.replay"
        self.take_block_size(
            length(replay, "trace_block_size", at=at), f"{at}.trace_block_size", is_first=self._is_first
        )
        self._is_first = False
        tokens = length(replay, "input_length", at=at)
        path = f"{at}.input_sequence_hashes"
        ids = self.block_ids(needed(replay, "input_sequence_hashes", at), tokens, path)
        output = self.output(request, "output_tokens", number, "$.request")
        received = needed(request, "request_received_ms", "$.request")
        time = time_ns(received, MS_NS, "ms", "$.request.request_received_ms")
        self._links.add(rid, number, time, "$.request.request_id")
        context = inner(data, "agent_context") if data.get("agent_context") is not None else {}
        session = context.get("session_id")
        if session is not None:
            session = text(session, "$.agent_context.session_id")
        return Row(number, rid, time, tokens, output, ids, session)


FORMAT = JsonFormat(name="dynamo", title="Dynamo request trace v1", make=DynamoReader)
