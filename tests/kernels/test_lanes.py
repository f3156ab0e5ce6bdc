"""From a flat entry to its lane."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("num_lanes", [1, 2, 3, 7, 8, 9, 63, 64, 65, 5000])
def test_lanes_are_those_a_plain_search_finds(num_lanes, device):
    import torch

    from tests.kernels.triton_probe import launch_find_lanes

    rng = np.random.default_rng(num_lanes)
    lengths = rng.integers(0, 4, num_lanes) * rng.integers(0, 2, num_lanes)
    lengths[rng.integers(0, num_lanes)] += 5
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.concatenate([[0, offsets[-1] - 1], rng.integers(0, offsets[-1], 126)])
    out = torch.full((128,), 0x5A, dtype=torch.int64, device=device)
    launch_find_lanes(torch.from_numpy(offsets).to(device), torch.from_numpy(entries).to(device), out)
    assert out.tolist() == [int(np.flatnonzero(offsets[:-1] <= entry)[-1]) for entry in entries]
