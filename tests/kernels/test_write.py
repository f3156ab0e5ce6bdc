"""Write: real kernels, worked example, golden vectors, three twins, refusals; then order, seeds, parallel launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary_cli.kernels.consts import HashMode
from tests.kernels.cases import SENTINEL, Stamps, WriteCase, assert_agrees, make_write_case, run_write
from tests.kernels.refusals import changed, in_words_of

BLOCK = 64
LANE_BLOCK = 16
EDGE_SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]

# splitmix64's finaliser, worked out apart from the package: of the anchor, then with (11, 0) and (12, 1) chained on
HEAD = -2414019407054260458
AFTER_11 = -8517104317260626359
AFTER_12 = 1438260920671241686


def test_runs_the_real_kernels(device):
    from kvcanary_cli.kernels import write

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    assert type(write._write_chains_kernel).__name__ == expected
    assert type(write._write_entries_kernel).__name__ == expected


def example(slots: list[int], positions: list[int], seed: int = -1, **changes) -> WriteCase:
    """One lane that writes tokens 11, 12, 13 into a buffer of six slots, of which slot 1 holds token 11 at 0."""
    buffer = np.full((6, 4), SENTINEL, dtype=np.int64)
    buffer[1] = 11, 0, HEAD, 0
    count = len(slots)
    options = {
        "stamps": Stamps(buffer=buffer, lanes=[], sources=[], hash_mode=HashMode.NONE, num_slots=6),
        "offsets": np.array([0, count]),
        "seeds": np.array([seed]),
        "num_valid": 1,
        "input_ids": np.array([11, 12, 13][-count:] if count < 3 else [11, 12, 13]),
        "positions": np.array(positions),
        "slots": np.array(slots),
        "expected": None,
        "chain_position_assert": True,
    }
    return WriteCase(**(options | changes))


def stamps_of(done: dict[str, np.ndarray]) -> list[list[int]]:
    return done["stamps"][:24].reshape(6, 4).tolist()


def test_hand_computed_chain(backend):
    done = run_write(backend, example([4, 2, 5], [0, 1, 2]))
    stamps = stamps_of(done)
    assert (stamps[4], stamps[2], stamps[5]) == ([11, 0, HEAD, 0], [12, 1, AFTER_11, 0], [13, 2, AFTER_12, 0])
    assert (stamps[0], stamps[3]) == ([SENTINEL] * 4, [SENTINEL] * 4)
    assert (done["write_index"], done["slot_run"], done["kernel_run"]) == (0, 1003, 2001)


def test_a_seed_continues_its_chain(backend):
    done = run_write(backend, example([2, 3], [1, 2], seed=1))
    assert stamps_of(done)[2:4] == [[12, 1, AFTER_11, 0], [13, 2, AFTER_12, 0]]
    assert done["write_index"] == 0


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        pytest.param(
            example([2], [5], seed=1), [[3, 2, 5, 13, 13, AFTER_11, 1, 16]], id="position-after-seed"
        ),
        pytest.param(
            example([2, 3], [5, 6], seed=1),
            [[3, 2, 5, 12, 12, AFTER_11, 1, 16]],
            id="goes-on-from-actual-position",
        ),
        pytest.param(example([2, 3], [5, 9], seed=-1), [], id="no-seed-no-position-assert"),
        pytest.param(example([2], [5], seed=1, chain_position_assert=False), [], id="assert-off"),
        pytest.param(
            example([2], [1], seed=1, expected=(np.array([14]), np.array([1]))),
            [[3, 2, 1, 13, 14, AFTER_11, 1, 8]],
            id="input-token",
        ),
        pytest.param(
            example([2], [1], seed=1, expected=(np.array([14]), np.array([4]))),
            [[3, 2, 1, 13, 14, AFTER_11, 4, 24]],
            id="input-both",
        ),
        pytest.param(example([6], [1], seed=1), [[3, 6, 1, 13, 13, AFTER_11, 6, 64]], id="slot-beyond"),
        pytest.param(
            example([2], [7], seed=6),
            [[3, 6, -1, 0, -1, 0, 6, 64]],
            id="seed-beyond-begins-a-chain-unasserted",
        ),
        pytest.param(
            example([-1], [9], seed=1, expected=(np.array([14]), np.array([1]))),
            [],
            id="skipped-is-not-asserted",
        ),
    ],
)
def test_hand_computed_rows(case, rows, backend):
    assert run_write(backend, case)["rows"].tolist() == rows


def test_a_skipped_token_is_no_link_and_one_beyond_the_buffer_is(backend):
    done = run_write(backend, example([-1, 2, 3], [0, 1, 2]))
    after_12_alone = stamps_of(done)[3][2]
    assert stamps_of(done)[2] == [12, 1, HEAD, 0]
    done = run_write(backend, example([6, 2, 3], [0, 1, 2]))
    assert stamps_of(done)[2:4] == [[12, 1, AFTER_11, 0], [13, 2, AFTER_12, 0]]
    assert after_12_alone != AFTER_12
    assert done["slot_run"] == 1002


def test_the_padding_slot_is_written_and_read_like_any_other(backend):
    case = example([0, 2], [0, 1])
    assert stamps_of(run_write(backend, case))[0] == [12, 0, HEAD, 0]
    case = example([2], [1], seed=0)
    case.stamps.buffer[0] = 11, 0, HEAD, 0
    assert stamps_of(run_write(backend, case))[2] == [13, 1, AFTER_11, 0]


def test_golden_vectors(backend, golden_failures):
    assert golden_failures("write", backend) == []


@pytest.mark.parametrize("num_tokens", EDGE_SIZES, ids=lambda n: f"n{n}")
@pytest.mark.parametrize("seed", range(4))
def test_twins_agree(num_tokens, seed, backend, reference):
    case = make_write_case(seed, num_tokens)
    launch = {"block": BLOCK, "lane_block": LANE_BLOCK} if backend.name == "triton" else {}
    want = run_write(reference, case)
    true_rows = run_write(reference, replace(case, ring_capacity=4096))["rows"]
    assert_agrees(run_write(backend, case, **launch), want, true_rows)
    assert num_tokens < BLOCK or want["write_index"] > 0


def test_a_ring_that_is_too_small_keeps_true_rows(backend, reference):
    case = make_write_case(4, 200)
    want = run_write(reference, case)
    true_rows = run_write(reference, replace(case, ring_capacity=4096))["rows"]
    assert want["write_index"] > case.ring_capacity
    assert_agrees(run_write(backend, case), want, true_rows)


def test_seeds_come_from_seed_buf_if_there_is_one(backend):
    seed_buf = np.zeros((6, 4), dtype=np.int64)
    seed_buf[3] = 11, 0, HEAD, 0
    done = run_write(backend, example([3], [1], seed=3, seed_buf=seed_buf))
    assert stamps_of(done)[3] == [13, 1, AFTER_11, 0]
    assert done["write_index"] == 0


def test_tokens_outside_of_all_lanes_belong_to_nobody(backend):
    done = run_write(backend, example([2, 3, 4], [0, 1, 2], offsets=np.array([1, 2])))
    assert stamps_of(done)[2:5] == [[SENTINEL] * 4, [12, 1, HEAD, 0], [SENTINEL] * 4]
    assert done["slot_run"] == 1001


def test_offsets_past_the_tokens_end_there(backend):
    done = run_write(backend, example([2, 3], [0, 1], offsets=np.array([-3, 2**40])))
    assert stamps_of(done)[2:4] == [[12, 0, HEAD, 0], [13, 1, stamps_of(done)[3][2], 0]]
    assert done["slot_run"] == 1002


@pytest.mark.parametrize("name", ["reference", "numba"])
def test_on_the_cpu_seeds_are_read_before_lanes_are_written_in_order(name):
    from kvcanary_cli.kernels._vector_backends import load_backend

    # lane 0 writes slot 1, which is lane 1's seed; both write slot 2
    case = example([1, 2, 2], [0, 1, 1], offsets=np.array([0, 2, 3]), seeds=np.array([-1, 1]), num_valid=2)
    case.stamps.buffer[1] = 11, 0, HEAD, 0
    case = replace(case, input_ids=np.array([70, 71, 12]))
    stamps = stamps_of(run_write(load_backend(name), case))
    assert stamps[1] == [70, 0, HEAD, 0]
    assert stamps[2] == [12, 1, AFTER_11, 0]


@pytest.mark.parametrize("seed", range(6))
def test_parallel_launch_does_what_the_serial_one_does(seed, reference, monkeypatch):
    from kvcanary_cli.kernels import write_cpu
    from kvcanary_cli.kernels._vector_backends import load_backend

    case = make_write_case(seed, 300)
    monkeypatch.setattr(write_cpu, "PARALLEL_ENTRIES", 0)
    done, want = run_write(load_backend("numba"), case), run_write(reference, case)
    # in lane order, too
    for name in want:
        np.testing.assert_array_equal(done[name], want[name], err_msg=name)


REFUSALS = {
    "ids-dtype": ("input_ids", "int32", "kv-canary: input_ids must have dtype {int64}, got {int32}"),
    "ids-rank": ("input_ids", "deep", "kv-canary: input_ids must be 1-D, got shape (1, 5)"),
    "positions-length": ("positions", "short", "kv-canary: positions length must be 5, got 4"),
    "slots-gaps": ("out_cache_loc", "gaps", "kv-canary: out_cache_loc must be contiguous"),
    "offsets-length": (
        "write_offsets",
        "long",
        "kv-canary: write_offsets_len must equal write_req_capacity + 1, got 5 and 3",
    ),
    "num-valid": (
        "write_num_valid_reqs",
        "int64",
        "kv-canary: write_num_valid_reqs must have dtype {int32}, got {int64}",
    ),
    "expected-length": ("expected", "short", "kv-canary: expected_input_tokens length must be 5, got 4"),
    "seed-buf": (
        "seed_buf",
        "short",
        "kv-canary: seed_buf must have canary_buf's shape (6, 4), strides and device, got (5, 4)",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals(refusal, backend):
    where, change, message = REFUSALS[refusal]
    flat = backend.put(np.zeros(5, dtype=np.int64))
    plan = backend.write_plan.allocate(3, backend.device)
    log = backend.log.allocate(4, backend.device)
    stamps = backend.put(np.zeros((6, 4), dtype=np.int64))
    arguments = {
        "input_ids": flat,
        "positions": flat,
        "out_cache_loc": flat,
        "seed_buf": None,
        "expected_inputs": None,
    }
    if where in plan.__dict__:
        plan = replace(plan, **{where: changed(backend, getattr(plan, where), change)})
    elif where == "expected":
        arguments["expected_inputs"] = (changed(backend, flat, change), flat)
    else:
        arguments[where] = changed(backend, stamps if where == "seed_buf" else flat, change)
    with pytest.raises(ValueError, match="kv-canary") as caught:
        backend.write(
            canary_buf=stamps,
            plan=plan,
            sources=[],
            hash_mode=0,
            launch_tag=0,
            log=log,
            chain_position_assert=False,
            **arguments,
        )
    assert str(caught.value) == in_words_of(backend, message)
    assert int(log.kernel_run_counter[0]) == 0
