"""Verify: real kernel, worked example, golden vectors, three twins, refusals; then limits and the parallel launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary_cli.kernels.consts import HashMode
from tests.kernels.cases import Stamps, VerifyCase, assert_agrees, make_verify_case, run_verify
from tests.kernels.refusals import changed, in_words_of

BLOCK = 64
EDGE_SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]

# splitmix64's finaliser, worked out apart from the package: of the anchor, then with (11, 0) and (12, 1) chained on
HEAD = -2414019407054260458
AFTER_11 = -8517104317260626359
AFTER_12 = 1438260920671241686


def test_runs_the_real_kernel(device):
    from kvcanary_cli.kernels import verify

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    assert type(verify._verify_kernel).__name__ == expected


def example(entries: list[list[int]], **changes) -> VerifyCase:
    """A plan over six slots: 1 and 2 begin a chain, 3 goes on at slot 2, and the padding slot holds noise."""
    buffer = np.zeros((6, 4), dtype=np.int64)
    buffer[0] = 99, 98, 97, 96
    buffer[1] = 11, 0, HEAD, 0
    buffer[2] = 12, 1, AFTER_11, 0
    buffer[3] = 13, 2, AFTER_12, 0
    options = {
        "stamps": Stamps(buffer=buffer, lanes=[], sources=[], hash_mode=HashMode.NONE, num_slots=6),
        "entries": np.array(entries, dtype=np.int64).reshape(-1, 4),
        "capacity": 8,
        "num_valid": len(entries),
        "enable": 1,
        "check_expected_token": True,
        "ring_capacity": 8,
    }
    return VerifyCase(**(options | changes))


CLEAN = [[1, 11, 0, -1], [2, 12, 1, 1], [3, -1, 2, 2]]  # slot, token, position, predecessor


def test_a_right_chain_has_no_violation(backend):
    done = run_verify(backend, example(CLEAN))
    assert (done["write_index"], done["slot_run"], done["kernel_run"]) == (0, 1003, 2001)


@pytest.mark.parametrize(
    ("entry", "row"),
    [
        pytest.param([1, 10, 0, -1], [7, 1, 0, 11, 10, HEAD, HEAD, 32], id="token"),
        pytest.param([2, 12, 5, 1], [7, 2, 1, 12, 12, AFTER_11, AFTER_11, 2], id="position"),
        pytest.param([2, 12, 1, -1], [7, 2, 1, 12, 12, AFTER_11, HEAD, 1], id="head-expected"),
        pytest.param([3, 13, 2, 1], [7, 3, 2, 13, 13, AFTER_12, AFTER_11, 1], id="chain"),
        pytest.param([3, 9, 9, -5], [7, 3, 2, 13, 9, AFTER_12, HEAD, 35], id="all-in-one-row"),
        pytest.param([3, 9, 2, 0], [7, 3, 2, 13, 9, AFTER_12, AFTER_12, 32], id="padding-predecessor"),
        pytest.param([6, 9, 2, 1], [7, 6, 0, 0, 9, 0, 0, 64], id="slot-beyond"),
        pytest.param([-1, 9, 2, 1], [7, -1, 0, 0, 9, 0, 0, 64], id="slot-negative"),
        pytest.param([3, 9, 2, 6], [7, 3, 2, 13, 9, AFTER_12, 6, 96], id="predecessor-beyond"),
    ],
)
def test_hand_computed_row(entry, row, backend):
    done = run_verify(backend, example([*CLEAN, entry]))
    assert done["rows"].tolist() == [row]
    assert done["slot_run"] == 1004


def test_the_padding_slot_is_counted_and_not_checked(backend):
    done = run_verify(backend, example([[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 2, -1], [0, 1, 2, 6]]))
    assert (done["write_index"], done["slot_run"]) == (0, 1004)


def test_without_byte_hashes_a_stored_one_is_a_violation(backend):
    case = example(CLEAN)
    case.stamps.buffer[2, 3] = 1
    assert run_verify(backend, case)["rows"].tolist() == [[7, 2, 1, 12, 12, AFTER_11, AFTER_11, 4]]


def test_tokens_are_not_compared_unless_asked(backend):
    done = run_verify(backend, example([[2, 77, 5, 1]], check_expected_token=False))
    assert done["rows"].tolist() == [[7, 2, 1, 12, -1, AFTER_11, AFTER_11, 2]]


@pytest.mark.parametrize(
    ("changes", "num_checked"),
    [({"enable": 0}, 0), ({"num_valid": 0}, 0), ({"num_valid": -3}, 0), ({"num_valid": 2, "capacity": 4}, 2)],
    ids=["disabled", "empty", "negative", "first-two"],
)
def test_entries_that_count(changes, num_checked, backend):
    done = run_verify(backend, example([[1, 0, 9, 0]] * 4, **changes))
    assert (done["write_index"], done["slot_run"]) == (num_checked, 1000 + num_checked)
    assert done["kernel_run"] == 2001


def test_num_valid_beyond_the_capacity_ends_at_the_capacity(backend):
    done = run_verify(backend, example([[1, 0, 9, 0]] * 4, capacity=4, num_valid=9))
    assert (done["write_index"], done["slot_run"]) == (4, 1004)


def test_golden_vectors(backend, golden_failures):
    assert golden_failures("verify", backend) == []


@pytest.mark.parametrize("num_entries", EDGE_SIZES, ids=lambda n: f"n{n}")
@pytest.mark.parametrize("seed", range(4))
def test_twins_agree(num_entries, seed, backend, reference):
    case = make_verify_case(seed, num_entries)
    launch = {"block": BLOCK} if backend.name == "triton" else {}
    want = run_verify(reference, case)
    true_rows = run_verify(reference, replace(case, ring_capacity=4096))["rows"]
    assert_agrees(run_verify(backend, case, **launch), want, true_rows)
    assert num_entries < BLOCK or want["write_index"] > 0


def test_a_full_ring_drops_rows_and_counts_on(backend):
    done = run_verify(backend, example([[6, -1, 0, 0]] * 8, ring_capacity=3))
    assert done["rows"].tolist() == [[7, 6, 0, 0, -1, 0, 0, 64]] * 3
    assert done["write_index"] == 8


@pytest.mark.parametrize("seed", range(6))
def test_parallel_launch_reports_what_the_serial_one_does(seed, reference, monkeypatch):
    from kvcanary_cli.kernels import verify_cpu
    from kvcanary_cli.kernels._vector_backends import load_backend

    case = make_verify_case(seed, 300)
    monkeypatch.setattr(verify_cpu, "PARALLEL_ENTRIES", 0)
    done, want = run_verify(load_backend("numba"), case), run_verify(reference, case)
    # in entry order, too
    for name in want:
        np.testing.assert_array_equal(done[name], want[name], err_msg=name)


REFUSALS = {
    "stamps-dtype": ("canary_buf", "int32", "kv-canary: canary_buf must have dtype {int64}, got {int32}"),
    "stamps-rank": ("canary_buf", "flat", "kv-canary: canary_buf must be 2-D, got shape (24,)"),
    "stamps-narrow": (
        "canary_buf",
        "narrow",
        "kv-canary: canary_buf must have at least 4 words a row, got 3",
    ),
    "slots-dtype": (
        "verify_slot_indices",
        "int32",
        "kv-canary: verify_slot_indices must have dtype {int64}, got {int32}",
    ),
    "tokens-length": (
        "verify_expected_tokens",
        "short",
        "kv-canary: verify_expected_tokens length must be 8, got 7",
    ),
    "prevs-gaps": (
        "verify_prev_slot_indices",
        "gaps",
        "kv-canary: verify_prev_slot_indices must be contiguous",
    ),
    "num-valid": (
        "verify_num_valid",
        "int64",
        "kv-canary: verify_num_valid must have dtype {int32}, got {int64}",
    ),
    "ring": ("ring", "narrow", "kv-canary: ring must have 8 words a row, got 7"),
    "hash-mode": (
        "hash_mode",
        3,
        "kv-canary: hash_mode must be one of NONE (0), PARTIAL (1), ALL (2), got 3",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals(refusal, backend):
    where, change, message = REFUSALS[refusal]
    plan = backend.verify_plan.allocate(8, backend.device)
    log = backend.log.allocate(4, backend.device)
    arguments = {"canary_buf": backend.put(np.zeros((6, 4), dtype=np.int64)), "hash_mode": 0}
    if where in ("canary_buf", "hash_mode"):
        arguments[where] = changed(backend, arguments[where], change)
    elif where == "ring":
        log = replace(log, ring=changed(backend, log.ring, change))
    else:
        plan = replace(plan, **{where: changed(backend, getattr(plan, where), change)})
    with pytest.raises(ValueError, match="kv-canary") as caught:
        backend.verify(plan=plan, sources=[], launch_tag=0, log=log, check_expected_token=False, **arguments)
    assert str(caught.value) == in_words_of(backend, message)
    assert int(log.kernel_run_counter[0]) == 0
