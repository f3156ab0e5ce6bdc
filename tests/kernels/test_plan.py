"""Plan: real kernels, worked example, golden vectors, three twins, refusals; then limits and the parallel launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.cases import SENTINEL, PlanCase, make_plan_case, run_plan
from tests.kernels.refusals import changed, in_words_of

BLOCK = 64
LANE_BLOCK = 16
EDGE_SIZES = [0, 1, LANE_BLOCK - 1, LANE_BLOCK, LANE_BLOCK + 1, 3 * LANE_BLOCK + 5]


def test_runs_the_real_kernels(device):
    from kvcanary_cli.kernels import plan

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    assert type(plan._plan_offsets_kernel).__name__ == expected
    assert type(plan._plan_entries_kernel).__name__ == expected


def example(**changes) -> PlanCase:
    """Row 1 with 2 of its 3 tokens written, a padded lane, and row 2 that begins; tables are 3 rows of 4."""
    options = {
        "rows": np.array([1, 0, 2]),
        "prefix_lens": np.array([2, 3, 0]),
        "extend_lens": np.array([1, 5, 2]),
        "table": np.array([[0, 0, 0, 0], [7, 8, 9, 0], [5, 6, 0, 0]], dtype=np.int32),
        "window": 0,
        "full_to_swa": None,
        "pool": None,
        "valid_lens": None,
        "token_offset": 0,
        "capacity": 3,
    }
    return PlanCase(**(options | changes))


def entries_of(done: dict[str, np.ndarray]) -> list[list[int]]:
    """Slot, expected token, position and predecessor of each entry that counts."""
    names = (
        "verify_slot_indices",
        "verify_expected_tokens",
        "verify_expected_positions",
        "verify_prev_slot_indices",
    )
    return np.stack([done[name][: int(done["verify_num_valid"][0])] for name in names], axis=1).tolist()


def test_hand_computed_plan(backend):
    done = run_plan(backend, example())
    assert entries_of(done) == [[7, -1, 0, -1], [8, -1, 1, 7]]
    assert (done["enable"][0], done["verify_num_valid"][0], done["write_num_valid_reqs"][0]) == (1, 2, 3)
    assert done["write_offsets"][:5].tolist() == [0, 1, 1, 3, SENTINEL]
    assert done["write_seed_slot_indices"][:4].tolist() == [8, -1, -1, SENTINEL]
    assert done["verify_slot_indices"][2] == SENTINEL


def test_hand_computed_window(backend):
    full_to_swa = np.array([0, 0, 0, 0, 0, 0, 0, 3, 4, 5])
    done = run_plan(backend, example(window=1, full_to_swa=full_to_swa))
    # the predecessor of the window's first entry is the real one
    assert entries_of(done) == [[4, -1, 1, 3]]
    assert done["write_seed_slot_indices"][:3].tolist() == [4, -1, -1]


@pytest.mark.parametrize(
    ("token_offset", "valid_len", "tokens"),
    [
        (0, 4, [70, 71]),
        (0, 1, [70, -1]),
        (1, 4, [71, 72]),
        (1, 2, [71, -1]),
        (3, 9, [73, -1]),
        (-1, 4, [-1, 70]),
    ],
)
def test_hand_computed_tokens(token_offset, valid_len, tokens, backend):
    pool = np.array([[0] * 4, [70, 71, 72, 73], [80, 81, 82, 83]], dtype=np.int32)
    case = example(pool=pool, valid_lens=np.array([valid_len, 0, 0]), token_offset=token_offset)
    assert [entry[1] for entry in entries_of(run_plan(backend, case))] == tokens


def test_overflow_disables_the_plan_and_writes_no_entry(backend):
    done = run_plan(backend, example(capacity=1))
    assert (done["enable"][0], done["verify_num_valid"][0]) == (0, 1)
    assert (done["verify_slot_indices"] == SENTINEL).all()
    assert done["write_offsets"][:4].tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        pytest.param({"rows": np.array([3, -1, 2**40])}, [], id="rows-outside-are-padding"),
        pytest.param(
            {"prefix_lens": np.array([5, 0, 0])}, [7, 8, 9, 0, 5], id="past-the-row-is-the-next-row"
        ),
        pytest.param(
            {"rows": np.array([2, 0, 0]), "prefix_lens": np.array([6, 0, 0])},
            [5, 6, 0, 0, -1, -1],
            id="past-the-table-is-nothing",
        ),
        pytest.param({"full_to_swa": np.arange(8) * 10}, [70, -1], id="beyond-the-map"),
        pytest.param({"prefix_lens": np.array([-3, 0, 0])}, [], id="negative-prefix"),
    ],
)
def test_outside_of_what_there_is(changes, slots, backend):
    done = run_plan(backend, example(capacity=9, **changes))
    assert [entry[0] for entry in entries_of(done)] == slots


def test_golden_vectors(backend, golden_failures):
    assert golden_failures("plan", backend) == []


@pytest.mark.parametrize("num_lanes", EDGE_SIZES, ids=lambda n: f"n{n}")
@pytest.mark.parametrize("seed", range(6))
def test_twins_agree(num_lanes, seed, backend, reference):
    case = make_plan_case(seed, num_lanes)
    launch = {"block": 4 * BLOCK, "lane_block": LANE_BLOCK} if backend.name == "triton" else {}
    want = run_plan(reference, case)
    for capacity in {
        case.capacity,
        max(1, int(want["verify_num_valid"][0])),
        max(1, int(want["verify_num_valid"][0]) - 1),
    }:
        resized = replace(case, capacity=capacity)
        want, done = run_plan(reference, resized), run_plan(backend, resized, **launch)
        for name in want:
            np.testing.assert_array_equal(done[name], want[name], err_msg=f"{name}, capacity {capacity}")


def test_more_lanes_than_the_server_takes(backend, reference):
    case = make_plan_case(1, 5000, odd=False)
    launch = {"block": 8192} if backend.name == "triton" else {}
    done, want = run_plan(backend, case, **launch), run_plan(reference, case)
    for name in want:
        np.testing.assert_array_equal(done[name], want[name], err_msg=name)
    assert want["write_num_valid_reqs"][0] == 5000


@pytest.mark.parametrize("seed", range(6))
def test_parallel_launch_does_what_the_serial_one_does(seed, reference, monkeypatch):
    from kvcanary_cli.kernels import plan_cpu
    from kvcanary_cli.kernels._vector_backends import load_backend

    case = make_plan_case(seed, 70)
    monkeypatch.setattr(plan_cpu, "PARALLEL_ENTRIES", -(2**62))
    done, want = run_plan(load_backend("numba"), case), run_plan(reference, case)
    for name in want:
        np.testing.assert_array_equal(done[name], want[name], err_msg=name)


REFUSALS = {
    "window-without-map": (
        {"swa_window_size": 4},
        "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
    ),
    "verify-capacity": (
        {"verify_capacity": 9},
        "kv-canary: launch_canary_plan_kernels verify_capacity=9 does not match "
        "verify_plan_out.verify_slot_indices.shape[0]=6",
    ),
    "negative-verify-capacity": (
        {"verify_capacity": -1},
        "kv-canary: verify_capacity must be non-negative, got -1",
    ),
    "negative-write-capacity": (
        {"write_req_capacity": -2},
        "kv-canary: write_req_capacity must be non-negative, got -2",
    ),
    "write-capacity": (
        {"write_req_capacity": 5},
        "kv-canary: write_offsets_len must equal write_req_capacity + 1, got 4 and 5",
    ),
    "too-many-lanes": ({"req_pool_indices": "long"}, "kv-canary: bs=4 exceeds write_req_capacity=3"),
    "rows-dtype": (
        {"req_pool_indices": "int32"},
        "kv-canary: req_pool_indices must have dtype {int64}, got {int32}",
    ),
    "prefix-length": ({"prefix_lens": "short"}, "kv-canary: prefix_lens length must be 3, got 2"),
    "extend-rank": ({"extend_seq_lens": "deep"}, "kv-canary: extend_seq_lens must be 1-D, got shape (1, 3)"),
    "table-dtype": (
        {"req_to_token": "int64"},
        "kv-canary: req_to_token must have dtype {int32}, got {int64}",
    ),
    "table-gaps": ({"req_to_token": "gaps"}, "kv-canary: req_to_token must be contiguous"),
    "tokens-without-lens": (
        {"expected_valid_lens": None},
        "kv-canary: expected_valid_lens must be given with expected_tokens, got None",
    ),
    "lens-without-tokens": (
        {"expected_tokens": None},
        "kv-canary: expected_tokens must be given with expected_valid_lens, got None",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals(refusal, backend):
    changes, message = REFUSALS[refusal]
    lanes = backend.put(np.array([1, 0, 2]))
    table = backend.put(np.zeros((3, 4), dtype=np.int32))
    verify_plan = backend.verify_plan.allocate(6, backend.device)
    verify_plan.enable[0] = SENTINEL
    arguments = {
        "req_pool_indices": lanes,
        "prefix_lens": lanes,
        "extend_seq_lens": lanes,
        "req_to_token": table,
        "swa_window_size": 0,
        "full_to_swa": None,
        "expected_tokens": table,
        "expected_valid_lens": lanes,
    }
    arguments |= {name: changed(backend, arguments.get(name), change) for name, change in changes.items()}
    with pytest.raises(ValueError, match="kv-canary") as caught:
        backend.plan(
            verify_plan_out=verify_plan,
            write_plan_out=backend.write_plan.allocate(3, backend.device),
            token_id_vs_position_offset=0,
            **arguments,
        )
    assert str(caught.value) == in_words_of(backend, message)
    assert int(verify_plan.enable[0]) == SENTINEL
