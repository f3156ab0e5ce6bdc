"""Verification straight from the page table says what plan and verify say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary_cli.kernels import fused_cpu
from kvcanary_cli.kernels._vector_backends import load_backend
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.kernels.fused_cpu import BLOCK_ENTRIES, verify_table_cpu
from kvcanary_cli.kernels.plans_cpu import VerifyPlan, WritePlan
from tests.kernels.cases import PlanCase, Stamps, guarded_log, make_plan_case, make_sources, read_log

NUM_SLOTS = 480  # tables and maps of the cases name slots up to 500: some lie outside of the buffer


def make_stamps_for(case: PlanCase, seed: int) -> Stamps:
    """Stamps in which most entries of the table are right, and those of shared slots can't be."""
    rng = np.random.default_rng(5000 + seed)
    hash_mode = int(rng.integers(0, 3))
    sources = make_sources(rng, int(rng.integers(0, 3)), NUM_SLOTS)
    buffer = rng.integers(0, 20, (NUM_SLOTS, (4, 6)[seed % 2]))
    stamps = Stamps(buffer=buffer, lanes=[], sources=sources, hash_mode=hash_mode, num_slots=NUM_SLOTS)
    numba = load_backend("numba")
    lanes = len(case.rows)
    plan = WritePlan.allocate(max(1, lanes), "cpu")
    plan.write_num_valid_reqs[0] = lanes
    width = case.table.shape[1]
    plan.write_offsets[: lanes + 1] = np.arange(lanes + 1) * width
    plan.write_seed_slot_indices[:] = -1
    rows = np.clip(case.rows, 0, len(case.table) - 1)
    slots = case.table[rows].astype(np.int64).reshape(-1)
    if case.full_to_swa is not None:
        slots = np.where(slots < len(case.full_to_swa), case.full_to_swa[slots % len(case.full_to_swa)], -1)
    numba.write(
        canary_buf=buffer,
        plan=plan,
        input_ids=rng.integers(0, 9, len(slots)),
        positions=np.tile(np.arange(width), lanes),
        out_cache_loc=slots,
        sources=stamps.kv_sources(numba),
        hash_mode=hash_mode,
        launch_tag=0,
        log=numba.log.allocate(1, "cpu"),
        expected_inputs=None,
        chain_position_assert=False,
    )
    return stamps


def run_two_steps(
    case: PlanCase, stamps: Stamps, ring_capacity: int, checks_tokens: bool
) -> dict[str, np.ndarray]:
    numba = load_backend("numba")
    verify_plan = VerifyPlan.allocate(case.capacity, "cpu")
    log, memory = guarded_log(numba, ring_capacity)
    numba.plan(
        verify_plan_out=verify_plan,
        write_plan_out=WritePlan.allocate(max(1, len(case.rows)), "cpu"),
        req_pool_indices=case.rows,
        prefix_lens=case.prefix_lens,
        extend_seq_lens=case.extend_lens,
        req_to_token=case.table,
        swa_window_size=case.window,
        full_to_swa=case.full_to_swa,
        expected_tokens=case.pool,
        expected_valid_lens=case.valid_lens,
        token_id_vs_position_offset=case.token_offset,
    )
    numba.verify(
        canary_buf=stamps.buffer,
        plan=verify_plan,
        sources=stamps.kv_sources(numba),
        hash_mode=stamps.hash_mode,
        launch_tag=5,
        log=log,
        check_expected_token=checks_tokens,
    )
    return read_log(numba, log, memory)


def run_fused(
    case: PlanCase, stamps: Stamps, ring_capacity: int, checks_tokens: bool
) -> tuple[int, dict[str, np.ndarray]]:
    numba = load_backend("numba")
    log, memory = guarded_log(numba, ring_capacity)
    wanted = verify_table_cpu(
        canary_buf=stamps.buffer,
        req_pool_indices=case.rows,
        prefix_lens=case.prefix_lens,
        req_to_token=case.table,
        swa_window_size=case.window,
        full_to_swa=np.zeros(0, dtype=np.int64) if case.full_to_swa is None else case.full_to_swa,
        expected_tokens=np.zeros((0, 0), dtype=np.int32) if case.pool is None else case.pool,
        expected_valid_lens=np.zeros(0, dtype=np.int64) if case.valid_lens is None else case.valid_lens,
        token_id_vs_position_offset=case.token_offset,
        sources=stamps.kv_sources(numba),
        hash_mode=stamps.hash_mode,
        launch_tag=5,
        log=log,
        check_expected_token=checks_tokens,
        verify_capacity=case.capacity,
    )
    return wanted, read_log(numba, log, memory)


@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
@pytest.mark.parametrize("num_lanes", [0, 1, 17, 90])
@pytest.mark.parametrize("seed", range(12))
def test_says_what_plan_and_verify_say(seed, num_lanes, parallel, monkeypatch):
    monkeypatch.setattr(fused_cpu, "PARALLEL_ENTRIES", -(2**62) if parallel else 2**62)
    case = make_plan_case(seed, num_lanes)
    stamps = make_stamps_for(case, seed)
    for ring_capacity, checks_tokens in ((4096, True), (3, False)):
        want = run_two_steps(case, stamps, ring_capacity, checks_tokens)
        wanted, done = run_fused(case, stamps, ring_capacity, checks_tokens)
        assert wanted == want["slot_run"] - 1000
        # in entry order, too
        for name in want:
            np.testing.assert_array_equal(done[name], want[name], err_msg=name)


def test_the_cases_are_hard_enough():
    """More entries than a block, and every kind of violation."""
    bits = 0
    most_entries = 0
    for seed in range(6):
        case = make_plan_case(seed, 90)
        done = run_two_steps(case, make_stamps_for(case, seed), 4096, True)
        bits |= int(np.bitwise_or.reduce(done["rows"][:, 7]))
        most_entries = max(most_entries, int(done["slot_run"][0]) - 1000)
    assert bits == 0b1100111
    assert most_entries > BLOCK_ENTRIES


@pytest.mark.parametrize("short", [0, 1])
def test_more_entries_than_the_capacity_are_not_checked(short):
    case = make_plan_case(2, 17)
    stamps = make_stamps_for(case, 2)
    needed, _ = run_fused(case, stamps, 64, True)
    case = replace(case, capacity=needed - short)
    wanted, done = run_fused(case, stamps, 64, True)
    want = run_two_steps(case, stamps, 64, True)
    assert wanted == needed
    assert done["slot_run"] == 1000 + (0 if short else needed)
    for name in want:
        np.testing.assert_array_equal(done[name], want[name], err_msg=name)


REFUSALS = {
    "window-without-map": (
        {"swa_window_size": 4},
        "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
    ),
    "rows-dtype": (
        {"req_pool_indices": np.zeros(2, dtype=np.int32)},
        "kv-canary: req_pool_indices must have dtype int64, got int32",
    ),
    "prefix-length": (
        {"prefix_lens": np.zeros(3, dtype=np.int64)},
        "kv-canary: prefix_lens length must be 2, got 3",
    ),
    "lens-length": (
        {"expected_tokens": np.zeros((2, 4), dtype=np.int32)},
        "kv-canary: expected_valid_lens length must be 2, got 0",
    ),
    "stamps": (
        {"canary_buf": np.zeros((5, 3), dtype=np.int64)},
        "kv-canary: canary_buf must have at least 4 words a row, got 3",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals(refusal):
    changes, message = REFUSALS[refusal]
    log = load_backend("numba").log.allocate(4, "cpu")
    arguments = {
        "canary_buf": np.zeros((5, 4), dtype=np.int64),
        "req_pool_indices": np.zeros(2, dtype=np.int64),
        "prefix_lens": np.zeros(2, dtype=np.int64),
        "req_to_token": np.zeros((2, 4), dtype=np.int32),
        "swa_window_size": 0,
        "full_to_swa": np.zeros(0, dtype=np.int64),
        "expected_tokens": np.zeros((0, 0), dtype=np.int32),
        "expected_valid_lens": np.zeros(0, dtype=np.int64),
    }
    with pytest.raises(ValueError, match="kv-canary") as caught:
        verify_table_cpu(
            **(arguments | changes),
            token_id_vs_position_offset=0,
            sources=[],
            hash_mode=HashMode.NONE,
            launch_tag=0,
            log=log,
            check_expected_token=True,
        )
    assert str(caught.value) == message
    assert log.kernel_run_counter[0] == 0
