"""What only a GPU can show: many programs at once on one log, graphs, and pools beyond 2^31 bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def triton(device):
    return load_backend("triton", device)


@pytest.mark.parametrize("ring_capacity", [1024, 200_000])
def test_many_violations_at_once_fill_the_ring_exactly(ring_capacity, triton):
    num_entries = 100_000
    case = make_verify_case(
        0, 1, damage=0, ring_capacity=ring_capacity, capacity=num_entries, num_valid=num_entries
    )
    entries = np.zeros((num_entries, 4), dtype=np.int64)
    entries[:, 0] = 1000 + np.arange(num_entries)  # all beyond the buffer, each another slot
    done = run_verify(triton, replace(case, entries=entries))
    assert (done["write_index"], done["slot_run"], done["kernel_run"]) == (
        num_entries,
        1000 + num_entries,
        2001,
    )
    assert len(done["rows"]) == min(ring_capacity, num_entries)
    # no row lost, none torn, none twice
    assert (done["rows"][:, 7] == 64).all()
    assert len(np.unique(done["rows"][:, 1])) == len(done["rows"])


@pytest.mark.parametrize("seed", range(4))
def test_large_launches_agree_with_numba(seed, triton):
    numba = load_backend("numba")
    verify_case = make_verify_case(seed, 40_000, ring_capacity=100_000)
    want = run_verify(numba, verify_case)
    assert_agrees(run_verify(triton, verify_case), want, want["rows"])
    write_case = make_write_case(seed, 40_000, ring_capacity=100_000)
    want = run_write(numba, write_case)
    assert_agrees(run_write(triton, write_case), want, want["rows"])
    plan_case = make_plan_case(seed, 20_000)
    done, want = run_plan(triton, plan_case), run_plan(numba, plan_case)
    for name in want:
        np.testing.assert_array_equal(done[name], want[name], err_msg=name)


def test_stamps_beyond_two_gib(triton):
    import torch

    num_slots = 2**31 // 32 + 1000
    last = num_slots - 1
    buffer = torch.zeros((num_slots, 4), dtype=torch.int64, device=triton.device)
    log = triton.log.allocate(16, triton.device)
    plan = triton.write_plan.allocate(1, triton.device)
    plan.write_offsets[1] = 2
    plan.write_seed_slot_indices[0] = -1
    plan.write_num_valid_reqs[0] = 1
    triton.write(
        canary_buf=buffer,
        plan=plan,
        input_ids=triton.put(np.array([5, 6])),
        positions=triton.put(np.array([0, 1])),
        out_cache_loc=triton.put(np.array([last, last - 7])),
        sources=[],
        hash_mode=0,
        launch_tag=0,
        log=log,
        expected_inputs=None,
        chain_position_assert=True,
    )
    verify_plan = triton.verify_plan.allocate(2, triton.device)
    for name, values in {
        "verify_slot_indices": [last, last - 7],
        "verify_expected_tokens": [5, 6],
        "verify_expected_positions": [0, 1],
        "verify_prev_slot_indices": [-1, last],
    }.items():
        getattr(verify_plan, name)[:] = triton.put(np.array(values))
    verify_plan.verify_num_valid[0] = 2
    verify_plan.enable[0] = 1
    arguments = {"canary_buf": buffer, "plan": verify_plan, "sources": [], "hash_mode": 0, "launch_tag": 0}
    triton.verify(**arguments, log=log, check_expected_token=True)
    assert (log.count, int(log.slot_run_counter[0])) == (0, 4)
    buffer[last, 0] = 4
    triton.verify(**arguments, log=log, check_expected_token=True)
    assert sorted(log.rows()[:, 7].tolist()) == [1, 32]


def test_launches_can_be_captured_in_a_graph(triton):
    import torch

    case = make_verify_case(1, 5000, damage=0.3, ring_capacity=8192)
    device = triton.device
    buffer, entries = triton.put(case.stamps.buffer), triton.put(case.entries)
    sources = case.stamps.kv_sources(triton)
    plan = triton.verify_plan.allocate(case.capacity, device)
    log = triton.log.allocate(case.ring_capacity, device)
    table = triton.put(np.arange(60, dtype=np.int32).reshape(6, 10))
    lanes = triton.put(np.array([1, 2, 3]))
    own_plan, own_writes = triton.verify_plan.allocate(64, device), triton.write_plan.allocate(3, device)
    stamps = torch.zeros((60, 4), dtype=torch.int64, device=device)
    own_log = triton.log.allocate(64, device)
    flat = triton.put(np.arange(3))

    def launch() -> None:
        triton.verify(
            canary_buf=buffer,
            plan=plan,
            sources=sources,
            hash_mode=case.stamps.hash_mode,
            launch_tag=7,
            log=log,
            check_expected_token=True,
        )
        triton.plan(
            verify_plan_out=own_plan,
            write_plan_out=own_writes,
            req_pool_indices=lanes,
            prefix_lens=torch.zeros_like(lanes),
            extend_seq_lens=torch.ones_like(lanes),
            req_to_token=table,
            swa_window_size=0,
            full_to_swa=None,
            expected_tokens=None,
            expected_valid_lens=None,
            token_id_vs_position_offset=0,
        )
        triton.write(
            canary_buf=stamps,
            plan=own_writes,
            input_ids=flat,
            positions=flat,
            out_cache_loc=flat + 1,
            sources=[],
            hash_mode=0,
            launch_tag=0,
            log=own_log,
            expected_inputs=None,
            chain_position_assert=False,
        )

    launch()  # compiles, and copies the source table
    torch.cuda.synchronize()
    for counter in (log.write_index, log.slot_run_counter, log.kernel_run_counter):
        counter.zero_()
    stamps.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    # the plan is data: what it holds at replay counts, not what it held at capture
    names = (
        "verify_slot_indices",
        "verify_expected_tokens",
        "verify_expected_positions",
        "verify_prev_slot_indices",
    )
    for name, column in zip(names, entries.T, strict=True):
        getattr(plan, name)[: len(column)] = column
    plan.verify_num_valid[0] = case.num_valid
    plan.enable[0] = 1
    graph.replay()
    torch.cuda.synchronize()
    want = run_verify(load_backend("numba"), replace(case, check_expected_token=True))
    assert log.count == want["write_index"]
    assert sorted(log.rows().tolist()) == sorted(want["rows"].tolist())
    assert stamps[1:4, 0].tolist() == [0, 1, 2]
    assert int(own_log.slot_run_counter[0]) == 6
