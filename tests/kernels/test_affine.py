"""Affine chains: the step in three forms, stamping by scan against a walk, and the checks on such stamps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary_cli.kernels import hashing_ref, verify_ref, write_ref
from kvcanary_cli.kernels.affine_ref import FACTOR, INVERSE, affine_input, affine_step
from kvcanary_cli.kernels.hashing_ref import HEAD, MASK, signed
from tests.kernels.cases import assert_agrees, make_plan_case, make_write_case, run_write
from tests.kernels.test_fused_gpu import one_step, two_steps

BLOCK = 64


@pytest.fixture(scope="module")
def triton_backend(device):
    from kvcanary_cli.kernels._vector_backends import load_backend

    return load_backend("triton", device)


@pytest.fixture
def affine_reference(monkeypatch, reference):
    """The reference with affine chains in the place of its own."""
    for module in (write_ref, verify_ref):
        monkeypatch.setattr(module, "chain", affine_step)
    return reference


def test_runs_the_real_kernels(device):
    from kvcanary_cli.kernels import affine

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    for kernel in ("_reduce_affine_kernel", "_write_affine_kernel"):
        assert type(getattr(affine, kernel)).__name__ == expected


def test_hand_computed_step():
    # two mixes and a line, written out
    assert affine_input(7, 3) == hashing_ref.mix(hashing_ref.mix(7 ^ 0xC0FFEE1234567890) ^ 3)
    assert affine_step(1, 7, 3) == (FACTOR + affine_input(7, 3)) & MASK
    assert affine_step(-1, 7, 3) == (MASK * FACTOR + affine_input(7, 3)) & MASK
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
    rng = np.random.default_rng(seed)
    case = make_plan_case(seed, 12, odd=False)
    buffer = np.zeros((600, 4), np.int64)
    for row, prefix in zip(case.rows.tolist(), case.prefix_lens.tolist(), strict=True):
        running = HEAD
        for position in range(prefix):
            slot = int(case.table[row, position])
            slot = slot if case.full_to_swa is None else int(case.full_to_swa[slot])
            token = int(rng.integers(0, 99))
            buffer[slot] = token, position, signed(running), 0
            running = affine_step(running, token, position)
    want = two_steps(affine_reference, case, [buffer], [[]])
    assert one_step(triton_backend, case, [buffer], [[]], is_affine=True) == want
    other = one_step(triton_backend, case, [buffer], [[]])
    assert other[0]["rows"] != want[0]["rows"]
