"""The window pool of a hybrid model: which full slot maps to which window slot, and what falls out of the window."""

from __future__ import annotations

import numpy as np
from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.holders_jit import begin_epoch, refresh
from kvcanary_cli.ledger.records import IntArray
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.rules import window as rules
from kvcanary_cli.ledger.state import LedgerState
from kvcanary_cli.trace import events as ev

_REUSED, _RELEASED = 1, 2


@njit(cache=True)
def _unmap(slots, slot, by, step, line):
    """No full slot maps to a window slot any more."""
    slots[slot, c.MAPPED_BY] = 0
    for at in (c.LEFT_STEP, c.RELEASE_STEP):
        slots[slot, at] = step
        slots[slot, at + 1] = line
        slots[slot, at + 2] = by
        slots[slot, at + 3] = c.WHY_UNMAP


@njit(cache=True)
def _first_holder(slots, cells, slot):
    cell = slots[slot, c.FIRST]
    return cells[cell, c.CELL_NAME] if cell else slots[slot, c.LEFT_BY]


@njit(cache=True)
def _remap(book, window, swa_map, full, to, found, others, step, line):
    """The map changes: window slots are released and taken; `found` gets _REUSED or _RELEASED, `others` who had it."""
    slots, cells, counters, _ = book
    window_slots, window_cells, window_counters, _ = window
    bad = 0
    for i in range(full.size):
        found[i], others[i] = 0, 0
        before, after = swa_map[full[i]], to[i]
        refresh(slots, cells, counters, full[i])
        by = _first_holder(slots, cells, full[i])
        if before and before != after and window_slots[before, c.MAPPED_BY] == full[i]:
            _unmap(window_slots, before, by, step, line)
        if after == 0 or window_slots[after, c.MAPPED_BY] == full[i]:
            continue
        refresh(window_slots, window_cells, window_counters, after)
        other = window_slots[after, c.MAPPED_BY]
        if other and slots[other, c.NUM]:
            found[i], others[i] = _REUSED, other
        elif (
            other == 0 and window_slots[after, c.NUM] == 0 and window_slots[after, c.ALLOC_WHY] == c.BY_ALLOC
        ):
            found[i] = (
                _RELEASED  # the trace hands out this window slot by events of its own, and nobody has it
            )
        if window_slots[after, c.NUM] == 0:
            begin_epoch(window_slots, after, by, step, line, c.BY_MAP)
            window_slots[after, c.FLAGS] = 0
        window_slots[after, c.MAPPED_BY] = full[i]
        bad += found[i] != 0
    return bad


@njit(cache=True)
def _still_in_window(book, rows, row_of, entries, width, window_size, full, to, found, columns):
    """Full slots that lose their window slot while a request with a row will read them through the window.

    `row_of` [names] int64, 0: none. Fills in `found` (the row, 0: none) and `columns`; returns how many.
    """
    slots, cells, _, _ = book
    bad = 0
    for i in range(full.size):
        found[i] = 0
        slot = full[i]
        column = slots[slot, c.STAMP_AT + c.WRITE_POSITION] - 1
        if to[i] or column < 0:
            continue
        cell = slots[slot, c.FIRST]
        while cell:
            name = cells[cell, c.CELL_NAME]
            row = row_of[name]
            if row and column < width and entries[row * width + column] == slot:
                length = rows[row, c.ROW_LENGTH]
                if length - window_size <= column < length:
                    found[i], columns[i] = row, column
            cell = cells[cell, c.CELL_NEXT]
        bad += found[i] != 0
    return bad


class Windows:
    """Follows the full-to-window map; does nothing for pools without one."""

    def __init__(self, state: LedgerState, rows: Rows) -> None:
        self._state = state
        self._rows = rows
        self._released: set[int] = set()

    def remap(self, step: int, line: int, event: ev.SwaMap) -> None:
        """Entries of the map change."""
        state = self._state
        if state.window is None:
            return
        full, to = event.full, event.swa
        found, others = np.zeros(full.size, np.int64), np.zeros(full.size, np.int64)
        books = state.book(state.full), state.book(state.window)
        if _remap(*books, state.swa_map, full, to, found, others, step, line):
            for flag, how in ((_REUSED, "two-full-slots"), (_RELEASED, "released")):
                wrong = found == flag
                if wrong.any():
                    rules.window_reused(
                        state, (step, line), to[wrong], full[wrong], others[wrong & (others > 0)], how=how
                    )
        if not to.all():
            self._suspect_unmapped(full, to)

    def released(self, slots: IntArray) -> None:
        """Window slots were given up by an event of their own; the map must let go of them."""
        self._released.update(slots.tolist())

    def suspect_shared(self, row: int, at: int, slots: IntArray) -> None:
        """A prefix hit must bring its window along: its last positions need window slots."""
        state = self._state
        if state.window is None or self._rows.occupant(row) is None:
            return
        first = max(slots.size - self._rows.window_size, 0)
        tail = slots[first:]
        for i in np.flatnonzero(state.swa_map[tail] == 0).tolist():
            self._rows.of(row).window[at + first + i] = int(tail[i])

    def suspect_written(self, row: int, column: int, slot: int) -> None:
        """A position inside the window was written and has no window slot."""
        if self._rows.state[row, c.ROW_NAME] == c.UNKNOWN:
            return
        self._rows.of(row).window[column] = slot

    def judge_reads(self, where: Where, row: int, prefix: int) -> None:
        """A forward of this row reads its window: which positions lack a window slot?"""
        state, doubts = self._state, self._rows.doubts[row]
        if not doubts.window:
            return
        start, entries = row * state.page.width, state.page.entries
        oldest = prefix - self._rows.window_size
        missing: dict[int, int] = {}
        for column, slot in list(doubts.window.items()):
            is_named = start + column < entries.size and entries[start + column] == slot
            if column < oldest or not is_named or state.swa_map[slot]:
                del doubts.window[column]
            elif column < prefix:
                missing[column] = slot
        if missing:
            rid = self._rows.request(row)
            rules.window_unmapped(state, where, row, rid, list(missing.values()), list(missing))

    def judge_released(self, where: Where) -> None:
        """The next forward runs: no full slot may still map to window slots that were given up."""
        state, slots = self._state, sorted(self._released)
        self._released.clear()
        if state.window is None:
            return
        named = np.array(slots, np.int64)
        mapped = state.window.slots[named, c.MAPPED_BY].astype(np.int64)
        wrong = (mapped > 0) & (state.window.slots[named, c.NUM] == 0)
        wrong[wrong] = state.swa_map[mapped[wrong]] == named[wrong]
        if wrong.any():
            rules.window_reused(state, where, named[wrong], mapped[wrong], mapped[:0], how="released")

    @property
    def has_released(self) -> bool:
        """Whether window slots were given up since the last forward."""
        return bool(self._released)

    def lose_history(self) -> None:
        """A gap: who maps to which window slot is unknown."""
        self._released.clear()
        if self._state.window is not None:
            self._state.window.slots[:, c.MAPPED_BY] = 0

    def _suspect_unmapped(self, full: IntArray, to: IntArray) -> None:
        state = self._state
        found, columns = np.zeros(full.size, np.int64), np.zeros(full.size, np.int64)
        if _still_in_window(
            state.book(state.full), self._rows.state, state.names.row_of, state.page.entries,
            state.page.width, self._rows.window_size, full, to, found, columns,
        ):  # fmt: skip
            for i in np.flatnonzero(found).tolist():
                self._rows.of(int(found[i])).window[int(columns[i])] = int(full[i])
