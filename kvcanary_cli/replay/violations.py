"""Violation rows of the kernels, joined with the lanes they belong to.

A row of the ring names a slot but neither the row of the table nor the request; both are looked up while the
page table is still what the kernel saw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kvcanary_cli.kernels.chains_ref import chain_step
from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_KV_HASH,
    BIT_OUT_OF_RANGE,
    BIT_POSITION,
    BIT_VERIFY_TOKEN,
    BIT_WRITE_POSITION,
    BIT_WRITE_TOKEN,
    RING_AUX,
    RING_BITS,
    RING_EXPECTED_TOKEN,
    RING_POSITION,
    RING_SLOT,
    RING_STORED_PREV_HASH,
    RING_STORED_TOKEN,
    RING_TAG,
    LaunchTag,
)
from kvcanary_cli.replay.state import RunState
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.calls import ForwardCall, IntArray, SweepCall
from kvcanary_cli.runtime.layout import HEAD, SWA, SWEEP, TAIL, launch_tag
from kvcanary_cli.runtime.page_table import find_cells

VERIFY_BITS = BIT_CHAIN_HASH | BIT_POSITION | BIT_KV_HASH | BIT_VERIFY_TOKEN
WRITE_BITS = BIT_WRITE_TOKEN | BIT_WRITE_POSITION

_SWEEP_TAGS = np.array([launch_tag(SWEEP, half, group) for group in ("full", SWA) for half in "kv"])

# A wrong table fails at every column and every step. Slots that never failed before are looked at first.
MOST_NEW, MOST_KNOWN = 8192, 256

KnownSlots = Callable[[str, IntArray], npt.NDArray[np.bool_]]


def none_known(group: str, slots: IntArray) -> npt.NDArray[np.bool_]:
    """No slot failed before."""
    return np.zeros(slots.size, np.bool_)


@dataclass(frozen=True, kw_only=True, slots=True)
class ViolationBatch:
    """Violations of one forward or sweep.

    Attributes:
        step: forward, from 0; a sweep carries the step of the forward before it.
        rows: [n, 8] int64 as the kernels wrote them, in a fixed order.
        table_row: [n] int64 page-table row, -1 for sweeps or when no lane reaches the slot.
        rids: [n] request of that row, None without one.
        positions: [n] int64 position at which the table (or the cache) reaches the slot.
        predecessors: [n] int64 slot before it there, -1 at a head, -2 when not known.
        lost: further violations, counted and not looked at: those that the log had no room for, and the
            repetitions in a forward that has thousands.
    """

    step: int
    rows: IntArray
    table_row: IntArray
    rids: list[str | None]
    positions: IntArray
    predecessors: IntArray
    lost: int = 0

    def __len__(self) -> int:
        return int(self.rows.shape[0])


def group_of_tag(tag: int) -> str:
    """Buffer group of a launch tag."""
    return SWA if tag >= LaunchTag.HEAD_K_SWA else "full"


def is_write(bits: IntArray) -> npt.NDArray[np.bool_]:
    """Whether a row came from a write launch."""
    return (bits & WRITE_BITS) != 0


def collect_forward(
    runtime: Runtime, state: RunState, step: int, call: ForwardCall, is_known: KnownSlots
) -> ViolationBatch | None:
    """Violations of the forward that just ran, None when there are none.

    Args:
        is_known: `(group, slots) ->` whether each slot failed before.
    """
    rows, lost = runtime.drain()
    if rows.shape[0] == 0 and not lost:
        return None
    total = rows.shape[0] + lost
    rows = _worth_a_look(rows, is_known)
    lost = total - rows.shape[0]
    rows = rows[
        np.lexsort((rows[:, RING_POSITION], rows[:, RING_BITS], rows[:, RING_SLOT], rows[:, RING_TAG]))
    ]
    table_row = np.full(rows.shape[0], -1, np.int64)
    positions = rows[:, RING_POSITION].copy()
    predecessors = np.full(rows.shape[0], -2, np.int64)
    for group in runtime.layout.groups:
        in_group = np.array([_group_kind(runtime, tag) == group.kind for tag in rows[:, RING_TAG]], np.bool_)
        lut = state.swa_map if group.kind == SWA and runtime.layout.maps_window else np.zeros(0, np.int64)
        starts = call.prefix - runtime.entry_counts(group, call)
        cells = find_cells(
            state.table.entries, lut, call.rows, starts, call.prefix, state.table.width,
            np.unique(rows[in_group, RING_SLOT]),
        )  # fmt: skip
        written = runtime.in_group(group, call.slots)
        for tag in np.unique(rows[in_group, RING_TAG]):
            at = np.nonzero(in_group & (rows[:, RING_TAG] == tag))[0]
            verify = at[~_from_write(rows[at], written)]
            phase = HEAD if LaunchTag(int(tag)).name.startswith("HEAD") else TAIL
            chain_after = partial(_chain_after, runtime, group.kind, phase)
            _place_verify(
                rows, verify, cells, call, state, lut, chain_after, table_row, positions, predecessors
            )
            _place_write(
                rows, np.setdiff1d(at, verify), written, call, state, lut, table_row, positions, predecessors
            )
    return ViolationBatch(
        step=step,
        rows=rows,
        table_row=table_row,
        rids=[state.table.row_rid[row] if row > 0 else None for row in table_row.tolist()],
        positions=positions,
        predecessors=predecessors,
        lost=lost,
    )


def collect_sweep(
    runtime: Runtime, step: int, call: SweepCall, is_known: KnownSlots
) -> ViolationBatch | None:
    """Violations of the sweep that just ran over these entries of one group."""
    rows, lost = runtime.drain()
    if rows.shape[0] == 0 and not lost:
        return None
    total = rows.shape[0] + lost
    rows = _worth_a_look(rows, is_known)
    lost = total - rows.shape[0]
    rows = rows[
        np.lexsort((rows[:, RING_POSITION], rows[:, RING_BITS], rows[:, RING_SLOT], rows[:, RING_TAG]))
    ]
    positions = rows[:, RING_POSITION].copy()
    predecessors = np.full(rows.shape[0], -2, np.int64)
    order = np.argsort(call.slots, kind="stable")
    first = np.searchsorted(call.slots[order], rows[:, RING_SLOT])
    for i, at in enumerate(first.tolist()):
        # the entry whose position explains the row: a slot may stand in several
        while at < order.size and call.slots[order[at]] == rows[i, RING_SLOT]:
            position = int(call.positions[order[at]])
            positions[i], predecessors[i] = position, call.predecessors[order[at]]
            if bool(rows[i, RING_BITS] & BIT_POSITION) == (position != rows[i, RING_POSITION]):
                break
            at += 1
    return ViolationBatch(
        step=step,
        rows=rows,
        table_row=np.full(rows.shape[0], -1, np.int64),
        rids=[None] * rows.shape[0],
        positions=positions,
        predecessors=predecessors,
        lost=lost,
    )


def _worth_a_look(rows: IntArray, is_known: KnownSlots) -> IntArray:
    """All rows of a forward with few of them; else every new slot up to a number, and some of the others."""
    if rows.shape[0] <= MOST_KNOWN:
        return rows
    known = np.zeros(rows.shape[0], np.bool_)
    of_window = rows[:, RING_TAG] >= LaunchTag.HEAD_K_SWA
    for group, chosen in (("full", ~of_window), (SWA, of_window)):
        known[chosen] = is_known(group, rows[chosen, RING_SLOT])
    new, old = np.nonzero(~known)[0][:MOST_NEW], np.nonzero(known)[0][:MOST_KNOWN]
    return rows[np.sort(np.concatenate([new, old]))]


def _group_kind(runtime: Runtime, tag: int) -> str:
    kind = group_of_tag(tag)
    return kind if any(g.kind == kind for g in runtime.layout.groups) else runtime.layout.groups[0].kind


def _from_write(rows: IntArray, written: IntArray) -> npt.NDArray[np.bool_]:
    """Rows of a write launch: by their bits, or out of range at a slot that the forward writes."""
    bits = rows[:, RING_BITS]
    refused_write = (bits == BIT_OUT_OF_RANGE) & (rows[:, RING_STORED_TOKEN] == rows[:, RING_EXPECTED_TOKEN])
    refused_write &= np.isin(rows[:, RING_SLOT], written) & (rows[:, RING_AUX] != 0)
    seed_refused = (bits == BIT_OUT_OF_RANGE) & (rows[:, RING_POSITION] == -1)
    return is_write(bits) | refused_write | seed_refused


def _place_verify(
    rows: IntArray, at: IntArray, cells: IntArray, call: ForwardCall, state: RunState, lut: IntArray,
    chain_after: Callable[[int], int], table_row: IntArray, positions: IntArray, predecessors: IntArray,
) -> None:  # fmt: skip
    """Give each verify row the cell that explains it; every cell is used once."""
    used = np.zeros(cells.shape[0], np.bool_)
    by_slot = np.argsort(cells[:, 2], kind="stable")
    slots = cells[by_slot, 2]
    for i in at.tolist():
        first = int(np.searchsorted(slots, rows[i, RING_SLOT]))
        last = int(np.searchsorted(slots, rows[i, RING_SLOT], side="right"))
        free = [int(cell) for cell in by_slot[first:last] if not used[cell]]
        if not free:
            continue
        before = [_slot_before(state, int(call.rows[cells[c, 0]]), int(cells[c, 1]), lut) for c in free]
        k = _best_cell(rows[i], [int(cells[c, 1]) for c in free], before, chain_after) if len(free) > 1 else 0
        used[free[k]] = True
        table_row[i], positions[i] = call.rows[cells[free[k], 0]], cells[free[k], 1]
        predecessors[i] = before[k]


def _best_cell(
    row: IntArray, columns: list[int], before: list[int], chain_after: Callable[[int], int]
) -> int:
    """Which of several cells of one slot a row is about: position and expected chain tell."""
    failed = int(row[RING_BITS])
    aux = int(row[RING_AUX]) & (2**64 - 1)
    fitting = [k for k, c in enumerate(columns) if bool(failed & BIT_POSITION) == (c != row[RING_POSITION])]
    if failed & BIT_CHAIN_HASH and len({before[k] for k in fitting}) > 1:
        for k in fitting:
            if before[k] > 0 and chain_after(before[k]) == aux:
                return k
    return fitting[0] if fitting else 0


def _chain_after(runtime: Runtime, group: str, phase: str, slot: int) -> int:
    """Chain value after the stamp that a slot has now."""
    if not 0 <= slot < runtime.layout.group(group).num_slots:
        return 0
    token, position, prev_hash, _ = (int(word) for word in runtime.read_stamp(group, slot, phase))
    return chain_step(prev_hash, token, position, runtime.layout.is_affine)


def _slot_before(state: RunState, row: int, column: int, lut: IntArray) -> int:
    """Slot that the table has before a column, in the group of `lut`; -1 at the head."""
    if column <= 0:
        return -1
    before = state.table.slots_of(row, column - 1, column)
    slot = int(before[0]) if before.size else -1
    if lut.size and slot >= 0:
        slot = int(lut[slot]) if slot < lut.size else -1
    return slot


def _place_write(
    rows: IntArray, at: IntArray, written: IntArray, call: ForwardCall, state: RunState, lut: IntArray,
    table_row: IntArray, positions: IntArray, predecessors: IntArray,
) -> None:  # fmt: skip
    """Give each write row the lane that wrote it, and the slot that its chain goes on from."""
    if not at.size:
        return
    lanes = np.repeat(np.arange(call.rows.size), call.lens)
    columns = np.arange(lanes.size) + (call.prefix - (np.cumsum(call.lens) - call.lens))[lanes]
    for i in at.tolist():
        match = np.nonzero((written == rows[i, RING_SLOT]) & (call.positions == rows[i, RING_POSITION]))[0]
        if match.size:
            entry = int(match[0])
            lane = int(lanes[entry])
            table_row[i], positions[i] = call.rows[lane], columns[entry]
            if entry > 0 and lanes[entry - 1] == lane:
                predecessors[i] = written[entry - 1]
            else:
                predecessors[i] = _slot_before(state, int(call.rows[lane]), int(call.prefix[lane]), lut)


def expected_of(row: IntArray, position: int) -> dict[str, int | None]:
    """What the check expected, by field; None where it had no expectation."""
    bits = int(row[RING_BITS])
    token = int(row[RING_EXPECTED_TOKEN])
    if bits & WRITE_BITS:
        return {"token": token, "position": int(row[RING_AUX]), "prev_hash": None}
    if bits == BIT_OUT_OF_RANGE:
        return {"token": token if token >= 0 else None, "position": position, "prev_hash": None}
    return {
        "token": token if token >= 0 else None,
        "position": position,
        "prev_hash": int(row[RING_AUX]) & (2**64 - 1),
    }


def stored_of(row: IntArray) -> dict[str, int | None]:
    """What the stamp (or the write) held, by field."""
    return {
        "token": int(row[RING_STORED_TOKEN]),
        "position": int(row[RING_POSITION]),
        "prev_hash": int(row[RING_STORED_PREV_HASH]) & (2**64 - 1),
    }
