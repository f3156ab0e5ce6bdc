"""Affine chains: the step in three forms, stamping by scan against a walk, and the checks on such stamps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kvcanary_cli.kernels import fused_cpu, hashing_ref
from kvcanary_cli.kernels.affine_ref import FACTOR, INVERSE, affine_input, affine_step
from kvcanary_cli.kernels.hashing_ref import HEAD, MASK, signed
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.memory_cpu import NO_POOL, NO_WORDS
from tests.kernels.cases import (
    assert_agrees,
    make_plan_case,
    make_verify_case,
    make_write_case,
    run_verify,
    run_write,
)
from tests.kernels.test_fused_gpu import one_step, outcome, two_steps
from tests.kernels.test_write_all import through_targets

BLOCK = 64


@pytest.fixture(scope="module")
def triton_backend(device):
    from kvcanary_cli.kernels._vector_backends import load_backend

    return load_backend("triton", device)


def with_affine(backend):
    """The backend with affine chains in the place of the server's."""
    write, verify = (partial(launch, is_affine=True) for launch in (backend.write, backend.verify))
    return replace(backend, write=write, verify=verify)


@pytest.fixture(scope="module")
def affine_reference(reference):
    return with_affine(reference)


@pytest.mark.parametrize("num_tokens", [1, 65, 300], ids=lambda n: f"n{n}")
@pytest.mark.parametrize("seed", range(2))
def test_every_backend_writes_the_same(seed, num_tokens, backend, affine_reference):
    case = make_write_case(seed, num_tokens)
    want = run_write(affine_reference, case)
    true_rows = run_write(affine_reference, replace(case, ring_capacity=4096))["rows"]
    assert_agrees(run_write(with_affine(backend), case), want, true_rows)


@pytest.mark.parametrize("seed", range(3))
def test_every_backend_verifies_the_same(seed, backend, affine_reference):
    case = make_verify_case(seed, 200)
    stamps = case.stamps.buffer
    for slot, _token, _position, prev in case.entries.tolist()[: len(case.entries) // 2]:
        if 0 < slot < case.stamps.num_slots and 0 < prev < case.stamps.num_slots:
            token, position, prev_hash = stamps[prev, :3].tolist()
            stamps[slot, 2] = signed(affine_step(prev_hash, token, position))
    want = run_verify(affine_reference, case)
    true_rows = run_verify(affine_reference, replace(case, ring_capacity=4096))["rows"]
    assert 0 < want["write_index"] < case.num_valid
    assert_agrees(run_verify(with_affine(backend), case), want, true_rows)


@pytest.mark.parametrize("longest", [None, 1], ids=["long", "short"])
def test_all_buffers_are_written_in_either_way(longest, triton_backend, affine_reference):
    case = make_write_case(1, 20, ring_capacity=4096)
    want = run_write(affine_reference, case)
    backend = through_targets(triton_backend, longest_lane=longest, is_affine=True)
    assert_agrees(run_write(backend, case), want, want["rows"])


@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
def test_numba_verifies_from_the_page_table(parallel, monkeypatch, affine_reference):
    monkeypatch.setattr(fused_cpu, "PARALLEL_ENTRIES", 0 if parallel else 1 << 62)
    case = make_plan_case(3, 12, odd=False)
    buffer = affine_lanes(case, np.random.default_rng(3))
    (want,) = two_steps(affine_reference, case, [buffer], [[]])
    log = ViolationLog.allocate(4096, "cpu")
    fused_cpu.verify_table_cpu(
        canary_buf=buffer,
        req_pool_indices=case.rows,
        prefix_lens=case.prefix_lens,
        req_to_token=case.table,
        swa_window_size=case.window,
        full_to_swa=NO_WORDS if case.full_to_swa is None else case.full_to_swa,
        expected_tokens=NO_POOL if case.pool is None else case.pool,
        expected_valid_lens=NO_WORDS if case.pool is None else case.valid_lens,
        token_id_vs_position_offset=case.token_offset,
        sources=[],
        hash_mode=0,
        launch_tag=0,
        log=log,
        check_expected_token=case.pool is not None,
        is_affine=True,
    )
    assert outcome(log, np.asarray)["rows"] == want["rows"]


def test_runs_the_real_kernels(device):
    from kvcanary_cli.kernels import affine

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    for kernel in ("_reduce_affine_kernel", "_write_affine_kernel"):
        assert type(getattr(affine, kernel)).__name__ == expected


def test_hand_computed_step():
    # two mixes and a line, written out
    assert affine_input(7, 3) == hashing_ref.mix(hashing_ref.mix(7) ^ 3)
    assert affine_step(1, 7, 3) == (FACTOR + affine_input(7, 3)) & MASK
    assert affine_step(-1, 7, 3) == (MASK * FACTOR + affine_input(7, 3)) & MASK
    # memory that was never stamped, as with the server's chain
    assert affine_step(0, 0, 0) == hashing_ref.chain(0, 0, 0) == 0
    assert FACTOR % 2 == 1
    assert FACTOR * INVERSE & MASK == 1


def test_a_step_is_undone():
    after = affine_step(HEAD, 11, 0)
    assert (after - affine_input(11, 0)) * INVERSE & MASK == HEAD


def test_numba_walks_the_same_chain():
    from kvcanary_cli.kernels.affine_cpu import affine_chain_cpu

    rng = np.random.default_rng(0)
    tokens, positions = rng.integers(0, 150_000, 40), np.arange(40)
    before = np.zeros(40, np.int64)
    last = affine_chain_cpu(np.uint64(HEAD), tokens, positions, before)
    running = HEAD
    for index in range(40):
        assert before[index] == signed(running)
        running = affine_step(running, int(tokens[index]), index)
    assert int(last) == running


def through_scan(backend, **launch):
    """The backend with a `write` that stamps with affine chains."""
    from kvcanary_cli.kernels.affine import launch_write_affine
    from kvcanary_cli.kernels.targets import Target, Targets

    def write(
        *, canary_buf, plan, sources, hash_mode, launch_tag, log, block=None, lane_block=None, **arguments
    ) -> None:
        target = Target(
            canary_buf=canary_buf, sources=sources, hash_mode=hash_mode, launch_tag=launch_tag, log=log
        )
        launch_write_affine(targets=Targets((target,)), plan=plan, **arguments, **launch)

    return replace(backend, write=write)


@pytest.mark.parametrize("num_tokens", [0, 1, 63, 64, 65, 400], ids=lambda n: f"n{n}")
@pytest.mark.parametrize("seed", range(4))
def test_scan_stamps_what_a_walk_stamps(seed, num_tokens, triton_backend, affine_reference):
    case = make_write_case(seed, num_tokens)
    want = run_write(affine_reference, case)
    true_rows = run_write(affine_reference, replace(case, ring_capacity=4096))["rows"]
    assert_agrees(run_write(through_scan(triton_backend, block=BLOCK), case), want, true_rows)


@pytest.mark.parametrize("block", [pytest.param(2, marks=[pytest.mark.slow, pytest.mark.gpu]), 64])
def test_a_chain_over_many_blocks(block, triton_backend, affine_reference):
    # with blocks of two tokens a program combines more blocks than it loads at a time
    case = make_write_case(4, 150, damage=0.0, num_valid=1, ring_capacity=4096)
    case = replace(case, offsets=np.array([0, 150]), seeds=case.seeds[:1])
    want = run_write(affine_reference, case)
    assert_agrees(run_write(through_scan(triton_backend, block=block), case), want, want["rows"])


@pytest.mark.parametrize("seed", range(3))
def test_checks_on_affine_stamps(seed, triton_backend, affine_reference):
    case = make_plan_case(seed, 12, odd=False)
    buffer = affine_lanes(case, np.random.default_rng(seed))
    want = two_steps(affine_reference, case, [buffer], [[]])
    assert one_step(triton_backend, case, [buffer], [[]], is_affine=True) == want
    other = one_step(triton_backend, case, [buffer], [[]])
    assert other[0]["rows"] != want[0]["rows"]


def affine_lanes(case, rng: np.random.Generator) -> np.ndarray:
    """Stamps in which the lanes' affine chains are right, where they share no slot."""
    buffer = np.zeros((600, 4), np.int64)
    for row, prefix in zip(case.rows.tolist(), case.prefix_lens.tolist(), strict=True):
        running = HEAD
        for position in range(prefix):
            slot = int(case.table[row, position])
            slot = slot if case.full_to_swa is None else int(case.full_to_swa[slot])
            token = int(rng.integers(0, 99))
            buffer[slot] = token, position, signed(running), 0
            running = affine_step(running, token, position)
    return buffer
