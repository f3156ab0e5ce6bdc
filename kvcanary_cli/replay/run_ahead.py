"""Events on their way to the replay: stretches of plain decode steps run on the device before the replay sees them.

The replay follows every event in order and by the same code either way. What a stretch changes is when kernels run:
for all of its steps at once, while the next events are read. A stretch that finds anything is undone and its
forwards run when their turn comes, so that rows of the log are joined with the host's state of their own step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from kvcanary_cli.replay.forwards import default_lane_tokens
from kvcanary_cli.replay.state import RunState
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.stretch import Stretch, StretchPlanner
from kvcanary_cli.trace import events as ev

GRAIN = 8
"""Stretches have a multiple of this many steps, so that few shapes are captured as graphs."""

MAX_LANES = 4096

PAUSE = 256
"""Forwards that run one by one after a stretch was undone: damage is seen again at every step."""

MOST_EVENTS = 256
"""Events that are read at a time where there is nothing to run ahead."""

_HOST_ONLY = (ev.Alloc, ev.Free, ev.Hold, ev.Publish, ev.Evict)  # neither table nor device memory changes

_Numbered = tuple[int, ev.Event]


class RunAhead:
    """Hands events on, after the device ran the stretches among them.

    Args:
        runtime, state: of the replay that takes the events; between two events they stand where it left them.
        steps_until_sweep: forwards until the replay sweeps of its own accord; None: it never does.
    """

    def __init__(
        self, runtime: Runtime, state: RunState, steps_until_sweep: Callable[[], int | None]
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._until_sweep = steps_until_sweep
        self._planner = StretchPlanner(runtime.layout, state.table, state.swa_map)
        self._pause = 0

    def events(self, source: Iterable[_Numbered]) -> Iterator[_Numbered]:
        """All events of `source` in order; an error that it raises comes after those read before it."""
        reading = _Reading(source, self._runtime.max_stretch)
        batch = reading.batch()
        while batch:
            stretch = self._stretch(batch)
            if stretch is not None:
                self._runtime.start_stretch(stretch)
            following = reading.batch()  # lines are decoded while the device works
            if stretch is not None and not self._runtime.end_stretch():
                self._pause = PAUSE
            yield from batch
            batch = following
        if reading.error is not None:
            raise reading.error

    def _stretch(self, batch: list[_Numbered]) -> Stretch | None:
        """The stretch that a batch begins with, if the device may run it now."""
        forwards = [event for _, event in batch if isinstance(event, ev.Forward)]
        if self._pause > 0:
            self._pause -= len(forwards)
            return None
        limit = self._until_sweep()
        most = len(forwards) if limit is None else min(len(forwards), limit)
        most -= most % GRAIN
        if most == 0 or self._state.has_gap or not _is_plain(forwards[0]):
            return None
        return self._plan(forwards[:most])

    def _plan(self, forwards: list[ev.Forward]) -> Stretch | None:
        state, first = self._state, forwards[0]
        rows = np.array(first.rows, np.int64)
        prefix = np.array([event.prefix for event in forwards], np.int64)
        if first.tokens is not None:
            tokens = np.array([event.tokens for event in forwards], np.int64)
        else:
            every = np.tile(rows, len(forwards))
            tokens = default_lane_tokens(state, every, np.ones_like(every), prefix.reshape(-1))
        return self._planner.plan(
            rows,
            prefix,
            tokens.reshape(prefix.shape),
            np.array([event.slots for event in forwards], np.int64),
            valid_lens=state.expected.row_lens[rows] if state.expected.is_used else None,
            chain_positions=first.chain_positions,
        )


class _Reading:
    """Events in batches: the forwards of one stretch with what lies between them, or others.

    Attributes:
        error: what the source raised, after which there are no more batches.
    """

    def __init__(self, source: Iterable[_Numbered], most_steps: int) -> None:
        self._source = iter(source)
        self._most_steps = most_steps
        self._next: _Numbered | None = None
        self.error: Exception | None = None

    def batch(self) -> list[_Numbered]:
        """The next events, at least one as long as there are any."""
        batch: list[_Numbered] = []
        first: ev.Forward | None = None
        steps, has_others = 0, False
        while (numbered := self._take()) is not None:
            event = numbered[1]
            if isinstance(event, ev.Forward) and _is_plain(event):
                if has_others or (first is not None and not _continues(event, first)):
                    self._next = numbered
                    break
                first = event
                steps += 1
            elif not isinstance(event, _HOST_ONLY):
                if first is not None:
                    self._next = numbered
                    break
                has_others = True
            batch.append(numbered)
            if steps == self._most_steps or (has_others and len(batch) == MOST_EVENTS):
                break
        return batch

    def _take(self) -> _Numbered | None:
        if self._next is not None:
            numbered, self._next = self._next, None
            return numbered
        if self.error is not None:
            return None
        try:
            return next(self._source, None)
        except Exception as error:
            self.error = error
            return None


def _is_plain(event: ev.Forward) -> bool:
    """Whether a forward is a decode step of which the trace says nothing unusual."""
    return (
        event.slots is not None
        and event.lens is None
        and event.positions is None
        and event.expect is None
        and event.accepted is None
        and event.pad_writes is None
        and bool(event.rows)
        and event.rows[-1] != 0
        and len(event.rows) <= MAX_LANES
    )


def _continues(event: ev.Forward, first: ev.Forward) -> bool:
    """Whether a plain forward may stand in one stretch with another; prefixes are compared later."""
    return (
        event.rows == first.rows
        and (event.tokens is None) == (first.tokens is None)
        and event.chain_positions == first.chain_positions
    )
