"""Turn a forward's page table rows into a verify plan and a write plan, compiled by Numba.

Twins: `plan.py`, `plan_ref.py`. `plan_cpu` checks its arguments; `plan_serial` and `plan_parallel` take the
same arrays unchecked, for callers that make thousands of launches a second.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from kvcanary_cli.kernels._checks import check_plan
from kvcanary_cli.kernels.memory_cpu import NO_POOL, NO_WORDS, NUM_CHUNKS
from kvcanary_cli.kernels.plans_cpu import VerifyPlan, WritePlan

PARALLEL_ENTRIES = 65536  # see `verify_cpu.PARALLEL_ENTRIES`


def plan_cpu(
    *,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: np.ndarray,
    prefix_lens: np.ndarray,
    extend_seq_lens: np.ndarray,
    req_to_token: np.ndarray,
    swa_window_size: int,
    full_to_swa: np.ndarray | None,
    expected_tokens: np.ndarray | None,
    expected_valid_lens: np.ndarray | None,
    token_id_vs_position_offset: int,
    verify_capacity: int | None = None,
    write_req_capacity: int | None = None,
) -> None:
    """`launch_plan` on NumPy arrays: same arguments, same outputs, same refusals."""
    check_plan(
        verify_plan_out=verify_plan_out,
        write_plan_out=write_plan_out,
        req_pool_indices=req_pool_indices,
        prefix_lens=prefix_lens,
        extend_seq_lens=extend_seq_lens,
        req_to_token=req_to_token,
        swa_window_size=swa_window_size,
        full_to_swa=full_to_swa,
        expected_tokens=expected_tokens,
        expected_valid_lens=expected_valid_lens,
        verify_capacity=verify_capacity,
        write_req_capacity=write_req_capacity,
    )
    is_small = int(prefix_lens.sum()) < PARALLEL_ENTRIES
    plan = plan_serial if is_small else plan_parallel
    plan(
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        int(swa_window_size),
        full_to_swa is not None,
        NO_WORDS if full_to_swa is None else full_to_swa,
        NO_POOL if expected_tokens is None else expected_tokens,
        NO_WORDS if expected_valid_lens is None else expected_valid_lens,
        int(token_id_vs_position_offset),
        verify_plan_out.verify_slot_indices,
        verify_plan_out.verify_expected_tokens,
        verify_plan_out.verify_expected_positions,
        verify_plan_out.verify_prev_slot_indices,
        verify_plan_out.verify_num_valid,
        verify_plan_out.enable,
        write_plan_out.write_offsets,
        write_plan_out.write_seed_slot_indices,
        write_plan_out.write_num_valid_reqs,
        write_plan_out.verify_offsets,
    )


@njit(cache=True)
def is_padded(row, num_rows):
    """Whether a lane does nothing: row 0, or a row outside the table, which the caller's check reports."""
    return row <= 0 or row >= num_rows


@njit(cache=True)
def window_start(prefix, window):
    """First position of a lane that is verified."""
    return max(np.int64(0), prefix - window) if window > 0 else np.int64(0)


@njit(cache=True)
def value_at(array, index):
    """The element, or -1 outside of the array."""
    # one comparison for both ends: absurd lengths make a cell overflow
    return np.int64(array[index]) if np.uint64(index) < np.uint64(array.shape[0]) else np.int64(-1)


@njit(cache=True)
def table_slot(cells, cell, has_map, full_to_swa):
    """Slot at a cell of the flat page table, through the window map if there is one; -1 outside of either."""
    # Both arrays are used on every path: where one is used on some paths only, Numba counts references to it
    # at each call, which costs ten times the work.
    slot = value_at(cells, cell)
    mapped = value_at(full_to_swa, slot)
    return mapped if has_map and slot >= 0 else slot


@njit(cache=True)
def count_entries(req_pool_indices, prefix_lens, num_rows, window, out_verify_offsets):
    """Where each lane's verify entries begin. Returns their number, which also ends the offsets."""
    total = np.int64(0)
    for lane in range(req_pool_indices.shape[0]):
        out_verify_offsets[lane] = total
        if not is_padded(req_pool_indices[lane], num_rows):
            total += max(np.int64(0), prefix_lens[lane] - window_start(prefix_lens[lane], window))
    out_verify_offsets[req_pool_indices.shape[0]] = total
    return total


@njit(cache=True, nogil=True)
def fill_entries(
    req_pool_indices,
    prefix_lens,
    cells,  # [rows * width] int32, the page table as flat memory
    width,
    window,
    has_map,
    full_to_swa,
    expected_tokens,  # [rows, width] int32, or [0, 0]: none known
    expected_valid_lens,
    token_id_vs_position_offset,
    verify_offsets,  # [lanes + 1] int64, `count_entries`
    start,
    stop,
    shift,  # entry e is stored at e - shift
    out_slots,
    out_tokens,
    out_positions,
    out_prevs,
):
    """Write verify entries [start, stop)."""
    num_lanes = req_pool_indices.shape[0]
    lane = np.searchsorted(verify_offsets[: num_lanes + 1], start, side="right") - 1
    entry = start
    while entry < stop:
        # empty lanes are stepped over: the lane is the last one that begins at or before the entry
        while verify_offsets[lane + 1] <= entry:
            lane += 1
        row = req_pool_indices[lane]
        position = window_start(prefix_lens[lane], window) + entry - verify_offsets[lane]
        cell = row * width + position
        prev = table_slot(cells, cell - 1, has_map, full_to_swa) if position > 0 else np.int64(-1)
        num_known = np.int64(0)
        if row < expected_tokens.shape[0]:
            # the scatter cuts at the pool's width, so nothing is known beyond it
            num_known = min(expected_valid_lens[lane], np.int64(expected_tokens.shape[1]))
        for out in range(entry - shift, min(stop, verify_offsets[lane + 1]) - shift):
            slot = table_slot(cells, cell, has_map, full_to_swa)
            column = position + token_id_vs_position_offset
            out_slots[out] = slot
            out_tokens[out] = expected_tokens[row, column] if 0 <= column < num_known else -1
            out_positions[out] = position
            out_prevs[out] = prev
            prev = slot
            cell += 1
            position += 1
        entry = verify_offsets[lane + 1]


@njit(cache=True)
def plan_writes(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    cells,
    num_rows,
    width,
    has_map,
    full_to_swa,
    out_write_offsets,
    out_write_seeds,
    out_write_num_valid,
):
    """Write offsets and seeds of all lanes."""
    offset = np.int64(0)
    num_lanes = req_pool_indices.shape[0]
    for lane in range(num_lanes):
        row, prefix, extend = req_pool_indices[lane], prefix_lens[lane], extend_seq_lens[lane]
        out_write_offsets[lane] = offset
        seed = np.int64(-1)
        if not is_padded(row, num_rows):
            offset += max(np.int64(0), extend)
            if extend > 0 and prefix > 0:
                seed = table_slot(cells, row * width + prefix - 1, has_map, full_to_swa)
        out_write_seeds[lane] = seed
    out_write_offsets[num_lanes] = offset
    out_write_num_valid[0] = num_lanes


@njit(cache=True)
def plan_offsets(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    window,
    has_map,
    full_to_swa,
    capacity,
    out_num_valid,
    out_enable,
    out_write_offsets,
    out_write_seeds,
    out_write_num_valid,
    out_verify_offsets,
):
    """Everything but the verify entries. Returns how many of them to write: none if they don't fit."""
    num_rows, width = req_to_token.shape
    plan_writes(
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token.reshape(-1),
        num_rows,
        width,
        has_map,
        full_to_swa,
        out_write_offsets,
        out_write_seeds,
        out_write_num_valid,
    )
    total = count_entries(req_pool_indices, prefix_lens, num_rows, window, out_verify_offsets)
    fits = total <= capacity
    out_enable[0] = 1 if fits else 0
    out_num_valid[0] = min(total, capacity)
    return total if fits else np.int64(0)


@njit(cache=True)
def plan_serial(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    window,
    has_map,
    full_to_swa,
    expected_tokens,
    expected_valid_lens,
    token_id_vs_position_offset,
    out_slots,
    out_tokens,
    out_positions,
    out_prevs,
    out_num_valid,
    out_enable,
    out_write_offsets,
    out_write_seeds,
    out_write_num_valid,
    out_verify_offsets,
):
    """One launch on the calling thread: as `plan_cpu`, unchecked, with empty arrays for absent ones."""
    total = plan_offsets(
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        window,
        has_map,
        full_to_swa,
        np.int64(out_slots.shape[0]),
        out_num_valid,
        out_enable,
        out_write_offsets,
        out_write_seeds,
        out_write_num_valid,
        out_verify_offsets,
    )
    fill_entries(
        req_pool_indices,
        prefix_lens,
        req_to_token.reshape(-1),
        req_to_token.shape[1],
        window,
        has_map,
        full_to_swa,
        expected_tokens,
        expected_valid_lens,
        token_id_vs_position_offset,
        out_verify_offsets,
        np.int64(0),
        total,
        np.int64(0),
        out_slots,
        out_tokens,
        out_positions,
        out_prevs,
    )


@njit(cache=True, parallel=True)
def plan_parallel(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    window,
    has_map,
    full_to_swa,
    expected_tokens,
    expected_valid_lens,
    token_id_vs_position_offset,
    out_slots,
    out_tokens,
    out_positions,
    out_prevs,
    out_num_valid,
    out_enable,
    out_write_offsets,
    out_write_seeds,
    out_write_num_valid,
    out_verify_offsets,
):
    """`plan_serial` on all of Numba's threads."""
    total = plan_offsets(
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        window,
        has_map,
        full_to_swa,
        np.int64(out_slots.shape[0]),
        out_num_valid,
        out_enable,
        out_write_offsets,
        out_write_seeds,
        out_write_num_valid,
        out_verify_offsets,
    )
    for chunk in prange(NUM_CHUNKS):
        fill_entries(
            req_pool_indices,
            prefix_lens,
            req_to_token.reshape(-1),
            req_to_token.shape[1],
            window,
            has_map,
            full_to_swa,
            expected_tokens,
            expected_valid_lens,
            token_id_vs_position_offset,
            out_verify_offsets,
            total * chunk // NUM_CHUNKS,
            total * (chunk + 1) // NUM_CHUNKS,
            np.int64(0),
            out_slots,
            out_tokens,
            out_positions,
            out_prevs,
        )
