"""Compiled loops over page-table rows: what a row names, and what was verified of it."""

import numpy as np
from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.writes_jit import judge_writer


@njit(cache=True)
def _column_of(slots, entries, start, prefix, slot):
    """Column below `prefix` in which a row names a slot; -1: none.

    Where the slot was written tells the column at once; only a slot without such a record is searched for.
    """
    position = slots[slot, c.STAMP_AT + c.WRITE_POSITION]
    if position:
        cell = start + position - 1
        if position <= prefix and cell < entries.size and entries[cell] == slot:
            return position - 1
        return -1
    for column in range(min(prefix, entries.size - start)):
        if entries[start + column] == slot:
            return column
    return -1


@njit(cache=True)
def _was_taken(slots, cells, acts_for, slot, name):
    """Whether a slot was released from under `name`, and did not come back to it."""
    if slots[slot, c.FLAGS] & c.IS_FORCED:
        return True
    cell = slots[slot, c.FIRST]
    while cell:
        is_mine = acts_for[cells[cell, c.CELL_NAME]] == acts_for[name]
        if is_mine and cells[cell, c.CELL_EPOCH] == slots[slot, c.EPOCH]:
            return False
        cell = cells[cell, c.CELL_NEXT]
    return True


@njit(cache=True)
def judge_reads(book, found, entries, start, prefix, named, at, name, forced):
    """Which of `named` slots a row's forward reads although its request does not hold them.

    Args:
        entries: flat page table; start: the row's first cell; prefix: columns that are read.
        at: columns [n] int64; -1 is filled in where the row names the slot below `prefix`.
        forced: the slots were released by somebody else, so that the request may still be called a holder.

    Returns: how many are flagged NOT_HELD or NOT_THEIRS; columns of the others are set to -1.
    """
    slots, cells, counters, acts_for = book
    bad = 0
    for i in range(named.size):
        slot = named[i]
        found[i] = 0
        if slot <= 0 or slot >= slots.shape[0]:
            at[i] = -1
            continue
        if at[i] < 0:
            at[i] = _column_of(slots, entries, start, prefix, slot)
        elif at[i] >= prefix or start + at[i] >= entries.size or entries[start + at[i]] != slot:
            at[i] = -1
        if at[i] >= 0:
            found[i] = judge_writer(slots, cells, counters, acts_for, slot, name) & (
                c.NOT_HELD | c.NOT_THEIRS
            )
            if forced and name != c.UNKNOWN and _was_taken(slots, cells, acts_for, slot, name):
                found[i] |= c.NOT_THEIRS
            if found[i] == 0:
                at[i] = -1
        bad += found[i] != 0
    return bad


@njit(cache=True)
def count_foreign(book, leftovers, cell, named, name):
    """A row's columns are mapped: they are no leftovers any more; returns how many slots `name` does not hold."""
    slots, cells, counters, acts_for = book
    foreign = 0
    for i in range(named.size):
        if cell + i < leftovers.size:
            leftovers[cell + i] = 0
        if named[i] > 0:
            flags = judge_writer(slots, cells, counters, acts_for, named[i], name)
            foreign += (flags & (c.NOT_HELD | c.NOT_THEIRS)) != 0
    return foreign


@njit(cache=True)
def write_back_checked(book, window, swa_map, window_size, entries, start, first, state, row):
    """Columns from `first` on are about to change: their slots keep the step in which they were verified."""
    slots, window_slots = book[0], window[0]
    stop = min(state[row, c.ROW_CHECKED_TO], entries.size - start)
    step = state[row, c.ROW_CHECKED_STEP]
    for column in range(first, stop):
        slot = np.int64(entries[start + column])
        if slot <= 0 or slot >= slots.shape[0]:
            continue
        slots[slot, c.CHECKED] = max(slots[slot, c.CHECKED], step)
        if swa_map.size and column >= stop - window_size and swa_map[slot]:
            to = swa_map[slot]
            window_slots[to, c.CHECKED] = max(window_slots[to, c.CHECKED], step)
    state[row, c.ROW_CHECKED_TO] = min(state[row, c.ROW_CHECKED_TO], first)
