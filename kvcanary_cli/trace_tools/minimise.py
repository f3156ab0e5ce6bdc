"""Shrink a failing trace while a replay of it still gives the same incident."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import ReplayResult, run_replay
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace_tools.cut import Counts, counts_of
from kvcanary_cli.trace_tools.fuse import fused, places_of
from kvcanary_cli.trace_tools.owners import CACHE, Owners
from kvcanary_cli.trace_tools.pick import pick
from kvcanary_cli.trace_tools.reduce import reduced, smallest
from kvcanary_cli.trace_tools.same import Finding, choose, findings_of, keeps
from kvcanary_cli.trace_tools.smaller import (
    OPTIONAL,
    fitted,
    longest,
    pages_of,
    shortened,
    with_pages,
    without,
    without_times,
)

MAX_ROUNDS = 4
NAME = "<candidate>"

Events = list[ev.Event]
OnReplay = Callable[[int, Counts], None]


class OutOfTime(Exception):
    """The budget is used up, or the user pressed Ctrl-C."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What one stage of the search did: its replays, and the size of the trace after it."""

    name: str
    replays: int
    size: Counts


@dataclass(kw_only=True, slots=True)
class Minimised:
    """A smaller trace with the same incident.

    Attributes:
        target: what was kept.
        number: of the incident in the original's report.
        stopped: `budget` or `interrupted` where the search did not come to its end.
        stages: in order; a stage that was not reached is missing.
    """

    header: ev.Header
    events: Events
    target: Finding
    number: int
    before: Counts
    after: Counts
    replays: int
    stopped: str | None
    stages: list[Stage] = field(default_factory=list)


def replay(
    header: ev.Header, events: Sequence[ev.Event], device: DeviceChoice, threads: int | None
) -> ReplayResult:
    """One replay as `kvcanary replay` does it on a CPU."""
    options = ReplayOptions(device=device, threads=threads, incremental=device.kind == "cpu")
    return run_replay(header, enumerate(events, 2), options, path=NAME)


class Search:
    """The best trace so far, and the test that a smaller one has to pass.

    Args:
        seconds: budget; None for none.
        should_stop: asked before each replay.
        on_replay: called after each replay with their number and the size of the best trace.

    Raises: InputError, UsageError from `choose`, where the trace does not have the incident.
    """

    def __init__(
        self,
        header: ev.Header,
        events: Events,
        number: int,
        *,
        path: str,
        device: DeviceChoice,
        threads: int | None = None,
        seconds: float | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        on_replay: OnReplay = lambda replays, size: None,
    ) -> None:
        self.header, self.events = header, events
        self.replays = 0
        self.stopped: str | None = None
        self._device, self._threads = device, threads
        self._should_stop, self._on_replay = should_stop, on_replay
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._size = counts_of(events)
        result = self._replay(header, events)
        self.originals = findings_of(result)
        self.target = choose(self.originals, number, path)
        self.names = _names(result, number)
        self.last_step = _last_step(result, number)

    def accept(self, events: Events, header: ev.Header | None = None) -> bool:
        """Try a smaller trace; it becomes the best one if it passes."""
        header = header or self.header
        if self._should_stop():
            self.stopped = "interrupted"
            raise OutOfTime
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.stopped = "budget"
            raise OutOfTime
        try:
            result = self._replay(header, events)
        except KvCanaryError:
            return False  # it takes something out that a later event needs
        if not keeps(result, self.target, self.originals):
            return False
        self.header, self.events = header, events
        self._size = counts_of(events)
        return True

    def _replay(self, header: ev.Header, events: Sequence[ev.Event]) -> ReplayResult:
        self.replays += 1
        result = replay(header, events, self._device, self._threads)
        self._on_replay(self.replays, self._size)
        return result


def minimise(search: Search, number: int) -> Minimised:
    """Run all stages until none of them helps any more, or the search is stopped."""
    before = counts_of(search.events)
    stages: list[Stage] = []
    try:
        for name, stage in STAGES:
            _run(search, name, stage, stages)
        for _ in range(MAX_ROUNDS):
            size = counts_of(search.events)
            for name, stage in AGAIN:
                _run(search, name, stage, stages)
            if counts_of(search.events) == size:
                break
    except OutOfTime:
        pass
    return Minimised(
        header=search.header,
        events=search.events,
        target=search.target,
        number=number,
        before=before,
        after=counts_of(search.events),
        replays=search.replays,
        stopped=search.stopped,
        stages=stages,
    )


def _run(search: Search, name: str, stage: Callable[[Search], None], stages: list[Stage]) -> None:
    begun = search.replays
    try:
        stage(search)
    finally:
        stages.append(Stage(name=name, replays=search.replays - begun, size=counts_of(search.events)))


def _end(search: Search) -> None:
    """Leave out what comes after the first failed check, or the last breach."""
    step = -1
    for index, event in enumerate(search.events):
        step += isinstance(event, ev.Forward)
        if step > search.last_step:
            search.accept(search.events[:index])
            return


def _requests(search: Search) -> None:
    """Those that the incident names and what they need first; then one after the other."""
    header, events = search.header, search.events
    owners = Owners(header)
    for event in events:
        owners.apply(event)
    near = owners.closure({name: "" for name in search.names if name != CACHE})
    search.accept(list(pick(header, events, near)))
    events = search.events
    actors = sorted(_actors(events))
    reduced(actors, lambda keep: search.accept(list(pick(header, events, keep))))


def _steps(search: Search) -> None:
    """Leave out forwards, and with each of them nothing else."""
    events = search.events
    places = [index for index, event in enumerate(events) if isinstance(event, ev.Forward)]
    others = set(range(len(events))) - set(places)
    reduced(places, lambda keep: search.accept(_at(events, others.union(keep))))


def _pool(search: Search) -> None:
    """A pool just large enough makes every later replay faster."""
    header = fitted(search.header, search.events)
    if header != search.header:
        search.accept(search.events, header)


def _events(search: Search) -> None:
    events = search.events
    reduced(list(range(len(events))), lambda keep: search.accept(_at(events, set(keep))))


def _fused(search: Search) -> None:
    """Make runs of forwards into one."""
    events = search.events
    places = places_of(events)

    def test(ends: list[int]) -> bool:
        smaller = fused(events, places, set(ends))
        return smaller is not None and search.accept(smaller)

    reduced(places[:-1], test)


def _lengths(search: Search) -> None:
    """Cut requests short, the longest first."""
    lengths = longest(search.header, search.events)
    for rid, length in sorted(lengths.items(), key=lambda item: (-item[1], item[0])):
        smallest(0, length, partial(_try_length, search, search.events, rid))


def _try_length(search: Search, events: Events, rid: str, length: int) -> bool:
    return search.accept(shortened(search.header, events, rid, length))


def _pages(search: Search) -> None:
    events, size = search.events, search.header.pool.page_size
    reduced(pages_of(events, size), lambda keep: search.accept(with_pages(events, keep, size)))


def _keys(search: Search) -> None:
    """Leave out times, and optional keys of all events at once."""
    if any(event.t is not None for event in search.events):  # type: ignore[union-attr]
        search.accept(without_times(search.events))
    for kind, keys in OPTIONAL:
        if any(type(event) is kind and getattr(event, keys[0]) is not None for event in search.events):
            search.accept(without(search.events, kind, keys))


STAGES: tuple[tuple[str, Callable[[Search], None]], ...] = (
    ("end", _end),
    ("requests", _requests),
    ("pool", _pool),
    ("steps", _steps),
    ("fused", _fused),
    ("events", _events),
    ("lengths", _lengths),
)
AGAIN = (
    ("fused", _fused),
    ("pages", _pages),
    ("keys", _keys),
    ("lengths", _lengths),
    ("events", _events),
    ("pool", _pool),
)


def _at(events: Events, places: set[int]) -> Events:
    return [events[index] for index in sorted(places)]


def _actors(events: Sequence[ev.Event]) -> set[str]:
    found: set[str] = set()
    for event in events:
        found.update(name for key in ("rid", "to", "by") if (name := getattr(event, key, None)))
    return found - {CACHE}


def _names(result: ReplayResult, number: int) -> set[str]:
    """Everybody whom an incident names."""
    if number > len(result.incidents):
        return set()
    incident = result.incidents[number - 1]
    found = {*incident.victims, *incident.readers}
    found.update(name for breach in incident.breaches for name in (breach.actor, *breach.victims) if name)
    if incident.writer is not None and incident.writer.name:
        found.add(incident.writer.name)
    if incident.facts is not None:
        found.update(holder.name for holder in incident.facts.holders)
        if incident.facts.previous is not None and incident.facts.previous.holder:
            found.add(incident.facts.previous.holder)
    return found


def _last_step(result: ReplayResult, number: int) -> int:
    """The step by which the incident is complete."""
    if number > len(result.incidents):
        return result.totals.steps
    incident = result.incidents[number - 1]
    steps = [breach.step for breach in incident.breaches]
    steps += [incident.seen.first.step] if incident.seen is not None else []
    return max(steps, default=result.totals.steps)
