"""Turn a forward's page table rows into a verify plan and a write plan, in plain Python.

Twins: `plan_cpu.py`, `plan.py`. All three write the same bytes.
"""

from __future__ import annotations

import numpy as np

from kvcanary_cli.kernels._checks import check_plan
from kvcanary_cli.kernels.plans_cpu import VerifyPlan, WritePlan

Entry = tuple[int, int, int, int]  # slot, expected token, position, predecessor


def plan_ref(
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
    entries: list[Entry] = []
    offset = 0
    for lane, (row, prefix, extend) in enumerate(
        zip(req_pool_indices.tolist(), prefix_lens.tolist(), extend_seq_lens.tolist(), strict=True)
    ):
        is_padded = row <= 0 or row >= req_to_token.shape[0]
        seed = -1
        write_plan_out.write_offsets[lane] = offset
        if not is_padded:
            start = max(0, prefix - swa_window_size) if swa_window_size > 0 else 0
            for position in range(start, prefix):
                slot = _slot(req_to_token, full_to_swa, row, position)
                prev = _slot(req_to_token, full_to_swa, row, position - 1) if position > 0 else -1
                column = position + token_id_vs_position_offset
                token = _expected_token(expected_tokens, expected_valid_lens, lane, row, column)
                entries.append((slot, token, position, prev))
            if extend > 0 and prefix > 0:
                seed = _slot(req_to_token, full_to_swa, row, prefix - 1)
            offset += max(extend, 0)
        write_plan_out.write_seed_slot_indices[lane] = seed
    num_lanes = len(req_pool_indices)
    write_plan_out.write_offsets[num_lanes] = offset
    write_plan_out.write_num_valid_reqs[0] = num_lanes
    _store_entries(verify_plan_out, entries)


def _store_entries(plan: VerifyPlan, entries: list[Entry]) -> None:
    capacity = plan.verify_capacity
    if len(entries) > capacity:
        plan.enable[0] = 0
        plan.verify_num_valid[0] = capacity
        return
    plan.enable[0] = 1
    plan.verify_num_valid[0] = len(entries)
    for index, (slot, token, position, prev) in enumerate(entries):
        plan.verify_slot_indices[index] = slot
        plan.verify_expected_tokens[index] = token
        plan.verify_expected_positions[index] = position
        plan.verify_prev_slot_indices[index] = prev


def _slot(req_to_token: np.ndarray, full_to_swa: np.ndarray | None, row: int, position: int) -> int:
    # a position past the row's end is the next row's memory; past the table's end there is none
    cell = row * req_to_token.shape[1] + position
    if cell >= req_to_token.size:
        return -1
    slot = int(req_to_token.reshape(-1)[cell])
    if full_to_swa is None or slot < 0:
        return slot
    return int(full_to_swa[slot]) if slot < len(full_to_swa) else -1


def _expected_token(
    pool: np.ndarray | None, valid_lens: np.ndarray | None, lane: int, row: int, column: int
) -> int:
    if pool is None or valid_lens is None or not 0 <= column < int(valid_lens[lane]):
        return -1
    # the scatter cuts at the pool's width, so nothing is known beyond it
    if row >= pool.shape[0] or column >= pool.shape[1]:
        return -1
    return int(pool[row, column])
