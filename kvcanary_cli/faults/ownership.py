"""Who holds what after each event of a stream: just enough ownership to find a place for damage.

It believes what the events say and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary_cli.sim.tokens import own_tokens
from kvcanary_cli.trace import events as ev

IntArray = npt.NDArray[np.int64]

CACHE = "cache"
CHAIN_HEAD = -1
UNKNOWN_BEFORE = 0
_UNKNOWN_TOKEN = -1


@dataclass(slots=True)
class Lane:
    """One live lane of a forward: `count` tokens of `rid` after `prefix`, the first at flat index `first`."""

    rid: str
    row: int
    prefix: int
    count: int
    first: int
    index: int


class Ownership:
    """State of rows, holders and the prefix cache after the events fed so far.

    Attributes:
        rows, row_of: request of each bound row, row of each bound request.
        length: tokens of each request, as its last forward, share or delivery left it.
        holders: names that hold each full slot; an absent or empty set is nobody.
        free: full slots that are known to be free.
        cached: position and slot before it (-1: head, 0: unknown) of each slot in the prefix cache.
        content: request and position that a forward last wrote to each slot since it was allocated.
        swa_of: window slot of each full slot that has one.
        window_free: window slots to which nothing is mapped.
    """

    def __init__(self, header: ev.Header) -> None:
        self.page_size = header.pool.page_size
        self.width = header.pool.row_width
        self.rows: dict[int, str] = {}
        self.row_of: dict[str, int] = {}
        self.length: dict[str, int] = {}
        self.holders: dict[int, set[str]] = {}
        self.cached: dict[int, tuple[int, int]] = {}
        self.content: dict[int, tuple[str, int]] = {}
        self.swa_of: dict[int, int] = {}
        self._window_users: dict[int, int] = {}
        self._table: dict[int, IntArray] = {}
        self._truth: dict[str, IntArray] = {}
        is_known = header.state == "empty" and header.continues is None
        self.free: set[int] = set(range(self.page_size, header.pool.slots)) if is_known else set()
        has_window = header.group("swa") is not None and header.group("full") is not None
        windows = range(self.page_size, header.num_slots("swa")) if has_window and is_known else range(0)
        self.window_free: set[int] = set(windows)

    def apply(self, event: ev.Event) -> None:
        """Go one event on."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def row(self, row: int, start: int = 0, stop: int | None = None) -> IntArray:
        """Slots that columns `[start, stop)` of a row name, mapped since its bind; 0 where nothing is."""
        stop = self.width if stop is None else stop
        found = self._table.get(row, _NOTHING)[start:stop]
        return np.concatenate((found, np.zeros(stop - start - found.size, np.int64)))

    def slots_of(self, rid: str, start: int = 0, stop: int | None = None) -> IntArray:
        """Slots of a bound request at positions `[start, stop)`, by default all that it has written."""
        stop = self.length.get(rid, 0) if stop is None else stop
        return self.row(self.row_of[rid], start, max(stop, start))

    def holders_of(self, slot: int) -> set[str]:
        """Names that hold a slot."""
        return self.holders.get(slot, set())

    def tokens(self, rid: str, start: int, stop: int) -> list[int]:
        """Ids of a request at positions `[start, stop)`: its truth, else the trace format's rule."""
        found = own_tokens(rid, start, stop, seed=0)
        known = self._truth.get(rid, _NOTHING)[start:stop]
        is_known = known != _UNKNOWN_TOKEN
        found[: known.size][is_known] = known[is_known]
        return [int(token) for token in found]

    def lanes(self, forward: ev.Forward) -> list[Lane]:
        """The live lanes of a forward; lanes of rows without a request have an empty `rid`."""
        lens = forward.lens if forward.lens is not None else [1] * len(forward.rows)
        found, first = [], 0
        for index, (row, prefix, count) in enumerate(zip(forward.rows, forward.prefix, lens, strict=True)):
            if row:
                found.append(Lane(self.rows.get(row, ""), row, prefix, count, first, index))
            first += count
        return found

    def lane_slots(self, forward: ev.Forward, lane: Lane) -> IntArray:
        """Slots that a lane writes: as given, else the row's."""
        if forward.slots is not None:
            return np.asarray(forward.slots[lane.first : lane.first + lane.count], np.int64)
        return self.row(lane.row, lane.prefix, lane.prefix + lane.count)

    def _hold(self, name: str, slots: IntArray) -> None:
        for slot in slots.tolist():
            self.holders.setdefault(slot, set()).add(name)
            self.free.discard(slot)

    def _release(self, name: str, slots: IntArray) -> None:
        for slot in slots.tolist():
            names = self.holders.get(slot)
            if names is not None:
                names.discard(name)
            if not names and slot >= self.page_size:
                self.free.add(slot)

    def _write_row(self, row: int, at: int, slots: IntArray) -> None:
        """Columns past the row's width go to the next row, as in memory."""
        inside = max(min(slots.size, self.width - at), 0)
        if inside < slots.size:
            self._write_row(row + 1, max(at - self.width, 0), slots[inside:])
        if not inside:
            return
        held = self._table.get(row, _NOTHING)
        if at + inside > held.size:
            grown = np.zeros(min(max(at + inside, 2 * held.size, 64), self.width), np.int64)
            grown[: held.size] = held
            self._table[row] = held = grown
        held[at : at + inside] = slots[:inside]

    def _bind(self, event: ev.Bind) -> None:
        self._unbind(event)
        old = self.row_of.pop(event.rid, None)
        if old is not None:
            self.rows.pop(old, None)
        self.rows[event.row] = event.rid
        self.row_of[event.rid] = event.row
        self.length[event.rid] = 0
        self._table[event.row] = np.zeros(0, np.int64)

    def _unbind(self, event: ev.Bind | ev.Unbind) -> None:
        rid = self.rows.pop(event.row, None)
        if rid is not None:
            self.row_of.pop(rid, None)

    def _move(self, event: ev.Move) -> None:
        old = self.row_of.get(event.rid)
        length = self.length.get(event.rid, 0)
        table = self._table.get(old, _NOTHING) if old is not None else _NOTHING
        if old is not None:
            self.rows.pop(old, None)
        self._bind(ev.Bind(row=event.row, rid=event.rid))
        self._table[event.row] = table.copy()
        self.length[event.rid] = length

    def _truth_event(self, event: ev.Truth) -> None:
        stop = event.at + len(event.tokens)
        held = self._truth.get(event.rid, _NOTHING)
        if stop > held.size:
            grown = np.full(stop, _UNKNOWN_TOKEN, np.int64)
            grown[: held.size] = held
            self._truth[event.rid] = held = grown
        held[event.at : stop] = event.tokens

    def _alloc(self, event: ev.Alloc) -> None:
        if event.group == "swa":
            return
        self._hold(event.to, event.slots)
        for slot in event.slots.tolist():
            self.content.pop(slot, None)

    def _share(self, event: ev.Share) -> None:
        self._hold(event.rid, event.slots)
        if event.rid in self.row_of:
            self._write_row(self.row_of[event.rid], event.at, event.slots)
        self.length[event.rid] = max(self.length.get(event.rid, 0), event.at + event.slots.size)

    def _publish(self, event: ev.Publish) -> None:
        before = event.after
        if before is None:
            row = self.row_of.get(event.rid) if event.rid is not None else None
            known = int(self.row(row, event.at - 1, event.at)[0]) if row is not None and event.at else 0
            before = known if event.at else CHAIN_HEAD
        self._hold(CACHE, event.slots)
        for position, slot in enumerate(event.slots.tolist(), event.at):
            self.cached.setdefault(slot, (position, before))
            before = slot

    def _free(self, event: ev.Free) -> None:
        if event.group == "full":
            self._release(event.by, event.slots)

    def _evict(self, event: ev.Evict) -> None:
        if event.group == "swa" and self.swa_of:
            return
        self._release(CACHE, event.slots)
        for slot in event.slots.tolist():
            self.cached.pop(slot, None)

    def _swa_map(self, event: ev.SwaMap) -> None:
        for full, swa in zip(event.full.tolist(), event.swa.tolist(), strict=True):
            old = self.swa_of.pop(full, None)
            if old is not None:
                self._window_users[old] -= 1
                if not self._window_users[old]:
                    self.window_free.add(old)
            if swa:
                self.swa_of[full] = swa
                self._window_users[swa] = self._window_users.get(swa, 0) + 1
                self.window_free.discard(swa)

    def _forward(self, event: ev.Forward) -> None:
        for lane in self.lanes(event):
            slots = self.lane_slots(event, lane)
            mapped = self.row(lane.row, lane.prefix, lane.prefix + lane.count)
            fresh = np.where((mapped == 0) & (slots >= 0), slots, mapped)
            self._write_row(lane.row, lane.prefix, fresh)
            for position, slot in enumerate(slots.tolist(), lane.prefix):
                self.content[slot] = (lane.rid, position)
            kept = event.accepted[lane.index] if event.accepted is not None else lane.count
            self.length[lane.rid] = lane.prefix + kept

    def _xfer(self, event: ev.Xfer) -> None:
        if event.op == "done" and event.rid in self.row_of and event.slots is not None:
            self.length[event.rid] = event.at + event.slots.size

    def _gap(self, event: ev.Gap) -> None:
        """What is free, cached or mapped is unknown until events say it again."""
        for memory in (self.rows, self.row_of, self.holders, self.cached, self.content, self.swa_of):
            memory.clear()  # type: ignore[attr-defined]
        self._window_users.clear()
        self.free.clear()
        self.window_free.clear()


_NOTHING = np.zeros(0, np.int64)
_HANDLERS: dict[type, Callable[[Ownership, Any], None]] = {
    ev.Bind: Ownership._bind,
    ev.Unbind: Ownership._unbind,
    ev.Move: Ownership._move,
    ev.Truth: Ownership._truth_event,
    ev.Alloc: Ownership._alloc,
    ev.Hold: lambda state, event: state._hold(event.to, event.slots),
    ev.Share: Ownership._share,
    ev.Publish: Ownership._publish,
    ev.Free: Ownership._free,
    ev.Evict: Ownership._evict,
    ev.Map: lambda state, event: state._write_row(event.row, event.at, event.slots),
    ev.SwaMap: Ownership._swa_map,
    ev.Forward: Ownership._forward,
    ev.Xfer: Ownership._xfer,
    ev.Gap: Ownership._gap,
}
