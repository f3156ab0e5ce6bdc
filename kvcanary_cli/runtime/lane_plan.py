"""What each lane of a forward writes, planned on the host: a device then needs no plan of its own."""

from __future__ import annotations

import numpy as np

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
