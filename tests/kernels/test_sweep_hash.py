"""The byte hash of sweeps in its three forms."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.kernels.hashing_ref import MASK, mix, signed
from kvcanary_cli.kernels.sweep_hash_ref import sweep_hash_ref
from tests.kernels.cases import GUARD, SENTINEL, make_sources
from tests.kernels.test_fused_gpu import kv_sources


@pytest.fixture(scope="module", params=["numba", "triton"])
def sweep(request, device):
    """Runs one implementation on NumPy sources; gives the hashes and the memory behind them."""
    if request.param == "numba":
        from kvcanary_cli.kernels.sweep_hash_cpu import sweep_hash_cpu

        put, launch = np.array, sweep_hash_cpu
    else:
        import torch

        from kvcanary_cli.kernels.sweep_hash import launch_sweep_hash

        launch = launch_sweep_hash

        def put(array):
            return torch.from_numpy(np.array(array)).to(device)

    def run(sources, num_slots, first_slot=0, **arguments):
        memory = put(np.full(num_slots + GUARD, SENTINEL))
        if request.param == "numba":
            arguments = {}
        launch(
            sources=kv_sources(sources, put),
            out_hashes=memory[:num_slots],
            first_slot=first_slot,
            **arguments,
        )
        values = memory if isinstance(memory, np.ndarray) else memory.cpu().numpy()
        assert (values[num_slots:] == SENTINEL).all()
        return values[:num_slots].copy()

    return run


def test_runs_the_real_kernel(device):
    from kvcanary_cli.kernels import sweep_hash

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    assert type(sweep_hash._sweep_hash_kernel).__name__ == expected


def test_hand_computed_hash(sweep):
    words = np.array([[5, 6], [7, 8]], np.uint64)
    source = {"bytes": words.view(np.uint8), "page_size": 1, "token_bytes": 16, "read_bytes": 16}
    want = [signed(mix((mix(a ^ mix(0)) + mix(b ^ mix(1))) & MASK)) for a, b in words.tolist()]
    assert sweep([source], 2).tolist() == want
    # the same words in another order, or in another source, are another hash
    assert len({*want, *sweep([source | {"bytes": words[:, ::-1].copy().view(np.uint8)}], 2).tolist()}) == 4
    assert sweep([source, source], 2).tolist() != want


def test_without_sources_hashes_are_zero(sweep):
    assert sweep([], 5).tolist() == [0] * 5


@pytest.mark.parametrize("num_slots", [0, 1, 15, 16, 17, 50])
@pytest.mark.parametrize("num_sources", [1, 6])
def test_twins_agree(num_sources, num_slots, sweep):
    sources = make_sources(np.random.default_rng(num_slots), num_sources, 60)
    want = np.zeros(num_slots, np.int64)
    sweep_hash_ref(sources=kv_sources(sources, np.array), out_hashes=want, first_slot=4)
    np.testing.assert_array_equal(sweep(sources, num_slots, 4, slots=16, words=4), want)


@pytest.mark.parametrize("words", [2, 16])
def test_slots_of_whole_tiles(words, sweep):
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, (20, 128), dtype=np.uint8)
    sources = [{"bytes": data, "page_size": 1, "token_bytes": 128, "read_bytes": 128}]
    want = np.zeros(20, np.int64)
    sweep_hash_ref(sources=kv_sources(sources, np.array), out_hashes=want)
    np.testing.assert_array_equal(sweep(sources, 20, slots=4, words=words), want)


def test_sources_too_short_for_the_range_are_refused(sweep):
    source = {"bytes": np.zeros((3, 16), np.uint8), "page_size": 1, "token_bytes": 16, "read_bytes": 16}
    with pytest.raises(ValueError, match=r"kv-canary: sources\[0\].tensor must have bytes for all 4 slots"):
        sweep([source], 2, 2)
