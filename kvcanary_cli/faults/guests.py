"""Requests that planters add to a run: legal from their bind to their end, and over before anybody needs their room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.faults.lanes import has_room, with_lane, with_slots
from kvcanary_cli.faults.ownership import IntArray
from kvcanary_cli.faults.stream import Cell, Stream
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
