"""Reader of LLMServingSim workloads and measured runs: JSON Lines, three kinds of rows that may be mixed.

Format as in casys-kaist/LLMServingSim. Workloads have `arrival_time_ns` in nanoseconds, agentic sessions
`sub_requests` with the time of a tool after each, measured runs (`requests.jsonl`) `arrival_time` in Unix
seconds. Token ids are optional. Times that a run measured on other clocks are not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.json_rows import (
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
from kvcanary_cli.trace.request_trace import SECOND_NS, ReadOptions, Row
from kvcanary_cli.trace.slots import describe

MEASURED = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
MAX_NS = 10**18
UNITS = {"arrival_time_ns": (1, "ns"), "arrival_time": (SECOND_NS, "s")}


class LlmServingSimReader(JsonLinesReader):
    """See `Reader`; there are no block ids, but token ids where the file has them."""

    known = frozenset(
        (
            *("input_toks", "output_toks", "arrival_time_ns", "arrival_time", "input_tok_ids"),
            *("output_tok_ids", "session_id", "sub_requests", "request_id"),
            *MEASURED,
        )
    )

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options)
        self.block_size = 1
        self._links = Links()
        self._clock: str | None = None

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """A request, or those of a session."""
        time = self._time(data)
        if "sub_requests" in data:
            return self._session(data, time, number)
        if any(key in data for key in MEASURED):
            self.notes.add("measured times beside the arrival are not used", number)
        rid = f"req-{number}"
        if "request_id" in data:
            rid = text(data["request_id"], "$.request_id")
            self._links.add(rid, number, time, "$.request_id")
        return (self._request(data, rid, time, number, "$"),)

    def _time(self, data: dict[str, Any]) -> int:
        key = "arrival_time" if "arrival_time" in data else "arrival_time_ns"
        value, path = needed(data, key), f"$.{key}"
        if self._clock is None:
            self._clock = key
        if key != self._clock or len(UNITS.keys() & data.keys()) > 1:
            raise LineError(f"two clocks in one file, {' and '.join(UNITS)}", path=path)
        if key == "arrival_time_ns" and whole(value, path) > MAX_NS:
            raise LineError(
                f"{value:,} ns are more than {MAX_NS:,}: this is Unix time, times count from the start",
                path=path,
                hint="subtract the first row's time from all",
            )
        return time_ns(value, *UNITS[key], path)

    def _session(self, data: dict[str, Any], time: int, number: int) -> Iterable[Row]:
        subs = data["sub_requests"]
        if not isinstance(subs, list) or not subs:
            found = "an empty one" if subs == [] else describe(subs)
            raise LineError(f"a list of requests is expected, found {found}", path="$.sub_requests")
        session = text(data["session_id"], "$.session_id") if "session_id" in data else f"session-{number}"
        self._links.add(f"{session}/1", number, time, "$.session_id")
        rows: list[Row] = []
        delay = 0
        for index, sub in enumerate(subs):
            at = f"$.sub_requests[{index}]"
            if not isinstance(sub, dict):
                raise LineError(f"an object is expected, found {describe(sub)}", path=at)
            row = self._request(sub, f"{session}/{index + 1}", time, number, at)
            rows.append(row._replace(session=session, after=rows[-1].rid if rows else None, delay_ns=delay))
            delay = time_ns(
                sub.get("tool_duration_ns", 0), 1, "ns", f"{at}.tool_duration_ns", what="duration"
            )
        return rows

    def _request(self, data: dict[str, Any], rid: str, time: int, number: int, at: str) -> Row:
        tokens = length(data, "input_toks", at=at)
        output = self.output(data, "output_toks", number, at)
        prompt = _token_ids(data, "input_tok_ids", tokens, "input_toks", at)
        _token_ids(data, "output_tok_ids", output, "output_toks", at)
        return Row(number, rid, time, tokens, output, prompt_tokens=prompt)


def _token_ids(data: dict[str, Any], key: str, count: int, of: str, at: str) -> tuple[int, ...] | None:
    if data.get(key) is None:
        return None
    ids = whole_list(data[key], f"{at}.{key}", least=0, what="token id")
    if len(ids) != count:
        raise LineError(f"{len(ids):,} token ids, {of} is {count:,}", path=f"{at}.{key}")
    return ids


FORMAT = JsonFormat(name="llmservingsim", title="LLMServingSim workload", make=LlmServingSimReader)
