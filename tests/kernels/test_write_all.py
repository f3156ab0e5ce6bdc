"""Stamping several buffers at once, against one launch a buffer of the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.kernels.cases import assert_agrees, make_write_case, row_counts, run_write

LANE_BLOCK = 8
SIZES = [(0, None), (1, None), (64, None), (130, None), (0, 1), (1, 1), (40, 1)]  # tokens, hint


def through_targets(backend, *, longest_lane=None, copies=1, **launch):
    """The backend with a `write` that stamps `copies` further buffers too and asserts that they end up the same."""
    from kvcanary_cli.kernels.targets import Target, Targets
    from kvcanary_cli.kernels.write_all import launch_write_all

    def write(
        *, canary_buf, plan, sources, hash_mode, launch_tag, log, block=None, lane_block=None, **arguments
    ) -> None:
        others = [
            Target(
                canary_buf=canary_buf.clone(),
                sources=sources,
                hash_mode=hash_mode,
                launch_tag=launch_tag,
                log=backend.log.allocate(4096, backend.device),
            )
            for _ in range(copies)
        ]
        first = Target(
            canary_buf=canary_buf, sources=sources, hash_mode=hash_mode, launch_tag=launch_tag, log=log
        )
        launched, entries = int(log.kernel_run_counter[0]), int(log.slot_run_counter[0])
        targets = Targets((first, *others))
        launch_write_all(targets=targets, plan=plan, longest_lane=longest_lane, **arguments, **launch)
        for other in others:
            np.testing.assert_array_equal(backend.get(other.canary_buf), backend.get(canary_buf))
            assert int(other.log.write_index[0]) == int(log.write_index[0])
            assert int(other.log.slot_run_counter[0]) == int(log.slot_run_counter[0]) - entries
            assert int(other.log.kernel_run_counter[0]) == int(log.kernel_run_counter[0]) - launched == 1
            if int(log.write_index[0]) <= log.ring_capacity:
                assert row_counts(backend.get(other.log.rows())) == row_counts(backend.get(log.rows()))

    return replace(backend, write=write)


@pytest.fixture(scope="module")
def triton_backend(device):
    from kvcanary_cli.kernels._vector_backends import load_backend

    return load_backend("triton", device)


def test_runs_the_real_kernels(device):
    from kvcanary_cli.kernels import write_all

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    for kernel in ("_walk_chains_kernel", "_write_stamps_kernel", "_write_short_kernel"):
        assert type(getattr(write_all, kernel)).__name__ == expected


# interpreted, the kernel for short lanes takes half a minute for vectors with long ones
@pytest.mark.parametrize(
    "longest", [None, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.gpu])], ids=["long", "short"]
)
def test_golden_vectors(longest, triton_backend, golden_failures):
    # the hint may be wrong: then the kernel for short lanes walks long ones, slowly
    backend = through_targets(
        triton_backend, longest_lane=longest, copies=0, unroll=4, block=256, lane_block=128
    )
    assert golden_failures("write", backend) == []


@pytest.mark.parametrize(("num_tokens", "longest"), SIZES, ids=lambda n: f"{n}")
@pytest.mark.parametrize("seed", range(2))
def test_same_as_one_launch_a_buffer(seed, num_tokens, longest, triton_backend, reference):
    case = make_write_case(seed, num_tokens)
    want = run_write(reference, case)
    true_rows = run_write(reference, replace(case, ring_capacity=4096))["rows"]
    backend = through_targets(triton_backend, longest_lane=longest, unroll=4, block=64, lane_block=LANE_BLOCK)
    assert_agrees(run_write(backend, case), want, true_rows)
    assert num_tokens < 40 or want["write_index"] > 0


@pytest.mark.parametrize("longest", [None, 1], ids=["long", "short"])
def test_a_lane_may_write_its_own_seed(longest, triton_backend, reference):
    case = make_write_case(0, 20, damage=0.0, chain_position_assert=True)
    for lane, seed in enumerate(case.seeds.tolist()):
        start, stop = case.offsets[lane : lane + 2].tolist()
        if 0 <= seed < case.stamps.num_slots and stop > start:
            case.slots[stop - 1] = seed
    want = run_write(reference, case)
    backend = through_targets(triton_backend, longest_lane=longest, unroll=4, block=64, lane_block=LANE_BLOCK)
    assert_agrees(run_write(backend, case), want, want["rows"])


@pytest.mark.parametrize("longest", [None, 1], ids=["long", "short"])
def test_each_target_goes_on_from_its_own_seed(longest, triton_backend, reference):
    from kvcanary_cli.kernels.targets import Target, Targets
    from kvcanary_cli.kernels.write_all import launch_write_all

    case = make_write_case(1, 65, expected=None, chain_position_assert=True)
    other = case.stamps.buffer.copy()
    other[:, 0] ^= 5
    other[:, 1] += 1
    put, device = triton_backend.put, triton_backend.device
    buffers = [put(case.stamps.buffer), put(other)]
    logs = [triton_backend.log.allocate(4096, device) for _ in buffers]
    plan = triton_backend.write_plan.allocate(len(case.seeds), device)
    plan.write_offsets[:] = put(case.offsets)
    plan.write_seed_slot_indices[:] = put(case.seeds)
    plan.write_num_valid_reqs[0] = len(case.seeds)
    launch_write_all(
        targets=Targets(
            tuple(
                Target(canary_buf=buffer, launch_tag=tag, log=log)
                for tag, (buffer, log) in enumerate(zip(buffers, logs, strict=True))
            )
        ),
        plan=plan,
        input_ids=put(case.input_ids),
        positions=put(case.positions),
        out_cache_loc=put(case.slots),
        expected_inputs=None,
        chain_position_assert=True,
        longest_lane=longest,
    )
    for tag, stamps in enumerate((case.stamps.buffer, other)):
        changed = replace(case.stamps, buffer=stamps, hash_mode=0)
        alone = replace(case, stamps=changed, num_valid=len(case.seeds))
        want = run_write(replace(reference, write=partial(with_tag, reference.write, tag)), alone)
        got = triton_backend.get(buffers[tag])
        np.testing.assert_array_equal(got, want["stamps"][: got.size].reshape(got.shape))
        assert row_counts(triton_backend.get(logs[tag].rows())) == row_counts(want["rows"])
    assert logs[0].count != logs[1].count


def with_tag(write, tag: int, **arguments) -> None:
    write(**(arguments | {"launch_tag": tag}))
