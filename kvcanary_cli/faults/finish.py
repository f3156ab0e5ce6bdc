"""From what planters did to the answer sheet: steps, shadows and bystanders, seen in the finished stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvcanary_cli.faults.answers import Answer, Innocent, Range
from kvcanary_cli.faults.ownership import IntArray, Lane, Ownership
from kvcanary_cli.faults.stream import Cell, Fault
from kvcanary_cli.trace import events as ev


@dataclass(slots=True)
class _Watch:
    """One fault while the finished stream goes by.

    `damaged` are its slots that nobody has been given anew; `windows` their window slots, `shadow_windows`
    those of the shadows.
    """

    fault: Fault
    damaged: set[int]
    step: int | None = None
    found: int | None = None
    windows: set[int] = field(default_factory=set)
    shadows: set[int] = field(default_factory=set)
    shadow_windows: set[int] = field(default_factory=set)
    bystanders: set[str] | None = None

    def mark(self, cell: Cell, now: int) -> None:
        """Note the step of the fault, and of what gives it away."""
        if cell is self.fault.at:
            self.step = now
        if cell is self.fault.found:
            self.found = now

    def look(self, state: Ownership, lanes: Sequence[Lane], now: int) -> None:
        """What a forward after the damage reads of it."""
        party = {self.fault.rid, self.fault.writer, *self.fault.involved}
        is_first, self.bystanders = self.bystanders is None, self.bystanders or set()
        for lane in lanes:
            slots = state.row(lane.row, 0, lane.prefix + lane.count)
            seen = self._in_group(state, slots)
            bad = np.isin(seen, _array(self.damaged))
            shadow = np.flatnonzero(bad[:-1] & ~bad[1:]) + 1
            self._add_shadows(state, slots[shadow].tolist(), seen[shadow].tolist())
            if bad[: lane.prefix].any():
                self._notice(now)
            if is_first and lane.rid and lane.rid not in party and not bad.any():
                self.bystanders.add(lane.rid)

    def look_at_cache(self, state: Ownership, now: int) -> None:
        """What a sweep after the damage reads of it."""
        if self.fault.group == "swa":
            return
        for slot, (_, before) in state.cached.items():
            if slot in self.damaged:
                self._notice(now)
            elif before in self.damaged:
                self._add_shadows(state, [slot], [slot])

    def answer(self, last_step: int) -> Answer:
        """The answer, once the stream has gone by."""
        fault, named = self.fault, set(self.fault.slots)
        step = self.step if self.step is not None else last_step
        found = self.found if self.found is not None else last_step
        return Answer(
            kind=fault.kind,
            slots=ranges(named),
            rid=fault.rid,
            writer=fault.writer,
            step=step,
            found_by_step=max(found, step),
            innocent=Innocent(
                slots=ranges(self.shadows - named - {0}),
                window_slots=ranges(self.shadow_windows - self.windows - {0}),
                rids=sorted(self.bystanders or ()),
            ),
            damaged=fault.is_damaged,
            group=fault.group,
            window_slots=ranges(self.windows),
            side=ranges(fault.side),
            also=list(fault.also),
            variant=fault.variant,
        )

    def note_windows(self, state: Ownership) -> None:
        """The window slots of what is damaged, as they are at that time."""
        if self.fault.hits_window and self.fault.group == "full":
            self.windows = {state.swa_of[slot] for slot in self.damaged if slot in state.swa_of}

    def _in_group(self, state: Ownership, slots: IntArray) -> IntArray:
        if self.fault.group == "full":
            return slots
        return _array(state.swa_of.get(slot, 0) for slot in slots.tolist())

    def _notice(self, now: int) -> None:
        if self.found is None and self.fault.found is None:
            self.found = now

    def _add_shadows(self, state: Ownership, slots: list[int], seen: list[int]) -> None:
        self.shadows.update(seen)
        if self.fault.group == "full":
            self.shadow_windows.update(state.swa_of[slot] for slot in slots if slot in state.swa_of)


def answers_of(header: ev.Header, cells: Sequence[Cell], faults: Iterable[Fault]) -> list[Answer]:
    """Walk the finished stream once and write an answer for each fault."""
    watches = [_Watch(fault, set(fault.slots)) for fault in faults]
    state, steps = Ownership(header), 0
    for cell in cells:
        event = cell.event
        is_forward = isinstance(event, ev.Forward)
        lanes = state.lanes(event) if is_forward else []
        state.apply(event)
        now = steps if is_forward else max(0, steps - 1)
        steps += is_forward
        for watch in watches:
            watch.mark(cell, now)
            if cell is watch.fault.at:
                watch.note_windows(state)
            if watch.step is None:
                continue
            if is_forward:
                watch.look(state, lanes, now)
            elif isinstance(event, ev.Sweep):
                watch.look_at_cache(state, now)
            elif isinstance(event, ev.Alloc) and cell is not watch.fault.at:
                # whoever gets a slot anew writes it anew
                watch.damaged.difference_update(event.slots.tolist())
    return [watch.answer(max(0, steps - 1)) for watch in watches]


def ranges(slots: Iterable[int]) -> list[Range]:
    """Sorted, merged `[first, last]` pairs, both included."""
    pairs: list[Range] = []
    for slot in sorted({int(slot) for slot in slots}):
        if pairs and slot == pairs[-1][1] + 1:
            pairs[-1][1] = slot
        else:
            pairs.append([slot, slot])
    return pairs


def _array(slots: Iterable[int]) -> IntArray:
    return np.fromiter(slots, np.int64)
