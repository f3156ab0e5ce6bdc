"""Requests that planters add to a run: legal from their bind to their end, and over before anybody needs their room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.faults.lanes import has_room, with_lane, with_slots
from kvcanary_cli.faults.ownership import IntArray, Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.stream import Cell, NotApplicable, Stream
from kvcanary_cli.sim.tokens import VOCABULARY
from kvcanary_cli.trace import events as ev

Put = Callable[..., list[Cell]]


def array(slots: Sequence[int]) -> IntArray:
    """Slots as events hold them."""
    return np.array(slots, np.int64)


@dataclass(kw_only=True, slots=True)
class Guest:
    """One added request.

    Attributes:
        tokens: what it really has, one for each of its columns (and `token_position_offset` more).
        shared: leading slots of its row that others hold too.
        own: slots that it allocates, whole pages; they follow the shared ones in its row.
        windows: window slots of `own`, empty without a window group.
        length: tokens written so far.
        cells: its events by name: bind, truth, share, alloc, windows, map, close, free, unbind, end.
        forwards: the forwards that it has a lane in.
    """

    stream: Stream
    rid: str
    row: int
    tokens: list[int]
    own: list[int]
    shared: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    length: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)
    forwards: list[Cell] = field(default_factory=list)

    @property
    def slots(self) -> list[int]:
        """Slots of its row, by column."""
        return [*self.shared, *self.own]

    def enter(self, put: Put) -> None:
        """Bind, tell the tokens, share and allocate, and map what was allocated."""
        self.cells["bind"], self.cells["truth"] = put(
            ev.Bind(row=self.row, rid=self.rid), ev.Truth(rid=self.rid, at=0, tokens=self.tokens)
        )
        if self.shared:
            (self.cells["share"],) = put(ev.Share(rid=self.rid, at=0, slots=array(self.shared)))
            self.length = len(self.shared)
        if not self.own:
            return
        (self.cells["alloc"],) = put(ev.Alloc(to=self.rid, slots=array(self.own)))
        if self.windows:
            (self.cells["windows"],) = put(ev.SwaMap(full=array(self.own), swa=array(self.windows)))
        (self.cells["map"],) = put(ev.Map(row=self.row, at=len(self.shared), slots=array(self.own)))

    def forward(self, put: Put, count: int, **more: object) -> Cell:
        """Write its next tokens in a forward of its own, or in several where the write plan has too few entries.

        Returns: the last of them.
        """
        limit = (self.stream.header.capacities or ev.Capacities()).write_entry_capacity or count
        while count > limit:
            self.forward(put, limit, **more)
            count -= limit
        stop = self._advance(count)
        forward = ev.Forward(
            mode="extend" if count > 1 else "decode",
            rows=[self.row],
            prefix=[stop - count],
            lens=[count],
            slots=array(self.slots[stop - count : stop]),
        )
        self.forwards += put(replace(forward, **more))
        return self.forwards[-1]

    def decode(self, cell: Cell, count: int = 1) -> Cell:
        """Write its next tokens in a forward of the trace, or where that has no room in one right after it."""
        if not has_room(self.stream.header, cell.event, count=count, prefix=self.length):
            return self.forward(lambda *events: self.stream.after(cell, *events), count)
        self.join(cell, count)
        return cell

    def join(self, cell: Cell, count: int) -> None:
        """Write its next tokens in a forward of the trace, whether that has room or not."""
        start, stop = self.length, self._advance(count)
        offset = self.stream.header.token_position_offset
        cell.event = with_lane(
            cell.event,
            row=self.row,
            prefix=start,
            tokens=self.tokens[start + offset : stop + offset],
            slots=self.slots[start:stop],
        )
        self.forwards.append(cell)

    def _advance(self, count: int) -> int:
        """Make the guest so many tokens longer; its new length."""
        self.length += count
        if self.length > len(self.slots):
            raise PhaseError(f"guest {self.rid} writes {self.length} tokens into {len(self.slots)} slots")
        return self.length

    def leave(self, put: Put, why: str = "cancel") -> None:
        """Give up everything and end."""
        if self.windows:
            zeros = np.zeros(len(self.own), np.int64)
            (self.cells["close"],) = put(ev.SwaMap(full=array(self.own), swa=zeros))
        (self.cells["free"],) = put(ev.Free(by=self.rid, slots=array(self.slots)))
        self.cells["unbind"], self.cells["end"] = put(
            ev.Unbind(row=self.row),
            ev.End(rid=self.rid, why=why),  # type: ignore[arg-type]
        )

    def swap_slots(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Name other slots in everything that it has told so far; they keep what window slots they have."""
        to = dict(zip(old, new, strict=True))
        self.own = [to.get(slot, slot) for slot in self.own]
        for cell in [self.cells[name] for name in ("alloc", "map", "free") if name in self.cells]:
            cell.event = replace(cell.event, slots=array([to.get(s, s) for s in cell.event.slots.tolist()]))
        for cell in self.forwards:
            if cell.event.slots is not None:
                first, count = self._lane(cell.event)
                slots = cell.event.slots.copy()
                slots[first : first + count] = [to.get(s, s) for s in slots[first : first + count].tolist()]
                cell.event = replace(cell.event, slots=slots)
        for cell in [self.cells[name] for name in ("windows", "close") if name in self.cells]:
            stays = ~np.isin(cell.event.full, array(old))
            if stays.any():
                cell.event = replace(cell.event, full=cell.event.full[stays], swa=cell.event.swa[stays])
            else:
                self.stream.drop(cell)

    def redirect(self, cell: Cell, slots: Sequence[int]) -> None:
        """Let its lane of a forward write to other slots than its row names."""
        event = cell.event
        if event.slots is None:
            event = with_slots(event, self.stream.state_before(cell), self._guest_slots())
        first, count = self._lane(event)
        changed = event.slots.copy()
        changed[first : first + count] = slots
        cell.event = replace(event, slots=changed)

    def _guest_slots(self) -> dict[int, list[int]]:
        return {guest.row: guest.slots for guest in self.stream.guests if isinstance(guest, Guest)}

    def _lane(self, forward: ev.Forward) -> tuple[int, int]:
        """Flat index of its first token in a forward, and how many it has."""
        lens = forward.lens if forward.lens is not None else [1] * len(forward.rows)
        index = forward.rows.index(self.row)
        return sum(lens[:index]), lens[index]


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
