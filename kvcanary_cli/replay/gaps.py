"""After a gap in the recording: what can be judged, and what stays without a verdict.

A slot is known again once it was written, a table entry once it was mapped. Bits that compare something unknown
are dropped and their entries counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from numba import njit

from kvcanary_cli.kernels.consts import BIT_CHAIN_HASH, BIT_WRITE_POSITION, RING_BITS, RING_SLOT, RING_TAG
from kvcanary_cli.replay.state import RunState
from kvcanary_cli.replay.violations import WRITE_BITS, ViolationBatch, group_of_tag
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.calls import ForwardCall
from kvcanary_cli.runtime.layout import SWA


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Verify entries of one forward that reach unknown memory, summed over groups."""

    entries: int = 0


@njit(cache=True)
def _count_unknown(entries, mapped_at, known_since, lut, known, rows, starts, ends, width):
    """Entries whose table cell or slot is unknown."""
    unknown = 0
    for lane in range(rows.size):
        if rows[lane] == 0:
            continue
        for column in range(starts[lane], ends[lane]):
            cell = rows[lane] * width + column
            if cell >= entries.size:
                continue
            slot = np.int64(entries[cell])
            if lut.size > 0 and 0 <= slot < lut.size:
                slot = lut[slot]
            inside = 0 <= slot < known.size
            if mapped_at[cell] < known_since or (inside and slot != 0 and not known[slot]):
                unknown += 1
    return unknown


def unjudged_entries(state: RunState, runtime: Runtime, call: ForwardCall) -> Unjudged:
    """How many planned entries of a forward can't be judged."""
    total = 0
    for group in runtime.layout.groups:
        lut = state.swa_map if group.kind == SWA and runtime.layout.maps_window else np.zeros(0, np.int64)
        total += _count_unknown(
            state.table.entries,
            state.table.mapped_at,
            state.table.known_since,
            lut,
            state.known_slots[group.kind],
            call.rows,
            call.prefix - runtime.entry_counts(group, call),
            call.prefix,
            state.table.width,
        )
    return Unjudged(entries=int(total))


def judge_batch(state: RunState, batch: ViolationBatch) -> ViolationBatch:
    """The violations that stand: bits that compare unknown memory are cleared, empty rows dropped."""
    rows = batch.rows.copy()
    keep = np.ones(rows.shape[0], np.bool_)
    for i in range(rows.shape[0]):
        known = state.known_slots.get(group_of_tag(int(rows[i, RING_TAG])))
        if known is None:
            known = next(iter(state.known_slots.values()))
        slot_known = _is_known(known, int(rows[i, RING_SLOT]))
        before_known = _is_known(known, int(batch.predecessors[i]))
        cell_known = _cell_known(state, int(batch.table_row[i]), int(batch.positions[i]))
        bits = int(rows[i, RING_BITS])
        if bits & BIT_WRITE_POSITION and not before_known:
            bits &= ~BIT_WRITE_POSITION
        if bits & BIT_CHAIN_HASH and not before_known:
            bits &= ~BIT_CHAIN_HASH
        is_written = bool(bits & WRITE_BITS)
        keep[i] = bits != 0 and (is_written or (slot_known and cell_known))
        rows[i, RING_BITS] = bits
    return replace(
        batch,
        rows=rows[keep],
        table_row=batch.table_row[keep],
        rids=[rid for rid, kept in zip(batch.rids, keep.tolist(), strict=True) if kept],
        positions=batch.positions[keep],
        predecessors=batch.predecessors[keep],
    )


def _is_known(known: npt.NDArray[np.bool_], slot: int) -> bool:
    """Slots outside the pool and heads of chains are as known as they will ever be."""
    return not 0 <= slot < known.size or bool(known[slot])


def _cell_known(state: RunState, row: int, column: int) -> bool:
    if row < 0 or column < 0:
        return True
    cell = row * state.table.width + column
    return cell >= state.table.entries.size or bool(state.table.mapped_at[cell] >= state.table.known_since)
