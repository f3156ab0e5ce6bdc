"""Facts about a trace v1: what it records, how large its forwards are, which checks its records allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import TraceReader

TELL_EVERY = 1 << 14
"""Events between two calls of `on_progress`."""
ALWAYS = ("header", "forward", "gap", "note")
"""Events that no `records` list needs to name."""


class Most(NamedTuple):
    """The largest value of any forward, and the line of the first forward that has it."""

    value: int = 0
    line: int | None = None

    def or_if_more(self, value: int, line: int) -> Most:
        """The larger of this and one more forward's."""
        return Most(value, line) if value > self.value else self


@dataclass(kw_only=True, slots=True)
class TraceFacts:
    """What is in a trace.

    Attributes:
        header: as it stands in the file.
        events: of each kind, in the order in which kinds turned up.
        forwards: by mode.
        requests: different request ids that were bound to a row.
        most_lanes, most_tokens, most_prefix: lanes of a forward, tokens that it writes, prefix entries it reads.
        first_t, last_t: seconds; None where no event has a time.
        lost_forwards: forwards that recorders say they lost; None: an unknown number.
        has_expected: whether any forward states the ids that it expects.
        limited: whether reading stopped at the limit of requests.
        bad_lines, truncated: as `TraceReader` has them.
    """

    header: ev.Header
    events: Counter[str] = field(default_factory=Counter)
    forwards: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    most_lanes: Most = field(default_factory=Most)
    most_tokens: Most = field(default_factory=Most)
    most_prefix: Most = field(default_factory=Most)
    first_t: float | None = None
    last_t: float | None = None
    lost_forwards: int | None = 0
    has_expected: bool = False
    limited: bool = False
    bad_lines: list[int] = field(default_factory=list)
    truncated: int | None = None

    def checks(self) -> dict[str, str]:
        """For each check of a replay why this trace does not allow it; empty text where it does."""
        hashed = any(source.hashed_bytes for source in self.header.sources)
        return {
            "chain_hash": "",
            "position": "",
            "real_kv_hash": "" if hashed else "the header has no source with hashed bytes",
            "verify_token": "" if self.events["truth"] else "the trace has no `truth` events",
            "write_token": "" if self.has_expected else "no forward has `expect`",
        }

    def undeclared(self) -> list[str]:
        """Kinds that occur although the header's `records` say that the recorder can't see them."""
        records = self.header.records
        return [] if records is None else [kind for kind in self.events if kind not in (*ALWAYS, *records)]


def inspect_trace(
    reader: TraceReader,
    *,
    limit_requests: int | None = None,
    on_progress: Callable[[int, int], None] = lambda forwards, tokens: None,
) -> TraceFacts:
    """The facts of a trace, read event by event; only request ids are held.

    Args:
        limit_requests: stop before one more request is bound.
        on_progress: gets events and written tokens so far, now and then.
    """
    facts = TraceFacts(header=reader.header, bad_lines=reader.bad_lines)
    rids: set[str] = set()
    tokens = 0
    for number, (line, event) in enumerate(reader, start=1):
        if isinstance(event, ev.Bind):
            if event.rid not in rids and len(rids) == limit_requests:
                facts.limited = True
                break
            rids.add(event.rid)
        facts.events[event.__struct_config__.tag] += 1  # type: ignore[index]
        if not isinstance(event, ev.Note) and event.t is not None:
            facts.first_t = event.t if facts.first_t is None else facts.first_t
            facts.last_t = event.t
        if isinstance(event, ev.Forward):
            tokens += _forward(facts, event, line)
        elif isinstance(event, ev.Gap):
            unknown = event.forwards is None or facts.lost_forwards is None
            facts.lost_forwards = None if unknown else (facts.lost_forwards or 0) + (event.forwards or 0)
        if number % TELL_EVERY == 0:
            on_progress(number, tokens)
    facts.requests = len(rids)
    facts.truncated = reader.truncated
    return facts


def _forward(facts: TraceFacts, event: ev.Forward, line: int) -> int:
    """Count one forward; the tokens that it writes."""
    lens = event.lens if event.lens is not None else [1] * len(event.rows)
    mode = event.mode or ("extend" if any(length > 1 for length in lens) else "decode")
    facts.forwards[mode] += 1
    facts.has_expected = facts.has_expected or event.expect is not None
    lanes, tokens = max(len(event.rows), event.width or 0), sum(lens)
    facts.most_lanes = facts.most_lanes.or_if_more(lanes, line)
    facts.most_tokens = facts.most_tokens.or_if_more(tokens, line)
    facts.most_prefix = facts.most_prefix.or_if_more(sum(event.prefix), line)
    return tokens
