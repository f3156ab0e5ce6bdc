"""Which table cells have to be verified again: those that something touched since their last good check.

In a replay memory changes only where an event says so. A cell stays *dirty* until it was verified and found good,
and becomes dirty again when its mapping, its slot's stamp or bytes, its predecessor's or its expected token
changes. Failing cells stay dirty, so that they are reported at every forward, as full verification does.

The cells that map a slot are kept in a list per slot, so that a changed slot finds its readers in time
proportional to their number. Links are cell + 1, 0 is the end: memory that nobody touches is never committed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kvcanary_cli.runtime.calls import IntArray
from kvcanary_cli.runtime.layout import SWA, Layout

WORD_BITS = 64
_ONE = np.uint64(1)
_ALL = np.uint64(2**64 - 1)


@njit(cache=True)
def _mark(dirty, width, cell):
    """A cell and the one after it, whose predecessor it is."""
    row, column = cell // width, cell % width
    if row >= dirty.shape[0]:
        return
    dirty[row, column >> 6] |= _ONE << np.uint64(column & 63)
    column += 1
    if column < width:
        dirty[row, column >> 6] |= _ONE << np.uint64(column & 63)


@njit(cache=True)
def mark_cells(dirty, width, start, stop):
    """Mark cells `[start, stop)` and their successors."""
    for cell in range(start, stop):
        _mark(dirty, width, cell)


@njit(cache=True)
def mark_list(dirty, width, cells):
    """Mark listed cells and their successors."""
    for i in range(cells.size):
        _mark(dirty, width, cells[i])


@njit(cache=True)
def _relink(entries, head, following, preceding, cell, old):
    """Take a cell out of the list of the slot it mapped, and into that of the slot it maps now."""
    if 0 < old < head.size:
        before, after = preceding[cell], following[cell]
        if before != 0:
            following[before - 1] = after
        else:
            head[old] = after
        if after != 0:
            preceding[after - 1] = before
    new = entries[cell]
    if 0 < new < head.size:
        after = head[new]
        following[cell] = after
        preceding[cell] = 0
        if after != 0:
            preceding[after - 1] = cell + 1
        head[new] = cell + 1


@njit(cache=True)
def relink_cells(entries, head, following, preceding, cells, old):
    """`_relink` for cells that changed from `old`."""
    for i in range(cells.size):
        _relink(entries, head, following, preceding, cells[i], old[i])


@njit(cache=True)
def touch(head, following, dirty, width, slots):
    """Mark every cell that maps one of these slots, and its successor."""
    for i in range(slots.size):
        slot = slots[i]
        if 0 < slot < head.size:
            link = head[slot]
            while link != 0:
                _mark(dirty, width, np.int64(link) - 1)
                link = following[link - 1]


@njit(cache=True)
def count_dirty(dirty, width, rows, starts, ends):
    """Cells of the lanes' ranges that have to be verified."""
    total = 0
    for lane in range(rows.size):
        if rows[lane] != 0 and ends[lane] > starts[lane]:
            for word in range(starts[lane] >> 6, ((ends[lane] - 1) >> 6) + 1):
                total += _popcount(_dirty_bits(dirty, width, rows[lane], word, starts[lane], ends[lane]))
    return total


@njit(cache=True)
def plan_dirty(
    dirty, entries, lut, rows, starts, ends, width, pool, valid_lens, offset,
    out_slots, out_tokens, out_positions, out_before, out_cells,
):  # fmt: skip
    """Plan entries of the dirty cells, in lane order; returns how many.

    Args:
        lut: full-to-window map, or empty for the identity.
        pool: [rows, width] int32 expected tokens; valid_lens: [num_lanes] int64, or empty: nothing is expected.
        out_*: [count_dirty] int64.
    """
    n = 0
    for lane in range(rows.size):
        row = rows[lane]
        if row == 0 or ends[lane] <= starts[lane]:
            continue
        valid = valid_lens[lane] if valid_lens.size > 0 else np.int64(0)
        for word in range(starts[lane] >> 6, ((ends[lane] - 1) >> 6) + 1):
            bits = _dirty_bits(dirty, width, row, word, starts[lane], ends[lane])
            while bits != np.uint64(0):
                column = word * 64 + _popcount((bits & (~bits + _ONE)) - _ONE)
                bits &= bits - _ONE
                cell = row * width + column
                out_slots[n] = _slot_at(entries, lut, cell)
                out_before[n] = _slot_at(entries, lut, cell - 1) if column > 0 else np.int64(-1)
                out_positions[n] = column
                known = column + offset
                out_tokens[n] = np.int64(pool[row, known]) if 0 <= known < valid else np.int64(-1)
                out_cells[n] = cell
                n += 1
    return n


@njit(cache=True)
def settle(dirty, width, cells, positions, slots, failed, is_failed):
    """Cells that were verified and found good are clean until something touches them.

    A cell that was read past the end of a lane's row proves nothing about its own row, where it stands at
    another position and after another slot.

    Args:
        cells, positions, slots: [n] verified cells, the positions they were verified for, and their slots.
        failed: slots that a violation names; is_failed: [num_slots] uint8 zeros, left as they were.
    """
    for i in range(failed.size):
        if 0 <= failed[i] < is_failed.size:
            is_failed[failed[i]] = 1
    for i in range(cells.size):
        slot = slots[i]
        if 0 <= slot < is_failed.size and is_failed[slot] == 0:
            row, column = cells[i] // width, cells[i] % width
            if row < dirty.shape[0] and column == positions[i]:
                dirty[row, column >> 6] &= ~(_ONE << np.uint64(column & 63))
    for i in range(failed.size):
        if 0 <= failed[i] < is_failed.size:
            is_failed[failed[i]] = 0


@njit(cache=True, inline="always")
def _slot_at(entries, lut, cell):
    slot = np.int64(entries[cell]) if cell < entries.size else np.int64(-1)
    if lut.size > 0 and slot >= 0:
        slot = lut[slot] if slot < lut.size else np.int64(-1)
    return slot


@njit(cache=True, inline="always")
def _dirty_bits(dirty, width, row, word, start, end):
    """Dirty bits of one word that lie in `[start, end)`; columns past the row's end are always dirty."""
    bits = dirty[row, word] if word < dirty.shape[1] else _ALL
    if word == width >> 6:
        bits |= _ALL << np.uint64(width & 63)
    if word == start >> 6:
        bits &= _ALL << np.uint64(start & 63)
    if word == end >> 6:
        bits &= ~(_ALL << np.uint64(end & 63))
    return bits


@njit(cache=True, inline="always")
def _popcount(bits):
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


class Changes:
    """Dirty cells of every group, and the cells that map each slot.

    Args:
        layout: shapes of the run.
        entries: the page table's flat entries, read only.
    """

    def __init__(self, layout: Layout, entries: npt.NDArray[np.int32]) -> None:
        rows, width = layout.num_rows, layout.row_width
        link = np.int32 if entries.size < 2**31 - 1 else np.int64
        self._layout = layout
        self._entries = entries
        self._width = width
        self._head = np.zeros(layout.num_slots, link)
        self._following = np.zeros(entries.size, link)
        self._preceding = np.zeros(entries.size, link)
        self._full_of = np.zeros(layout.group(SWA).num_slots, np.int64)
        self._doubled: set[int] = set()
        self._padding_window = 0  # window slot of full slot 0, which no list has: a fault of the map
        self._is_failed = {group.kind: np.zeros(group.num_slots, np.uint8) for group in layout.groups}
        words = -(-width // WORD_BITS)
        self.dirty = {group.kind: np.zeros((rows, words), np.uint64) for group in layout.groups}

    def remapped(self, cells: IntArray, old: npt.NDArray[np.int32]) -> None:
        """Cells of the table map other slots than `old` now."""
        relink_cells(self._entries, self._head, self._following, self._preceding, cells, old)
        for dirty in self.dirty.values():
            mark_list(dirty, self._width, cells)

    def expected(self, row: int, start: int, stop: int) -> None:
        """Expected tokens of these columns of a row changed."""
        offset = self._layout.token_offset
        base = row * self._width
        for dirty in self.dirty.values():
            mark_cells(dirty, self._width, base + max(0, start - offset), base + max(0, stop - offset))

    def window_mapped(self, full: IntArray, swa_map: IntArray) -> None:
        """Entries `full` of the full-to-window map changed to what `swa_map` has now."""
        if SWA not in self.dirty:
            return
        swa = swa_map[full]
        former = self._full_of[swa]
        doubled = (swa != 0) & (former != 0) & (former != full) & (swa_map[former] == swa)
        if doubled.any():
            self._doubled |= set(former[doubled].tolist()) | set(full[doubled].tolist())
        self._full_of[swa] = full
        hidden = (swa != 0) & (
            self._full_of[swa] != full
        )  # a later element of this event took its window slot
        if hidden.any():
            self._doubled |= set(full[hidden].tolist()) | set(self._full_of[swa[hidden]].tolist())
        touch(self._head, self._following, self.dirty[SWA], self._width, full)
        if not full.all():
            self._padding_window = int(swa_map[0])
            self.dirty[SWA][:] = _ALL  # every unmapped cell means another window slot now

    def written(self, group_kind: str, slots: IntArray) -> None:
        """Stamps or bytes of these slots of a group changed."""
        kind = group_kind if group_kind in self.dirty else self._layout.groups[0].kind
        if kind == SWA and self._layout.maps_window:
            inside = slots[(slots > 0) & (slots < self._full_of.size)]
            if self._padding_window and (inside == self._padding_window).any():
                self.dirty[SWA][:] = _ALL
            slots = self._full_of[inside]
            if (
                self._doubled
            ):  # a window slot with two full slots: a fault, rare enough to look at all of them
                slots = np.concatenate([slots, np.array(sorted(self._doubled), np.int64)])
        touch(self._head, self._following, self.dirty[kind], self._width, slots)

    def settle(
        self, group_kind: str, cells: IntArray, positions: IntArray, slots: IntArray, failed: IntArray
    ) -> None:
        """These cells were verified at these positions; all but those of failed slots are clean now."""
        is_failed = self._is_failed[group_kind]
        settle(self.dirty[group_kind], self._width, cells, positions, slots, failed, is_failed)
