"""Reader of Applied Compute's agentic workloads: JSON Lines, a whole session a line, without arrival times.

The prompt of a turn is the first prompt and all responses and tool outputs since; the tool's latency, in
seconds, passes between the end of a turn and the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.json_rows import (
    NO_OUTPUT,
    JsonFormat,
    JsonLinesReader,
    length,
    needed,
    time_ns,
    whole_list,
)
from kvcanary_cli.trace.pieces import LAID_NOTE, LAID_TOKENS, lay
from kvcanary_cli.trace.request_trace import MAX_TOKENS, SECOND_NS, ReadOptions, Row
from kvcanary_cli.trace.slots import describe
from kvcanary_cli.trace.tokens import fnv1a64

LISTS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")


class AppliedComputeReader(JsonLinesReader):
    """See `Reader`; a session of n turns gives n + 1 requests, each after the one before."""

    known = frozenset(("num_turns", "input_prompt_length", "final_assistant_response_length", *LISTS))

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options)
        self.block_size = LAID_TOKENS

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """The requests of a session."""
        turns = length(data, "num_turns", least=0)
        lists = [self._list(data, key, turns) for key in LISTS]
        responses = whole_list(lists[0], f"$.{LISTS[0]}", least=0, what="the length")
        tools = whole_list(lists[1], f"$.{LISTS[1]}", least=0, what="the length")
        delays = [
            time_ns(value, SECOND_NS, "s", f"$.{LISTS[2]}[{index}]", what="latency")
            for index, value in enumerate(lists[2])
        ]
        prompt = length(data, "input_prompt_length")
        final = length(data, "final_assistant_response_length", least=0)
        total = prompt + sum(responses) + sum(tools) + final
        if total > MAX_TOKENS:
            raise LineError(
                f"the session has {total:,} tokens, at most {MAX_TOKENS:,} are possible", path="$"
            )
        self.notes.add("no arrival times: every session starts at 0", number)
        self.notes.add(LAID_NOTE, number)
        pieces = [(fnv1a64(f"{number} prompt"), prompt)]
        rows: list[Row] = []
        for turn, output in enumerate((*responses, final)):
            if output == 0:
                self.notes.add(NO_OUTPUT, number)
            rows.append(
                Row(
                    line=number,
                    rid=f"session-{number}/{turn + 1}",
                    time_ns=0,
                    input_length=sum(count for _, count in pieces),
                    output_length=output,
                    block_ids=lay(pieces),
                    session=f"session-{number}",
                    after=rows[-1].rid if rows else None,
                    delay_ns=delays[turn - 1] if rows else 0,
                )
            )
            if turn < turns:
                pieces.append((fnv1a64(f"{number} response {turn}"), output))
                pieces.append((fnv1a64(f"{number} tool {turn}"), tools[turn]))
        return rows

    def _list(self, data: dict[str, Any], key: str, turns: int) -> list[Any]:
        value = needed(data, key)
        if not isinstance(value, list):
            raise LineError(f"a list is expected, found {describe(value)}", path=f"$.{key}")
        if len(value) != turns:
            raise LineError(f"{len(value):,} items for {turns:,} turns", path=f"$.{key}")
        return value


FORMAT = JsonFormat(
    name="applied-compute", title="Applied Compute agentic workload", make=AppliedComputeReader
)
