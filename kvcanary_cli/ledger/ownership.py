"""Events that hand slots out and take them back: alloc, hold, free, evict."""

from __future__ import annotations

import numpy as np
from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import CACHE, IntArray
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.rules import holders as rules
from kvcanary_cli.ledger.rules import sharing as sharing_rules
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import LedgerState
from kvcanary_cli.ledger.windows import Windows
from kvcanary_cli.trace import events as ev


@njit(cache=True)
def _in_partial_pages(slots, named, page_size, found):
    """Marks named slots whose page has a slot that nobody holds; returns how many."""
    bad = 0
    page, is_partial = -1, False
    for i in range(named.size):
        if named[i] // page_size != page:
            page = named[i] // page_size
            is_partial = False
            for slot in range(page * page_size, min((page + 1) * page_size, slots.shape[0])):
                if slots[slot, c.NUM] == 0 and not slots[slot, c.FLAGS] & c.IS_OPEN:
                    is_partial = True
        found[i] = is_partial
        bad += is_partial
    return bad


class Ownership:
    """Follows holders through their events."""

    def __init__(self, state: LedgerState, rows: Rows, windows: Windows) -> None:
        self._state = state
        self._rows = rows
        self._windows = windows

    def alloc(self, step: int, line: int, event: ev.Alloc) -> None:
        """Free slots go to a holder."""
        table = self._state.tables[event.group]
        name = self._state.names.number(event.to)
        if table.allocate(event.slots, name, step, line):
            self._judge_alloc((step, line), table, event)
            table.allocate(event.slots, name, step, line, apply=True)
        if table.page_size > 1 and self._state.lists_pages is not False:
            size = event.slots.size
            if _in_partial_pages(table.slots, event.slots, table.page_size, table.scratch(size)):
                self._judge_pages((step, line), table, event)

    def hold(self, step: int, line: int, event: ev.Hold) -> None:
        """One more holder of held slots."""
        table, name = self._state.full, self._state.names.number(event.to)
        if table.join(event.slots, name, step, line, c.BY_HOLD):
            sharing_rules.judge_join(self._state, (step, line), event.slots, event.to, "hold")
            table.join(event.slots, name, step, line, c.BY_HOLD, apply=True)

    def free(self, step: int, line: int, event: ev.Free) -> None:
        """A holder gives slots up."""
        table, name = self._state.tables[event.group], self._state.names.number(event.by)
        if event.by == CACHE and table is self._state.full:
            self._state.ghosts.update(rules.with_entry(table, event.slots))
        if table.leave(event.slots, name, step, line, c.WHY_FREE):
            self._judge_release((step, line), table, event.slots, event.by)
            table.leave(event.slots, name, step, line, c.WHY_FREE, apply=True)
        if table is self._state.window:
            self._windows.released(event.slots)
            return
        row = self._state.page.rid_row.get(event.by)
        if row is not None:
            self._rows.suspect_released(row, event.slots)

    def evict(self, step: int, line: int, event: ev.Evict) -> None:
        """The cache gives slots up."""
        table = self._state.tables[event.group]
        state = self._state
        if table.leave(event.slots, c.CACHE_NAME, step, line, c.WHY_EVICT):
            # entries that outlived the cache's hold are gone now, which is no second release
            named = event.slots
            if state.ghosts:
                named = np.array(
                    [slot for slot in named.tolist() if not self._is_bare_ghost(table, slot)], np.int64
                )
            if named.size and table.leave(named, c.CACHE_NAME, step, line, c.WHY_EVICT):
                self._judge_release((step, line), table, named, CACHE)
                table.leave(named, c.CACHE_NAME, step, line, c.WHY_EVICT, apply=True)
        if table is state.window:
            self._windows.released(event.slots)
        elif state.ghosts:
            state.ghosts.difference_update(event.slots.tolist())

    def _is_bare_ghost(self, table: SlotTable, slot: int) -> bool:
        return slot in self._state.ghosts and CACHE not in table.holder_names(slot)

    def _judge_alloc(self, where: Where, table: SlotTable, event: ev.Alloc) -> None:
        state, found = self._state, table.found.copy()
        reserved = rules.flagged(event.slots, found, c.IS_RESERVED)
        if reserved.size:
            rules.alloc_reserved(state, where, table, reserved, event.to, "alloc")
        held = rules.flagged(event.slots, found, c.HELD_ALREADY)
        if held.size:
            if table is state.full:
                state.ghosts.update(rules.with_entry(table, held))
            rules.alloc_held(state, where, table, held, event.to)

    def _judge_pages(self, where: Where, table: SlotTable, event: ev.Alloc) -> None:
        if self._state.lists_pages is None:
            self._state.lists_pages = False  # this allocator lists the tokens that it was asked for
            return
        partial = rules.flagged(event.slots, table.found, 1)
        rules.alloc_partial_page(self._state, where, table, partial, event.to)

    def _judge_release(self, where: Where, table: SlotTable, slots: IntArray, by: str) -> None:
        state, found = self._state, table.found.copy()
        twice = rules.flagged(slots, found, c.LISTED_TWICE)
        if twice.size:
            rules.free_twice_in_list(state, where, table, twice, by)
        wrong = rules.flagged(slots, found, c.NOT_HELD | c.NOT_THEIRS)
        if wrong.size:
            rules.free_unheld(state, where, table, wrong, by)
        theirs = rules.flagged(slots, found, c.NOT_THEIRS)
        if theirs.size and table is not state.window:
            for row in state.rows_of(state.holder_names(table, theirs.tolist())):
                self._rows.suspect_released(row, theirs, forced=True)
