"""Whose slots the events of a trace touch: the owner of every slot, and which requests can't be told apart from others.

An *actor* is a request, `cache`, or a transfer `xfer:ID`. The owner of a slot is the actor to whom it was allocated
last, also after its release; where no allocation was recorded, the first to touch it. `needs[a]` are the actors
without whom the events of `a` would mean something else: the owners of what `a` reads, and, where somebody touches
what he does not hold, both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary_cli.trace import events as ev

IntArray = npt.NDArray[np.int64]

CACHE = "cache"
NOBODY = ""


class Owners:
    """Follows a stream one event at a time; it believes what the events say.

    Attributes:
        owner: owner of each slot, by group and slot.
        holders: actors that hold each full slot.
        needs: what each actor can't do without, see the module.
        row_rid, rid_row: requests of rows now, and rows of requests.
        former: who had each row before.
    """

    def __init__(self, header: ev.Header) -> None:
        self.width = header.pool.row_width
        self.maps_window = header.group("swa") is not None and header.group("full") is not None
        self.owner: dict[tuple[str, int], str] = {}
        self.holders: dict[int, set[str]] = {}
        self.needs: dict[str, set[str]] = defaultdict(set)
        self.row_rid: dict[int, str] = {}
        self.rid_row: dict[str, int] = {}
        self.former: dict[int, str] = {}
        self._cells: dict[int, IntArray] = {}
        self._stale: dict[int, IntArray] = {}
        self._naming: dict[int, set[str]] = defaultdict(set)
        self._early: dict[str, list[tuple[int, IntArray]]] = defaultdict(list)
        self._stored: dict[str, set[str]] = {}
        self._window: dict[int, int] = {}
        self._by_window: dict[int, int] = {}
        self._transfers: dict[str, tuple[str, str, IntArray]] = {}

    def apply(self, event: Any) -> None:
        """Go one event on."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def owner_of(self, slot: int, group: str = "full") -> str:
        """Owner of a slot, "" when it never had one."""
        return self.owner.get((group if self.maps_window else "full", slot), NOBODY)

    def rid_of(self, row: int) -> str:
        """The request for whom a row's forward acts: its own, else the one that had it before."""
        return self.row_rid.get(row) or self.former.get(row, NOBODY)

    def transfer_of(self, event: ev.Xfer) -> str:
        """The request that a delivery is for, else its own name as a holder."""
        rid = event.rid or self._transfers.get(event.id, (NOBODY,))[0]
        return rid or f"xfer:{event.id}"

    def live(self) -> set[str]:
        """Owners of everything that somebody holds or that a row in use names, and the requests of rows."""
        found = {self.owner_of(slot) for slot, names in self.holders.items() if names}
        found.update(name for names in self.holders.values() for name in names)
        found.update(self.row_rid.values())
        for row in self.row_rid:
            found.update(self.owner_of(slot) for slot in self._row(row).tolist() if slot)
        return found - {NOBODY}

    def closure(self, seeds: Mapping[str, str]) -> dict[str, str]:
        """The seeds and all that they need, and what these need; each with the reason why it is there."""
        found = dict(seeds)
        pending = sorted(found)
        for actor in pending:
            for other in sorted(self.needs.get(actor, ())):
                if other not in found:
                    found[other] = f"its slots and those of {actor} belong together"
                    pending.append(other)
        return found

    def _tie(self, one: str, other: str) -> None:
        if one != other and one and other:
            self.needs[one].add(other)
            self.needs[other].add(one)

    def _need(self, actor: str, other: str) -> None:
        if actor != other and actor and other:
            self.needs[actor].add(other)

    def _touch(self, actor: str, slots: IntArray, group: str = "full", *, writes: bool = False) -> None:
        """`actor` reads slots, or writes what it may not hold."""
        group = group if self.maps_window else "full"
        for slot in slots.tolist():
            if slot <= 0:
                continue
            owner = self.owner.setdefault((group, slot), actor or NOBODY)
            if owner == actor:
                continue
            if writes:
                self._tie(actor, owner)
                for name in self.holders.get(slot, ()) if group == "full" else ():
                    self._tie(actor, name if name != CACHE else owner)
            else:
                self._need(actor, owner)

    def _row(self, row: int) -> IntArray:
        return self._cells.get(row, _NONE)

    def _name(self, row: int, at: int, slots: IntArray, actor: str) -> None:
        """Columns of a row name these slots now; past its last column the next row's do."""
        inside = max(min(slots.size, self.width - at), 0)
        if inside < slots.size:
            beyond = row + 1
            self._tie(actor, self.rid_of(beyond))
            self._name(beyond, max(at - self.width, 0), slots[inside:], actor)
        if not inside:
            return
        cells = self._row(row)
        if at + inside > cells.size:
            grown = np.zeros(min(max(at + inside, 2 * cells.size, 64), self.width), np.int64)
            grown[: cells.size] = cells
            self._cells[row] = cells = grown
        cells[at : at + inside] = slots[:inside]
        rid = self.row_rid.get(row, NOBODY)
        for slot in slots[:inside].tolist():
            if slot > 0:
                self._naming[slot].add(rid)
        self._touch(rid or actor, slots[:inside])

    def _leave_row(self, row: int) -> None:
        rid = self.row_rid.pop(row, None)
        if rid is not None:
            self.rid_row.pop(rid, None)
            self.former[row] = rid
            for slot in self._row(row).tolist():
                self._naming[slot].discard(rid)

    def bind(self, event: ev.Bind) -> None:
        self._tie(event.rid, self.row_rid.get(event.row, NOBODY))
        self._leave_row(event.row)
        if event.rid in self.rid_row:
            self._leave_row(self.rid_row[event.rid])
        self.row_rid[event.row], self.rid_row[event.rid] = event.rid, event.row
        old = self._cells.pop(event.row, _NONE)
        left = self._stale.get(event.row, _NONE)
        if old.size or left.size:
            both = np.zeros(max(old.size, left.size), np.int64)
            both[: left.size] = left
            both[: old.size] = np.where(old != 0, old, both[: old.size])
            self._stale[event.row] = both
        for at, slots in self._early.pop(event.rid, ()):
            self._name(event.row, at, slots, event.rid)

    def unbind(self, event: ev.Unbind) -> None:
        self._leave_row(event.row)

    def move(self, event: ev.Move) -> None:
        old = self.rid_row.get(event.rid)
        cells = self._row(old).copy() if old is not None else _NONE
        self.bind(ev.Bind(row=event.row, rid=event.rid))
        if cells.size:
            self._name(event.row, 0, cells, event.rid)

    def alloc(self, event: ev.Alloc) -> None:
        group = event.group if self.maps_window else "full"
        for slot in event.slots.tolist():
            if group == "full":
                names = self.holders.get(slot) or ()
                for name in (*names, *self._naming.get(slot, ())):
                    self._tie(event.to, self.owner_of(slot) if name == CACHE else name)
                if names:
                    self._tie(event.to, self.owner_of(slot))
                self.holders[slot] = {event.to}
            self.owner[group, slot] = event.to

    def hold(self, event: ev.Hold) -> None:
        self._join(event.to, event.slots)

    def share(self, event: ev.Share) -> None:
        self._join(event.rid, event.slots)
        row = self.rid_row.get(event.rid)
        if row is None:
            self._early[event.rid].append((event.at, event.slots))
        else:
            self._name(row, event.at, event.slots, event.rid)

    def publish(self, event: ev.Publish) -> None:
        actor = event.rid or NOBODY
        for slot in event.slots.tolist():
            owner = self.owner.setdefault(("full", slot), actor or CACHE)
            if CACHE not in self.holders.get(slot, ()):
                # who puts a slot of somebody else into the cache can't be left out with the entry staying
                self._tie(actor, owner)
            self.holders.setdefault(slot, set()).add(CACHE)
        self._touch(actor, event.slots)
        before = event.after
        if before is not None:
            for slot in event.slots[:1].tolist():
                self._need(self.owner_of(slot), self.owner_of(before))
        # a cached chain needs the slots before each of its own
        for one, two in pairwise(event.slots.tolist()):
            self._need(self.owner_of(two), self.owner_of(one))

    def _join(self, actor: str, slots: IntArray) -> None:
        self._touch(actor, slots)
        for slot in slots.tolist():
            self.holders.setdefault(slot, set()).add(actor)

    def free(self, event: ev.Free) -> None:
        self._release(event.by, event.slots, event.group)

    def evict(self, event: ev.Evict) -> None:
        self._release(CACHE, event.slots, event.group)

    def _release(self, actor: str, slots: IntArray, group: str) -> None:
        if self.maps_window and group == "swa":
            self._touch(actor if actor != CACHE else NOBODY, slots, "swa", writes=True)
            return
        for slot in slots.tolist():
            names = self.holders.setdefault(slot, set())
            if actor in names:
                names.discard(actor)
            elif actor != CACHE:
                self._touch(actor, np.array([slot]), writes=True)

    def map(self, event: ev.Map) -> None:
        rid = self.row_rid.get(event.row, NOBODY)
        by = event.by or rid or self.former.get(event.row, NOBODY)
        self._tie(by, rid)
        for slot in self._row(event.row)[event.at : event.at + event.slots.size].tolist():
            self._naming[slot].discard(rid)
        self._name(event.row, event.at, event.slots, by)

    def swa_map(self, event: ev.SwaMap) -> None:
        for full, window in zip(event.full.tolist(), event.swa.tolist(), strict=True):
            owner = self.owner_of(full)
            self._window.pop(full, None)
            if window:
                other = self._window_user(window)
                if other != full:
                    self._tie(owner, self.owner_of(other))
                self._window[full] = window
                self._by_window[window] = full
                if self.owner_of(window, "swa") != owner:
                    self.owner["swa", window] = owner

    def _window_user(self, window: int) -> int:
        """The full slot that still maps to a window slot; 0 for none."""

        full = self._by_window.get(window, 0)
        return full if self._window.get(full) == window else 0

    def forward(self, event: ev.Forward) -> None:
        lens = event.lens if event.lens is not None else [1] * len(event.rows)
        first = 0
        written: dict[int, str] = {}
        actors = []
        for row, prefix, length in zip(event.rows, event.prefix, lens, strict=True):
            rid = self.rid_of(row) if row else NOBODY
            actors.append(rid)
            given = event.slots[first : first + length] if event.slots is not None else None
            first += length
            if row:
                self._read(row, prefix, rid)
                slots = self._write(row, prefix, length, given, rid)
            else:
                slots = given if given is not None else _NONE
                self._touch(NOBODY, slots)
            for slot in slots.tolist():
                self._tie(rid, written.setdefault(slot, rid)) if slot > 0 else None
        if event.pad_writes is not None:
            lanes = event.pad_lanes or [-1] * event.pad_writes.size
            for slot, lane in zip(event.pad_writes.tolist(), lanes, strict=True):
                actor = actors[lane] if 0 <= lane < len(actors) else NOBODY
                self._tie(actor, self.owner_of(slot))

    def _read(self, row: int, prefix: int, rid: str) -> None:
        """Columns that nobody mapped since the bind are what the row's former requests left there."""
        cells, stale = self._row(row), self._stale.get(row, _NONE)
        stop = min(prefix, self.width)
        mapped = np.zeros(stop, np.bool_)
        mapped[: min(cells.size, stop)] = cells[:stop] != 0
        left = stale[:stop]
        is_left = (left != 0) & ~mapped[: left.size]
        if is_left.any():
            self._tie(rid, self.former.get(row, NOBODY))
            self._touch(rid, left[is_left], writes=True)
        if prefix > self.width:
            self._tie(rid, self.rid_of(row + 1))

    def _write(self, row: int, prefix: int, length: int, given: IntArray | None, rid: str) -> IntArray:
        cells = self._row(row)[prefix : prefix + length]
        mapped = np.zeros(length, np.int64)
        mapped[: cells.size] = cells
        slots = mapped if given is None else given
        held = [rid in self.holders.get(slot, ()) for slot in slots.tolist()]
        foreign = slots[~np.array(held, np.bool_)] if length else slots
        if foreign.size:
            self._touch(rid, foreign, writes=True)
            if np.isin(foreign, self._stale.get(row, _NONE)).any():
                self._tie(rid, self.former.get(row, NOBODY))
        fresh = np.where((mapped == 0) & (slots > 0), slots, mapped)
        if length and (fresh != mapped).any():
            self._name(row, prefix, fresh, rid)
        return slots

    def kv(self, event: ev.Kv) -> None:
        if event.by is not None:
            self._touch(event.by, event.slots, event.group, writes=True)
        if event.from_ is not None:
            for to, source in zip(event.slots.tolist(), event.from_.tolist(), strict=True):
                self._need(self.owner_of(to, event.group), self.owner_of(source, event.group))

    def offload(self, event: ev.Offload) -> None:
        self._stored[event.key] = self._together(event.slots, event.group)

    def reload(self, event: ev.Reload) -> None:
        names = self._together(event.slots, event.group) | self._stored.get(event.key, set())
        self._tie_all(names)

    def xfer(self, event: ev.Xfer) -> None:
        actor = self.transfer_of(event)
        rid, group, slots = self._transfers.get(event.id, (NOBODY, event.group, _NONE))
        rid = event.rid or rid
        slots = event.slots if event.slots is not None else slots
        if event.op == "start":
            self._transfers[event.id] = (rid, event.group, slots)
        else:
            self._transfers.pop(event.id, None)
        self._tie(actor, f"xfer:{event.id}")
        self._touch(actor, slots, group, writes=True)

    def _together(self, slots: IntArray, group: str) -> set[str]:
        """Owners of slots whose events can't be taken apart."""
        names = {self.owner_of(slot, group) for slot in slots.tolist()} - {NOBODY}
        self._tie_all(names)
        return names

    def _tie_all(self, names: set[str]) -> None:
        ordered = sorted(names)
        for one, two in pairwise(ordered):
            self._tie(one, two)


_NONE = np.zeros(0, np.int64)
_HANDLERS: dict[type, Callable[[Owners, Any], None]] = {
    ev.Bind: Owners.bind,
    ev.Unbind: Owners.unbind,
    ev.Move: Owners.move,
    ev.Alloc: Owners.alloc,
    ev.Hold: Owners.hold,
    ev.Share: Owners.share,
    ev.Publish: Owners.publish,
    ev.Free: Owners.free,
    ev.Evict: Owners.evict,
    ev.Map: Owners.map,
    ev.SwaMap: Owners.swa_map,
    ev.Forward: Owners.forward,
    ev.Kv: Owners.kv,
    ev.Offload: Owners.offload,
    ev.Reload: Owners.reload,
    ev.Xfer: Owners.xfer,
}
