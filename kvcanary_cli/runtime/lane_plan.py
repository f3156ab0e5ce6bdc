"""What each lane of a forward writes, planned on the host: a device then needs no plan of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from kvcanary_cli.kernels.memory_cpu import NO_WORDS
from kvcanary_cli.kernels.plan_cpu import plan_writes
from kvcanary_cli.runtime.calls import ForwardCall, IntArray
from kvcanary_cli.runtime.layout import SWA, Layout
from kvcanary_cli.runtime.page_table import PageTable


def plan_lanes(
    layout: Layout, table: PageTable, swa_map: IntArray, call: ForwardCall
) -> tuple[IntArray, dict[str, IntArray]]:
    """Offsets and seeds of a forward's lanes, with room for a lane even where there is none.

    Returns:
        offsets: [lanes + 1] int64, first entry of each lane.
        seeds: group kind -> [lanes] int64, slot before each lane's first token; -1: none.
    """
    room = max(call.rows.size, 1)
    offsets = np.zeros(room + 1, np.int64)
    num_lanes = np.zeros(1, np.int32)
    seeds = {}
    for group in layout.groups:
        has_map = group.kind == SWA and layout.maps_window
        found = np.full(room, -1, np.int64)
        plan_writes(
            call.rows,
            call.prefix,
            call.lens,
            table.entries,
            table.num_rows,
            table.width,
            has_map,
            swa_map if has_map else NO_WORDS,
            offsets,
            found,
            num_lanes,
        )
        seeds[group.kind] = found
    return offsets, seeds


class ForwardSize(NamedTuple):
    """Numbers of one forward.

    Attributes:
        longest_prefix, longest_lane: most tokens before, and in, any lane.
        entries: verify entries that the plan of the group asks for.
        written: stamps that one write launch of the group stores.
    """

    longest_prefix: int
    longest_lane: int
    entries: int
    written: int


def forward_size(call: ForwardCall, window: int, slots: IntArray, num_slots: int) -> ForwardSize:
    """Numbers of a forward in one group, found in one pass: a step has no time for many.

    Args:
        window: of the group, 0 without one.
        slots: [num_tokens] int64 slots of the group; those outside [0, num_slots) are not written.
    """
    return ForwardSize(*_count(call.rows, call.prefix, call.lens, int(window), slots, int(num_slots)))


@njit(cache=True)
def _count(rows, prefix, lens, window, slots, num_slots):
    longest_prefix = longest_lane = written = live = 0
    entries = planned_entries(rows, prefix, window)
    for lane in range(rows.size):
        longest_prefix = max(longest_prefix, prefix[lane])
        longest_lane = max(longest_lane, lens[lane])
        if rows[lane] != 0:
            live += lens[lane]
    for i in range(min(live, slots.size)):
        if 0 <= slots[i] < num_slots:
            written += 1
    return longest_prefix, longest_lane, entries, written


@njit(cache=True)
def planned_entries(rows, prefix, window):
    """Verify entries that the plan of a group asks for.

    Args:
        rows, prefix: [num_lanes] int64; row 0 is padding.
        window: of the group, 0 without one.
    """
    entries = 0
    for lane in range(rows.size):
        if rows[lane] != 0:
            entries += min(prefix[lane], window) if window > 0 else prefix[lane]
    return entries
