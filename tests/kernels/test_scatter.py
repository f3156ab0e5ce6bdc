"""Scatter: real kernel, worked example, golden vectors, three twins, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.cases import SENTINEL, guarded
from tests.kernels.refusals import changed, in_words_of

BLOCK = 64
EDGE_SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


def run_scatter(backend, flat, offsets, rows, shape, **launch) -> np.ndarray:
    """The pool's cells after a launch, and the guard memory behind them."""
    pool, memory = guarded(backend, shape, "int32")
    arrays = {"flat": flat, "offsets": offsets, "req_pool_indices": rows}
    backend.scatter(
        **{name: backend.put(np.array(array, dtype=np.int64)) for name, array in arrays.items()},
        pool=pool,
        **launch,
    )
    return backend.get(memory)


def test_runs_the_real_kernel(device):
    from kvcanary_cli.kernels import scatter

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    assert type(scatter._scatter_kernel).__name__ == expected


def test_hand_computed_pool(backend):
    # lane 0 is cut at the width of 3, lane 1 is empty, lane 2 is the padding row, which is a row like any other
    pool = run_scatter(backend, [1, 2, 3, 4, 5, 6], [0, 4, 4, 6], [2, 1, 0], (3, 3))
    x = SENTINEL
    assert pool[:9].reshape(3, 3).tolist() == [[5, 6, x], [x, x, x], [1, 2, 3]]
    assert (pool[9:] == x).all()


@pytest.mark.parametrize(
    ("offsets", "rows", "cells"),
    [
        pytest.param([0, 2, 4], [3, -1], [], id="rows-outside"),
        pytest.param([1, 2, 2], [1, 2], [(1, 0, 8)], id="tokens-before-the-first-lane"),
        pytest.param([0, 1, 2**40], [1, 2], [(1, 0, 7), (2, 0, 8), (2, 1, 9)], id="offsets-past-the-end"),
    ],
)
def test_outside_of_what_there_is(offsets, rows, cells, backend):
    want = np.full(9 + 64, SENTINEL)
    for row, column, token in cells:
        want[3 * row + column] = token
    assert run_scatter(backend, [7, 8, 9], offsets, rows, (3, 3)).tolist() == want.tolist()


def test_golden_vectors(backend, golden_failures):
    assert golden_failures("scatter", backend) == []


@pytest.mark.parametrize("num_tokens", EDGE_SIZES, ids=lambda n: f"n{n}")
@pytest.mark.parametrize("seed", range(3))
def test_twins_agree(num_tokens, seed, backend, reference):
    rng = np.random.default_rng(4000 + seed)
    num_lanes = int(rng.integers(1, 40))
    cuts = np.sort(rng.integers(0, num_tokens + 1, num_lanes - 1))
    offsets = np.concatenate([[0], cuts, [num_tokens]])
    rows = rng.permutation(num_lanes + 9)[:num_lanes] - 2
    flat = rng.integers(0, 2**31, num_tokens)
    launch = {"block": BLOCK} if backend.name == "triton" else {}
    shape = (num_lanes + 4, int(rng.integers(1, 30)))
    done = run_scatter(backend, flat, offsets, rows, shape, **launch)
    np.testing.assert_array_equal(done, run_scatter(reference, flat, offsets, rows, shape))


REFUSALS = {
    "pool-dtype": ("pool", "int64", "kv-canary: pool must have dtype {int32}, got {int64}"),
    "pool-gaps": ("pool", "gaps", "kv-canary: pool must be contiguous"),
    "flat-dtype": ("flat", "int32", "kv-canary: flat must have dtype {int64}, got {int32}"),
    "flat-rank": ("flat", "deep", "kv-canary: flat must be 1-D, got shape (1, 2)"),
    "offsets-length": ("offsets", "short", "kv-canary: offsets length must be 3, got 2"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals(refusal, backend):
    where, change, message = REFUSALS[refusal]
    pool = backend.put(np.full((3, 3), SENTINEL, dtype=np.int32))
    arguments = {
        "flat": backend.put(np.array([1, 2])),
        "offsets": backend.put(np.array([0, 1, 2])),
        "req_pool_indices": backend.put(np.array([1, 2])),
        "pool": pool,
    }
    arguments[where] = changed(backend, arguments[where], change)
    with pytest.raises(ValueError, match="kv-canary") as caught:
        backend.scatter(**arguments)
    assert str(caught.value) == in_words_of(backend, message)
    assert (backend.get(pool) == SENTINEL).all()
