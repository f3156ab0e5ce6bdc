"""What one pass over a stream collects: forwards with their lanes, stays of requests, allocations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvcanary_cli.faults.ownership import Lane, Ownership
from kvcanary_cli.trace import events as ev


@dataclass(slots=True)
class Step:
    """One forward: its number, its place in the stream, and its live lanes."""

    number: int
    index: int
    lanes: list[Lane]


@dataclass(slots=True)
class Session:
    """One stay of a request in a row, from its bind to its unbind (or the end of the stream).

    Attributes:
        begin, end: places in the stream; `end` is that of the unbind.
        steps: numbers of the forwards that it is in.
    """

    rid: str
    row: int
    begin: int
    end: int
    steps: list[int] = field(default_factory=list)

    def later(self, step: int) -> list[int]:
        """Its forwards after number `step`."""
        return [number for number in self.steps if number > step]


@dataclass(slots=True)
class Survey:
    """What one pass over a stream collects.

    Attributes:
        steps: forwards, by number.
        sessions: stays of requests in rows, in order of their bind.
        allocated: places at which each full slot is handed out.
        by_rid: the same stays by request.
        names: every request, holder, transfer and key of the stream.
    """

    steps: list[Step] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    by_rid: dict[str, list[Session]] = field(default_factory=dict)
    allocated: dict[int, list[int]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def session(self, rid: str, step: int) -> Session | None:
        """The stay of `rid` during forward `step`, whether it has a lane in it or not."""
        index = self.steps[step].index
        return next((s for s in self.by_rid.get(rid, ()) if s.begin < index < s.end), None)


def survey(header: ev.Header, events: Sequence[ev.Event]) -> Survey:
    """Collect steps, sessions and allocations of a stream."""
    state = Ownership(header)
    found = Survey()
    open_rows: dict[int, Session] = {}

    def close(row: int, index: int) -> None:
        session = open_rows.pop(row, None)
        if session is not None:
            session.end = index

    for index, event in enumerate(events):
        if isinstance(event, ev.Bind | ev.Move):
            old = state.row_of.get(event.rid)
            if old is not None:
                close(old, index)
            close(event.row, index)
            session = Session(event.rid, event.row, index, len(events))
            open_rows[event.row] = session
            found.sessions.append(session)
            found.by_rid.setdefault(event.rid, []).append(session)
        elif isinstance(event, ev.Unbind):
            close(event.row, index)
        elif isinstance(event, ev.Gap):
            for row in list(open_rows):
                close(row, index)
        elif isinstance(event, ev.Alloc) and event.group == "full":
            for slot in event.slots.tolist():
                found.allocated.setdefault(slot, []).append(index)
        elif isinstance(event, ev.Forward):
            lanes = [lane for lane in state.lanes(event) if lane.rid]
            for lane in lanes:
                if lane.row in open_rows:
                    open_rows[lane.row].steps.append(len(found.steps))
            found.steps.append(Step(len(found.steps), index, lanes))
        state.apply(event)
        found.names.update(_names(event))
    return found


def _names(event: ev.Event) -> Iterable[str]:
    for key in ("rid", "to", "by", "id", "key"):
        value = getattr(event, key, None)
        if isinstance(value, str):
            yield value
