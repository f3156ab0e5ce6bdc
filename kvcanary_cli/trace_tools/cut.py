"""Cut a part out of a trace: a span of steps, or some requests, with what they need to mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcanary_cli.errors import UsageError, nearest
from kvcanary_cli.report.text import plural
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace_tools.owners import CACHE, NOBODY, Owners
from kvcanary_cli.trace_tools.pick import pick

XFER_PREFIX = "xfer:"

ASKED = "asked for"
IN_SPAN = "acts in the span"
LIVE = "holds slots, or left some in the prefix cache, when the span begins"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How large a trace is; the header is an event."""

    events: int
    steps: int
    requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A part of a trace.

    Attributes:
        why: reason for each request that was kept, by name.
        span: first and last step asked for, both included, None for a cut by requests.
        steps_before: forwards that stand before the span, because what it reads was written by them.
        left_out: requests that were not kept.
    """

    header: ev.Header
    events: list[ev.Event]
    why: dict[str, str]
    span: tuple[int, int] | None
    steps_before: int
    left_out: list[str]
    before: Counts
    after: Counts


def cut_steps(header: ev.Header, events: Sequence[ev.Event], first: int, last: int) -> Cut:
    """Steps `first` to `last`, both included, and the history of all that exists when they begin.

    What is left out before the span are requests that were over, and of whose slots nothing was left.

    Raises: UsageError where the trace has no such steps.
    """
    begin, end, total = _bounds(events, first, last)
    owners = Owners(header)
    for event in events[:begin]:
        owners.apply(event)
    seeds = dict.fromkeys(owners.live(), LIVE)
    for event in events[begin:end]:
        seeds.update(dict.fromkeys(_actors(event, owners), IN_SPAN))
        owners.apply(event)
    seeds.pop(CACHE, None)
    why = owners.closure(seeds)
    history = _thinned(pick(header, events[:begin], why))
    return _cut(
        header,
        events,
        [*history, *events[begin:end]],
        why,
        span=(first, min(last, total - 1)),
        steps_before=count_steps(history),
    )


def cut_requests(header: ev.Header, events: Sequence[ev.Event], rids: Sequence[str]) -> Cut:
    """Some requests, and those without whom their slots would not hold what they hold.

    Raises: UsageError for a request that the trace does not have.
    """
    known = requests_of(events)
    for rid in rids:
        if rid not in known:
            close = nearest(rid, known)
            raise UsageError(
                f"request {rid!r} is not in the trace, which has {plural(len(known), 'request')}",
                hint=f"did you mean {close}?" if close else None,
            )
    owners = Owners(header)
    for event in events:
        owners.apply(event)
    why = owners.closure(dict.fromkeys(rids, ASKED))
    return _cut(header, events, _thinned(pick(header, events, why)), why)


def parse_span(text: str) -> tuple[int, int | None]:
    """First and last step of `120:180`, `120:` or `:180`; None: to the end.

    Raises: UsageError for anything else.
    """
    first, separator, last = text.partition(":")
    is_number = all(not part or (part.isascii() and part.isdigit()) for part in (first, last))
    if not separator or not is_number or not (first or last):
        raise UsageError(f"`--steps {text}` is no span", hint="`--steps 120:180`, both included, from 0")
    begin, end = int(first or 0), int(last) if last else None
    if end is not None and end < begin:
        raise UsageError(f"`--steps {text}` ends before it begins", hint=f"`--steps {end}:{begin}`")
    return begin, end


def requests_of(events: Sequence[ev.Event]) -> list[str]:
    """Names of the requests that rows, truths or holders name, sorted."""
    found: set[str] = set()
    for event in events:
        found.update(_names(event))
    return sorted(name for name in found if name != CACHE and not name.startswith(XFER_PREFIX))


def counts_of(events: Sequence[ev.Event]) -> Counts:
    """Size of a trace with these events behind its header."""
    return Counts(events=len(events) + 1, steps=count_steps(events), requests=len(requests_of(events)))


def count_steps(events: Sequence[ev.Event]) -> int:
    """How many forwards there are."""
    return sum(isinstance(event, ev.Forward) for event in events)


def _cut(
    header: ev.Header,
    events: Sequence[ev.Event],
    kept: list[ev.Event],
    why: dict[str, str],
    *,
    span: tuple[int, int] | None = None,
    steps_before: int = 0,
) -> Cut:
    after = requests_of(kept)
    before = requests_of(events)
    return Cut(
        header=header,
        events=kept,
        why={rid: why.get(rid, IN_SPAN) for rid in after},
        span=span,
        steps_before=steps_before,
        left_out=sorted(set(before) - set(after)),
        before=counts_of(events),
        after=counts_of(kept),
    )


def _bounds(events: Sequence[ev.Event], first: int, last: int) -> tuple[int, int, int]:
    """Places of the first event after forward `first - 1` and of forward `last + 1`; and how many forwards."""
    begin, end, step = 0, len(events), 0
    for index, event in enumerate(events):
        if isinstance(event, ev.Forward):
            if step == first - 1:
                begin = index + 1
            if step == last + 1:
                end = index
            step += 1
    if first >= step:
        raise UsageError(
            f"the span begins at step {first:,}, the trace has {plural(step, 'step')}, 0 the first"
        )
    return begin, end, step


def _thinned(events: Any) -> list[ev.Event]:
    """Without sweeps that follow a sweep: where nothing happened between them they find the same."""
    kept: list[ev.Event] = []
    for event in events:
        if isinstance(event, ev.Sweep) and kept and isinstance(kept[-1], ev.Sweep):
            continue
        kept.append(event)
    return kept


def _actors(event: ev.Event, owners: Owners) -> set[str]:
    found = set(_names(event))
    if isinstance(event, ev.Forward):
        found.update(owners.rid_of(row) for row in event.rows if row)
    elif isinstance(event, ev.Unbind | ev.Map):
        found.add(owners.rid_of(event.row))
    elif isinstance(event, ev.Xfer):
        found.add(owners.transfer_of(event))
    for key in ("slots", "full"):
        slots = getattr(event, key, None)
        if slots is not None and not isinstance(event, ev.Alloc):
            group = getattr(event, "group", "full")
            found.update(owners.owner_of(slot, group) for slot in slots.tolist() if slot > 0)
    if isinstance(event, ev.Stamp):
        found.add(owners.owner_of(event.slot, event.group))
    return found - {NOBODY}


def _names(event: ev.Event) -> set[str]:
    found = {getattr(event, key, None) for key in ("rid", "to", "by")}
    return {name for name in found if name}
