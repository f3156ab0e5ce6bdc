"""Slots of one group: who holds them, since when, who wrote them last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.holders_jit import GROW, allocate, join, leave, refresh
from kvcanary_cli.ledger.names import Names
from kvcanary_cli.ledger.records import Holder, IntArray, Mark, Previous, Writer

_FIRST_CELLS = 1024


class SlotTable:
    """Arrays over the slots of one group.

    A change of holders is judged first. `allocate`, `join` and `leave` return the number of flagged slots; when it
    is 0 the change is made, else nothing is changed, `found[:n]` says what is wrong with each named slot, and the
    caller calls again with `apply=True` when it has looked.

    Attributes:
        kind: `full` or `swa`.
        slots: [num_slots, SLOT_COLUMNS] int32, see `columns.py`.
        cells: [n, CELL_COLUMNS] int32 holder cells.
        counters: [NUM_COUNTERS] int64.
        found: [n] int64, flags of the slots that the last call named.
        reserved: slots of page 0, which nobody may have.
    """

    def __init__(self, kind: str, num_slots: int, page_size: int, names: Names) -> None:
        self.kind = kind
        self.num_slots = num_slots
        self.page_size = page_size
        self.reserved = page_size
        self.names = names
        self.slots = np.zeros((num_slots, c.SLOT_COLUMNS), np.int32)
        self.cells = np.zeros((_FIRST_CELLS, c.CELL_COLUMNS), np.int32)
        self.counters = np.zeros(c.NUM_COUNTERS, np.int64)
        self.counters[c.USED] = 1  # cell 0 means none
        self.found = np.zeros(256, np.int64)

    def allocate(self, named: IntArray, name: int, step: int, line: int, *, apply: bool = False) -> int:
        """Hand free slots to a holder."""
        return self._change(allocate, named, (name, step, line, self.reserved, apply))

    def join(
        self, named: IntArray, name: int, step: int, line: int, how: int, *, at: int = 0, apply: bool = False
    ) -> int:
        """Add a holder to held slots; the cache (BY_PUBLISH) gets an entry at position `at`…."""
        return self._change(join, named, (name, step, line, how, at, self.reserved, apply))

    def leave(
        self, named: IntArray, name: int, step: int, line: int, why: int, *, apply: bool = False
    ) -> int:
        """A holder gives slots up."""
        return self._change(leave, named, (name, step, line, why, apply))

    def lose_history(self) -> None:
        """A gap: who holds what is unknown until it is handed out anew."""
        self.counters[c.GAPS] += 1

    def refresh(self, slot: int) -> None:
        """Bring one slot up to date after gaps."""
        refresh(self.slots, self.cells, self.counters, slot)

    def scratch(self, size: int) -> IntArray:
        """Room for flags of `size` named slots."""
        if self.found.size < size:
            self.found = np.zeros(2 * size, np.int64)
        return self.found

    def is_open(self, slot: int) -> bool:
        """Whether a gap hides who else holds the slot."""
        self.refresh(slot)
        return bool(self.slots[slot, c.FLAGS] & c.IS_OPEN)

    def holders(self, slot: int) -> tuple[Holder, ...]:
        """Holders of a slot, stale ones included, in the order in which they came."""
        self.refresh(slot)
        found = []
        cell = int(self.slots[slot, c.FIRST])
        while cell:
            name, step, line, how, epoch, _, following = self.cells[cell].tolist()
            found.append(
                Holder(
                    name=self.names.name(name) or "",
                    since_step=step,
                    since_line=line,
                    how=c.HOLD_NAMES[how],
                    epoch=epoch,
                )
            )
            cell = following
        return tuple(found)

    def holder_names(self, slot: int) -> tuple[str, ...]:
        """Names of the holders, each once; ids outside the pool have none."""
        if not 0 <= slot < self.num_slots:
            return ()
        return tuple(dict.fromkeys(holder.name for holder in self.holders(slot)))

    def allocated(self, slot: int) -> Mark | None:
        """What began the present epoch."""
        return self._mark(slot, c.ALLOC_STEP, c.HOLD_NAMES)

    def released(self, slot: int) -> Mark | None:
        """When the slot became free last, or was released by force."""
        return self._mark(slot, c.RELEASE_STEP, c.RELEASE_NAMES)

    def given_up(self, slot: int) -> Mark | None:
        """When a holder gave it up last."""
        return self._mark(slot, c.LEFT_STEP, c.RELEASE_NAMES)

    def dubious(self, slot: int) -> Mark | None:
        """The release that lets the allocator hand out a slot once too often, if one is outstanding."""
        if not self.slots[slot, c.DUBIOUS_COUNT]:
            return None
        return self._mark(slot, c.DUBIOUS_STEP, c.RELEASE_NAMES)

    def previous(self, slot: int) -> Previous | None:
        """The epoch before the present one."""
        epoch, holder, first, last = self.slots[slot, c.PREVIOUS_EPOCH : c.PREVIOUS_LAST + 1].tolist()
        if not epoch:
            return None
        return Previous(epoch=epoch, holder=self.names.name(holder), first_step=first, last_step=last)

    def writer(self, slot: int, at: int) -> Writer | None:
        """The last byte writer (`at` BYTES_AT) or stamp writer (STAMP_AT)."""
        name, step, line, how, number, position = self.slots[slot, at : at + 6].tolist()
        if not line:
            return None
        return Writer(
            name=self.names.name(name),
            step=step,
            line=line,
            how=c.WRITE_NAMES[how & c.HOW_MASK],
            in_row=bool(how & c.IN_ROW),
            held=bool(how & c.HELD),
            id=self.names.name(number),
            position=position - 1 if position else None,
        )

    def _mark(self, slot: int, at: int, reasons: tuple[str, ...]) -> Mark | None:
        step, line, by, why = self.slots[slot, at : at + 4].tolist()
        if not line:
            return None
        return Mark(step=step, line=line, by=self.names.name(by), why=reasons[why])

    def _change(self, function: Callable[..., int], named: IntArray, rest: tuple[object, ...]) -> int:
        if self.found.size < named.size:
            self.scratch(named.size)
        bad = function(self.slots, self.cells, self.counters, self.found, named, *rest)
        while bad == GROW:
            grown = np.zeros((2 * self.cells.shape[0] + named.size, c.CELL_COLUMNS), np.int32)
            grown[: self.cells.shape[0]] = self.cells
            self.cells = grown
            bad = function(self.slots, self.cells, self.counters, self.found, named, *rest)
        return bad
