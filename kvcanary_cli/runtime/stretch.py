"""Decode steps in a row that a device may run before the host has looked at any of them.

Every lane of a stretch has a row to itself and writes one token a step, each in a slot of its own that nothing else
in the stretch writes or reads as a seed, in a column that the table does not map elsewhere. Then what a step does
depends on none of the host's work for the steps before it, and undoing the stretch is restoring the stamps of its
slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from kvcanary_cli.runtime.calls import IntArray
from kvcanary_cli.runtime.layout import SWA, Layout
from kvcanary_cli.runtime.page_table import PageTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Forwards of the same lanes.

    Attributes:
        rows: [num_lanes] int64, none of them 0, none twice.
        prefix, tokens: [num_steps, num_lanes] int64; positions equal the prefix.
        full_slots: [num_steps, num_lanes] int64, as the page table names them.
        slots: group kind -> the same as the group numbers them.
        seeds: group kind -> [num_lanes] int64 slot before the first step's token, -1: none.
        valid_lens: [num_lanes] int64 as in `ForwardCall`, or None.
        chain_positions: whether written positions must follow each other.
    """

    rows: IntArray
    prefix: IntArray
    tokens: IntArray
    full_slots: IntArray
    slots: dict[str, IntArray]
    seeds: dict[str, IntArray]
    valid_lens: IntArray | None
    chain_positions: bool

    @property
    def num_steps(self) -> int:
        return int(self.prefix.shape[0])

    @property
    def num_lanes(self) -> int:
        return int(self.rows.size)

    def cells(self, width: int) -> IntArray:
        """[num_steps * num_lanes] int64 cells of a flat page table that the stretch fills."""
        return (self.rows * width + self.prefix).reshape(-1)


class StretchPlanner:
    """Finds out whether forwards make a stretch; keeps the scratch memory that takes.

    Args:
        table, swa_map: the host's, as they are before the first forward of a stretch.
    """

    def __init__(self, layout: Layout, table: PageTable, swa_map: IntArray) -> None:
        self._layout = layout
        self._table = table
        self._swa_map = swa_map
        self._mark = {group.kind: np.zeros(group.num_slots, np.int64) for group in layout.groups}
        self._serial = 0

    def plan(
        self,
        rows: IntArray,
        prefix: IntArray,
        tokens: IntArray,
        slots: IntArray,
        *,
        valid_lens: IntArray | None,
        chain_positions: bool,
    ) -> Stretch | None:
        """The stretch of these forwards, shapes as in `Stretch`; None if they are none."""
        table = self._table
        is_regular = fits_table(
            table.entries,
            table.mapped_at,
            table.row_since,
            table.known_since,
            table.width,
            rows,
            prefix,
            slots,
        )
        if not is_regular or np.unique(rows).size < rows.size:
            return None
        before = np.where(prefix[0] > 0, table.entries[rows * table.width + np.maximum(prefix[0] - 1, 0)], -1)
        self._serial += 1
        in_group, seeds = {}, {}
        for group in self._layout.groups:
            is_mapped = group.kind == SWA and self._layout.maps_window
            own = _mapped(self._swa_map, slots) if is_mapped else slots
            seed = _mapped(self._swa_map, before) if is_mapped else before.astype(np.int64)
            if not are_apart(own.reshape(-1), seed, self._mark[group.kind], self._serial):
                return None
            in_group[group.kind], seeds[group.kind] = own, seed
        return Stretch(
            rows=rows,
            prefix=prefix,
            tokens=tokens,
            full_slots=slots,
            slots=in_group,
            seeds=seeds,
            valid_lens=valid_lens,
            chain_positions=chain_positions,
        )


def _mapped(swa_map: IntArray, slots: IntArray) -> IntArray:
    """Window slots of full ones; what lies outside the map becomes -1."""
    inside = (slots >= 0) & (slots < swa_map.size)
    return np.where(inside, swa_map[np.where(inside, slots, 0)], -1)


@njit(cache=True)
def fits_table(entries, mapped_at, row_since, known_since, width, rows, prefix, slots):
    """Whether prefixes grow by one a step, and each column is free for the slot or names it already."""
    for lane in range(rows.size):
        row = rows[lane]
        if row <= 0 or row >= row_since.size:
            return False
        for step in range(prefix.shape[0]):
            column = prefix[step, lane]
            if column != prefix[0, lane] + step or column >= width:
                return False
            cell = row * width + column
            is_mapped = entries[cell] != 0 and mapped_at[cell] >= max(row_since[row], known_since)
            if is_mapped and entries[cell] != slots[step, lane]:
                return False
    return True


@njit(cache=True)
def are_apart(slots, seeds, mark, serial):
    """Whether all slots lie in the group, no two are the same, and none is a seed.

    Args:
        mark: [num_slots] int64 scratch, below `serial` everywhere.
    """
    for slot in slots:
        if slot <= 0 or slot >= mark.size or mark[slot] == serial:
            return False
        mark[slot] = serial
    clashes = 0
    for seed in seeds:
        clashes += seed >= mark.size or (seed >= 0 and mark[seed] == serial)
    return clashes == 0
