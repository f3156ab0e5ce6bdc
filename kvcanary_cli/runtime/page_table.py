"""The page table of one run, kept on the host, with what the trace rules need beside each entry.

The table is flat memory, as in the engines: a column past a row's end is the next row's first. Beside every
entry stands the *generation* in which it was mapped; a row's generation moves at `bind`, so an entry that is
older than its row is a leftover of the row's former request. A gap in the recording moves the horizon below
which nothing is known.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from numba import njit

IntArray = npt.NDArray[np.int64]

# What became of one written token's column, see `resolve_lanes`.
COLUMN_OK = 0
COLUMN_MISMATCH = 1  # mapped to another slot: the table stays, the write goes where the forward says
COLUMN_UNMAPPED = 2  # no slot given and none in the table: the trace can't mean anything
COLUMN_SPILLED = 4  # past the row's last column: the next row's memory
COLUMN_BEYOND = 8  # past the table's end: nothing is stored

_INT32_MAX = 2**31 - 1


@njit(cache=True, inline="always")
def _clip(slot):
    """A slot as the int32 table keeps it; values that don't fit stay outside of any pool."""
    return min(max(slot, -_INT32_MAX - 1), _INT32_MAX)


@njit(cache=True)
def _holds(cells, count, cell):
    """Whether a cell is one of the first `count`."""
    found = False
    for i in range(count):
        found |= cells[i] == cell
    return found


@njit(cache=True)
def resolve_lanes(
    entries, mapped_at, row_since, width, generation, rows, prefix, lens, given, has_given, known_since
):
    """Slots that a forward writes, and the table columns that take them.

    Args:
        entries: [num_rows * width] int32, the flat table; unmapped columns of the lanes are filled in.
        mapped_at: [num_rows * width] int32, generation in which each entry was mapped.
        row_since: [num_rows] int32, generation of each row's last bind.
        width: columns a row.
        generation: the generation that new entries get.
        rows, prefix, lens: [num_lanes] int64.
        given: [sum(lens)] int64, slots as the forward names them; read if `has_given`.
        known_since: generation of the last gap; older entries count as unmapped.

    Returns:
        slots: [sum(lens)] int64; state: [sum(lens)] uint8, sum of COLUMN_* values; filled: [n] int64 cells that
        were filled in, each once (one that got slot 0 is filled again by a second lane of its row), and old:
        [n] int32 what they mapped before.
    """
    total = 0
    for lane in range(lens.size):
        total += max(lens[lane], 0)
    slots = np.zeros(total, np.int64)
    state = np.zeros(total, np.uint8)
    filled = np.empty(total, np.int64)
    old = np.empty(total, np.int32)
    num_filled = 0
    i = 0
    for lane in range(rows.size):
        row = rows[lane]
        for k in range(max(lens[lane], 0)):
            if row == 0:
                slots[i] = given[i] if has_given else 0
                i += 1
                continue
            column = prefix[lane] + k
            cell = row * width + column
            if column >= width:
                state[i] |= COLUMN_SPILLED
            if cell >= entries.size:
                state[i] |= COLUMN_BEYOND
                slots[i] = given[i] if has_given else -1
                if not has_given:
                    state[i] |= COLUMN_UNMAPPED
                i += 1
                continue
            owner = cell // width
            is_mapped = entries[cell] != 0 and mapped_at[cell] >= max(row_since[owner], known_since)
            if not has_given:
                slots[i] = entries[cell]
                if not is_mapped:
                    state[i] |= COLUMN_UNMAPPED
            else:
                slots[i] = given[i]
                if given[i] != -1:
                    if not is_mapped:
                        is_listed = entries[cell] == 0 and mapped_at[cell] == generation
                        if not (is_listed and _holds(filled, num_filled, cell)):
                            filled[num_filled], old[num_filled] = cell, entries[cell]
                            num_filled += 1
                        entries[cell] = _clip(given[i])
                        mapped_at[cell] = generation
                    elif entries[cell] != given[i]:
                        state[i] |= COLUMN_MISMATCH
            i += 1
    return slots, state, filled[:num_filled], old[:num_filled]


@njit(cache=True)
def find_cells(entries, lut, rows, starts, ends, width, wanted):
    """Lane and column of every entry in `[starts, ends)` of each lane whose slot is wanted.

    Args:
        entries: flat table, int32.
        lut: [num_full] int64 full-to-window map, or empty for the identity.
        wanted: sorted int64 slots.

    Returns:
        [n, 3] int64: lane, column, slot.
    """
    found = [(np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
    for lane in range(rows.size):
        if rows[lane] == 0:
            continue
        for column in range(starts[lane], ends[lane]):
            cell = rows[lane] * width + column
            slot = np.int64(-1)
            if cell < entries.size:
                slot = np.int64(entries[cell])
            if lut.size > 0 and slot >= 0:
                slot = lut[slot] if slot < lut.size else np.int64(-1)
            at = np.searchsorted(wanted, slot)
            if at < wanted.size and wanted[at] == slot:
                found.append((np.int64(lane), np.int64(column), slot))
    out = np.empty((len(found), 3), np.int64)
    for i in range(len(found)):
        out[i, 0], out[i, 1], out[i, 2] = found[i]
    return out


class CellListener(Protocol):
    """Whoever wants to know which cells of the table map another slot now."""

    def remapped(self, cells: IntArray, old: npt.NDArray[np.int32]) -> None:
        """Cells changed from `old` to what the table has now."""


class PageTable:
    """Rows, the requests that use them, and the slots that their columns name.

    Attributes:
        entries: [num_rows * width] int32; 0 means that nothing is mapped.
        row_rid: request of each row, None when it has none.
        rid_row: row of each request that has one.
        changed: spans of cells written since a device last fetched them, as pairs of arrays [n] with their starts
            and stops; None when no device asks.
        changes: is told of every cell that maps another slot; None when nobody asks.
    """

    def __init__(self, num_rows: int, width: int, *, track_changes: bool = False) -> None:
        self.num_rows = num_rows
        self.width = width
        self.entries = np.zeros(num_rows * width, np.int32)
        self.mapped_at = np.zeros(num_rows * width, np.int32)
        self.row_since = np.zeros(num_rows, np.int32)
        self.row_rid: list[str | None] = [None] * num_rows
        self.rid_row: dict[str, int] = {}
        self.generation = 1
        self.known_since = 0
        self.changed: list[tuple[IntArray, IntArray]] | None = [] if track_changes else None
        self.changes: CellListener | None = None

    def bind(self, row: int, rid: str) -> None:
        """Request `rid` uses `row` from now on; what the row holds becomes leftovers."""
        self.unbind(row)
        if rid in self.rid_row:
            self.unbind(self.rid_row[rid])
        self.generation += 1
        self.row_since[row] = self.generation
        self.row_rid[row] = rid
        self.rid_row[rid] = row

    def unbind(self, row: int) -> str | None:
        """The row has no request any more, its content stays; returns the request that it had."""
        rid = self.row_rid[row]
        if rid is not None:
            del self.rid_row[rid]
            self.row_rid[row] = None
        return rid

    def move(self, rid: str, to_row: int) -> None:
        """Copy the columns mapped since the bind to `to_row`, which becomes the request's."""
        from_row = self.rid_row[rid]
        since = self.row_since[from_row]
        source = slice(from_row * self.width, (from_row + 1) * self.width)
        own = (self.mapped_at[source] >= since) & (self.entries[source] != 0)
        columns = np.nonzero(own)[0]
        slots = self.entries[source][columns].copy()
        self.unbind(from_row)
        self.bind(to_row, rid)
        cells = to_row * self.width + columns
        old = self.entries[cells]
        self.entries[cells] = slots
        self.mapped_at[cells] = self.generation
        if self.changes is not None:
            self.changes.remapped(cells, old)
        if columns.size:
            self._note(to_row * self.width + columns[:1], to_row * self.width + columns[-1:] + 1)

    def map(self, row: int, at: int, slots: IntArray) -> int:
        """Write the row from column `at` on; returns how many columns fell past the table's end."""
        start = row * self.width + at
        stop = min(start + slots.size, self.entries.size)
        kept = max(stop - start, 0)
        if kept:
            old = self.entries[start:stop].copy() if self.changes is not None else None
            self.entries[start:stop] = np.clip(slots[:kept], -_INT32_MAX - 1, _INT32_MAX)
            self.mapped_at[start:stop] = self.generation
            if self.changes is not None and old is not None:
                self.changes.remapped(np.arange(start, stop), old)
            self._note(np.array([start]), np.array([stop]))
        return int(slots.size - kept)

    def resolve(
        self, rows: IntArray, prefix: IntArray, lens: IntArray, given: IntArray | None
    ) -> tuple[IntArray, npt.NDArray[np.uint8]]:
        """Slots that a forward writes and the state of their columns; fills unmapped columns."""
        slots, state, filled, old = resolve_lanes(
            self.entries,
            self.mapped_at,
            self.row_since,
            self.width,
            self.generation,
            rows,
            prefix,
            lens,
            given if given is not None else _EMPTY,
            given is not None,
            self.known_since,
        )
        if self.changes is not None and filled.size:
            self.changes.remapped(filled, old)
        if self.changed is not None and given is not None:
            starts = rows * self.width + prefix
            stops = np.minimum(starts + lens, self.entries.size)
            self._note(np.where(rows != 0, starts, stops), stops)
        return slots, state

    def lose_history(self) -> None:
        """A gap: entries that stand now are unknown until they are mapped again."""
        self.generation += 1
        self.known_since = self.generation

    def slots_of(self, row: int, start: int, stop: int) -> IntArray:
        """Entries of `[start, stop)` of a row, reading on into the next row as memory does."""
        cells = self.entries[row * self.width + start : row * self.width + stop]
        return cells.astype(np.int64)

    def is_known(self, cells: IntArray) -> npt.NDArray[np.bool_]:
        """Whether flat cells were mapped since the last gap."""
        return self.mapped_at[cells] >= self.known_since

    def _note(self, starts: IntArray, stops: IntArray) -> None:
        if self.changed is not None:
            self.changed.append((starts, stops))


_EMPTY = np.zeros(0, np.int64)
