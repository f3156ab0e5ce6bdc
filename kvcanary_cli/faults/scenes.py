"""Stretches of a run with room for guests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary_cli.faults.guests import Guest
from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.stream import Cell, NotApplicable, Stream
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.tokens import VOCABULARY


@dataclass(kw_only=True, slots=True)
class Scene:
    """A stretch of the run with room for guests.

    Attributes:
        steps: forwards of the stretch; guests come before the first and are gone after the last.
        units: free slots, by unit, that nobody else gets in that time; in random order.
        windows: free window slots, likewise; empty without a window group.
    """

    stream: Stream
    steps: list[Step]
    units: list[list[int]]
    windows: list[int]

    @property
    def cells(self) -> list[Cell]:
        """The forwards."""
        return [self.stream.cell(step) for step in self.steps]

    def before(self, *events: ev.Event) -> list[Cell]:
        """Put events before the first forward."""
        return self.stream.before(self.cells[0], *events)

    def after(self, *events: ev.Event) -> list[Cell]:
        """Put events after the last forward."""
        return self.stream.after(self.cells[-1], *events)

    def take(self, units: int) -> list[int]:
        """Slots of so many further units, in order."""
        taken, self.units = self.units[:units], self.units[units:]
        return [slot for unit in taken for slot in unit]

    def take_windows(self, count: int) -> list[int]:
        """So many further window slots; none without a window group."""
        taken, self.windows = self.windows[:count], self.windows[count:]
        return taken

    def guest(
        self,
        name: str,
        units: int = 0,
        *,
        own: Sequence[int] = (),
        shared: Sequence[int] = (),
        tokens: Sequence[int] = (),
        row: int | None = None,
    ) -> Guest:
        """A guest that has not entered yet.

        Args:
            units: how many free units it gets, after the slots of `own`.
            shared: slots that its row begins with.
            tokens: its first tokens; the others are drawn.
            row: its row; None: one without a request.
        """
        stream = self.stream
        own = [*own, *self.take(units)]
        total = len(shared) + len(own) + stream.header.token_position_offset
        made = [stream.rng.randrange(VOCABULARY) for _ in range(total - len(tokens))]
        guest = Guest(
            stream=stream,
            rid=stream.new_name(name),
            row=row or stream.spare_row(self.steps[0].index, self.steps[-1].index),
            tokens=[*tokens, *made][:total],
            own=own,
            shared=list(shared),
            windows=self.take_windows(len(own)),
        )
        stream.guests.append(guest)
        return guest


def room(stream: Stream, state: Ownership, steps: Sequence[Step], units: int) -> Scene | None:
    """A scene over these forwards with so many units, None where there is not enough; `state` is at the first."""
    begin, end = steps[0].index, steps[-1].index
    found = free_units(stream, state, begin, end)
    windows = free_windows(stream, state, begin, end) if stream.has_window else []
    if len(found) < units or (stream.has_window and len(windows) < units * stream.unit):
        return None
    shuffled = stream.rng.sample(found, len(found))
    return Scene(stream=stream, steps=list(steps), units=shuffled, windows=windows)


def find_scene(
    stream: Stream,
    units: int,
    *,
    steps: int = 3,
    columns: int = 3,
    fits: Callable[[Scene, Ownership], bool] = lambda scene, state: True,
    lack: str | None = None,
) -> Scene:
    """A random stretch of `steps` forwards with room for guests of so many units together.

    Args:
        columns: units that the longest guest's row names.
        fits: what else the stretch must have, seen at its begin; `lack` says what it is.

    Raises: NotApplicable when the pool is too full everywhere, or its rows too narrow.
    """
    check_width(stream, min(units, columns))
    all_steps = stream.survey.steps

    def look(step: Step, state: Ownership) -> list[Scene]:
        found = room(stream, state, all_steps[step.number : step.number + steps], units)
        return [found] if found is not None and fits(found, state) else []

    slots = units * stream.unit
    reason = lack or f"it nowhere has {slots} slots that stay free for {steps} forwards"
    return stream.pick(stream.middle(), look, reason)[1]


def check_width(stream: Stream, units: int) -> None:
    """Raise NotApplicable if a row can't name so many units."""
    if units * stream.unit > stream.header.pool.row_width:
        width = stream.header.pool.row_width
        raise NotApplicable(f"rows of {units * stream.unit} columns are needed, they have {width}")


def free_units(stream: Stream, state: Ownership, begin: int, end: int) -> list[list[int]]:
    """Units of free slots that nobody else gets between places `begin` and `end`, in slot order."""
    taken = _named(stream, begin, end, ev.Alloc, "slots")
    flat = _whole_pages(state.free - stream.used - taken, stream.header.pool.page_size)
    return [flat[at : at + stream.unit] for at in range(0, len(flat) - stream.unit + 1, stream.unit)]


def free_windows(stream: Stream, state: Ownership, begin: int, end: int) -> list[int]:
    """Window slots, in whole pages, to which nothing is mapped between two places."""
    taken = _named(stream, begin, end, ev.SwaMap, "swa")
    return _whole_pages(state.window_free - taken, stream.header.pool.page_size)


def _named(stream: Stream, begin: int, end: int, kind: type, key: str) -> set[int]:
    """Slots that events of a kind name between two places."""
    named: set[int] = set()
    for cell in stream.cells[begin : end + 1]:
        if type(cell.event) is kind:
            named.update(getattr(cell.event, key).tolist())
    return named


def _whole_pages(slots: set[int], size: int) -> list[int]:
    """Those whose whole page is among them, ascending."""
    ordered = np.sort(np.fromiter(slots, np.int64, len(slots)))
    pages, counts = np.unique(ordered // size, return_counts=True)
    whole: list[int] = ordered[np.isin(ordered // size, pages[counts == size])].tolist()
    return whole
