"""Many seeds, and a stamp buffer beyond 2^31 bytes. Run with -m slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary_cli.kernels import plan_cpu, verify_cpu, write_cpu
from kvcanary_cli.kernels._vector_backends import load_backend
from tests.kernels.cases import (
    assert_agrees,
    make_plan_case,
    make_verify_case,
    make_write_case,
    run_plan,
    run_verify,
    run_write,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
@pytest.mark.parametrize("first_seed", range(100, 500, 50))
def test_numba_agrees_with_the_reference(first_seed, parallel, reference, monkeypatch):
    for module in (plan_cpu, verify_cpu, write_cpu):
        monkeypatch.setattr(module, "PARALLEL_ENTRIES", -(2**62) if parallel else 2**62)
    numba = load_backend("numba")
    for seed in range(first_seed, first_seed + 50):
        size = int(np.random.default_rng(seed).integers(0, 400))
        for make, run in (
            (make_plan_case, run_plan),
            (make_verify_case, run_verify),
            (make_write_case, run_write),
        ):
            case = make(seed, size)
            done, want = run(numba, case), run(reference, case)
            for name in want:
                message = f"{make.__name__}({seed}, {size}): {name}"
                np.testing.assert_array_equal(done[name], want[name], err_msg=message)


@pytest.mark.parametrize("seed", range(500, 530))
def test_triton_agrees_with_numba(seed, device):
    numba, triton = load_backend("numba"), load_backend("triton", device)
    size = int(np.random.default_rng(seed).integers(0, 400))
    case = make_plan_case(seed, size)
    done, want = run_plan(triton, case), run_plan(numba, case)
    for name in want:
        np.testing.assert_array_equal(done[name], want[name], err_msg=name)
    for make, run in ((make_verify_case, run_verify), (make_write_case, run_write)):
        case = make(seed, size)
        true_rows = run(numba, replace(case, ring_capacity=4096))["rows"]
        assert_agrees(run(triton, case), run(numba, case), true_rows)


def test_numba_stamps_beyond_two_gib():
    numba = load_backend("numba")
    num_slots = 2**31 // 32 + 1000
    last = num_slots - 1
    buffer = np.zeros((num_slots, 4), dtype=np.int64)
    log = numba.log.allocate(16, "cpu")
    plan = numba.write_plan.allocate(1, "cpu")
    plan.write_offsets[1] = 2
    plan.write_seed_slot_indices[0] = -1
    plan.write_num_valid_reqs[0] = 1
    numba.write(
        canary_buf=buffer,
        plan=plan,
        input_ids=np.array([5, 6]),
        positions=np.array([0, 1]),
        out_cache_loc=np.array([last, last - 7]),
        sources=[],
        hash_mode=0,
        launch_tag=0,
        log=log,
        expected_inputs=None,
        chain_position_assert=True,
    )
    assert (buffer[last, :2].tolist(), buffer[last - 7, :2].tolist()) == ([5, 0], [6, 1])
    verify_plan = numba.verify_plan.allocate(1, "cpu")
    verify_plan.verify_slot_indices[0], verify_plan.verify_prev_slot_indices[0] = last - 7, last
    verify_plan.verify_expected_tokens[0], verify_plan.verify_expected_positions[0] = 6, 1
    verify_plan.verify_num_valid[0] = verify_plan.enable[0] = 1
    numba.verify(
        canary_buf=buffer,
        plan=verify_plan,
        sources=[],
        hash_mode=0,
        launch_tag=0,
        log=log,
        check_expected_token=True,
    )
    assert (log.count, int(log.slot_run_counter[0])) == (0, 3)
