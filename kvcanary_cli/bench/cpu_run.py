"""The CPU backend's kernels, as multiples of a bare gather of the same stamps in the same run.

Times of a laptop and a server can't be compared, ratios can: a gather of random stamps is what the machine's memory
allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit, prange

from kvcanary_cli.bench.cases import Case
from kvcanary_cli.bench.inputs import Inputs, make_inputs
from kvcanary_cli.bench.rows import CpuRow
from kvcanary_cli.kernels.consts import HashMode, LaunchTag
from kvcanary_cli.kernels.fused_cpu import PARALLEL_ENTRIES, verify_table_cpu
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.memory_cpu import NO_POOL, NO_WORDS, NUM_CHUNKS
from kvcanary_cli.kernels.plans_cpu import WritePlan
from kvcanary_cli.kernels.write_cpu import write_cpu

ROUNDS = 7
MAX_ENTRIES = 1 << 20  # larger cases would take minutes on a small machine and say nothing else


def run_cpu(cases: Sequence[Case]) -> list[CpuRow]:
    """Rows of all cases without byte sources that have at most `MAX_ENTRIES` stamps."""
    rows: list[CpuRow] = []
    for case in cases:
        if not case.num_sources and case.num_verified + case.num_written <= MAX_ENTRIES + case.lanes:
            rows += _case_rows(case, make_inputs(case, "random"))
    return rows


def _case_rows(case: Case, inputs: Inputs) -> list[CpuRow]:
    log = ViolationLog.allocate(64, "cpu")
    stamps = inputs.stamps.copy()
    rows = []
    if case.num_verified:
        prefix = np.ascontiguousarray(inputs.table[1:, : case.prefix]).reshape(-1)
        gather = _seconds(lambda: _gather(inputs.stamps, prefix))
        verify = _verify_of(inputs, log)
        verify()
        problem = _problem(log, case.num_verified, "entries")
        ratio = None if problem else _seconds(verify) / gather
        rows.append(
            CpuRow(
                case=case.name, operation="verify", entries=case.num_verified, ratio=ratio, problem=problem
            )
        )
    if case.num_written:
        gather = _seconds(lambda: _gather(stamps, inputs.slots.astype(np.int32)))
        log = ViolationLog.allocate(64, "cpu")
        write = _write_of(case, inputs, stamps, log)
        write()
        problem = _problem(log, case.num_written, "stamps")
        if not problem and not np.array_equal(stamps[inputs.slots], inputs.written[inputs.slots]):
            problem = "stamps differ from those that NumPy computes"
        ratio = None if problem else _seconds(write) / gather
        rows.append(
            CpuRow(case=case.name, operation="write", entries=case.num_written, ratio=ratio, problem=problem)
        )
    return rows


def _verify_of(inputs: Inputs, log: ViolationLog) -> Callable[[], object]:
    return lambda: verify_table_cpu(
        canary_buf=inputs.stamps,
        req_pool_indices=inputs.rows,
        prefix_lens=inputs.prefix_lens,
        req_to_token=inputs.table,
        swa_window_size=0,
        full_to_swa=NO_WORDS,
        expected_tokens=NO_POOL,
        expected_valid_lens=NO_WORDS,
        token_id_vs_position_offset=0,
        sources=[],
        hash_mode=HashMode.NONE,
        launch_tag=LaunchTag.HEAD_K_FULL,
        log=log,
        check_expected_token=False,
    )


def _write_of(case: Case, inputs: Inputs, stamps: np.ndarray, log: ViolationLog) -> Callable[[], object]:
    plan = WritePlan.allocate(case.lanes, "cpu")
    plan.write_offsets[:] = inputs.write_offsets
    plan.write_seed_slot_indices[:] = inputs.seeds
    plan.write_num_valid_reqs[0] = case.lanes
    return lambda: write_cpu(
        canary_buf=stamps,
        plan=plan,
        input_ids=inputs.tokens,
        positions=inputs.positions,
        out_cache_loc=inputs.slots,
        sources=[],
        hash_mode=HashMode.NONE,
        launch_tag=LaunchTag.HEAD_K_FULL,
        log=log,
        expected_inputs=None,
        chain_position_assert=True,
    )


def _problem(log: ViolationLog, entries: int, noun: str) -> str:
    if log.count:
        return f"{log.count} violations in right stamps"
    counted = int(log.slot_run_counter[0])
    return "" if counted == entries else f"{counted} of {entries} {noun} were counted"


def _seconds(run: Callable[[], object]) -> float:
    """Median of some rounds, the first of which, that compiles, is not counted."""
    run()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _gather(stamps: np.ndarray, slots: np.ndarray) -> int:
    """Read the stamps in these slots, on as many threads as a check of them would use."""
    gather = _gather_serial if slots.size < PARALLEL_ENTRIES else _gather_parallel
    return int(gather(stamps, slots))


def _sum_words(stamps, slots):  # type: ignore[no-untyped-def]
    """Sum of all words of the stamps in these slots: reads what a check reads, and does nothing with it."""
    total = np.int64(0)
    for chunk in prange(NUM_CHUNKS):
        for index in range(slots.shape[0] * chunk // NUM_CHUNKS, slots.shape[0] * (chunk + 1) // NUM_CHUNKS):
            slot = slots[index]
            total += stamps[slot, 0] + stamps[slot, 1] + stamps[slot, 2] + stamps[slot, 3]
    return total


_gather_serial = njit(_sum_words)
_gather_parallel = njit(parallel=True)(_sum_words)
