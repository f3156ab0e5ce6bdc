"""The hashes: known values, and the same ones from Python, Numba and Triton."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.kernels import hashing_ref
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.consts import ANCHOR, HashMode

# splitmix64's finaliser, worked out apart from the package
KNOWN = {0: 0, 1: 0x5692161D100B05E5, 2: 0xDBD238973A2B148A, ANCHOR: 0xDE7FAE23A9A1B716}
HASH_OF_16_BYTES = 0x447F1B95028CE131  # of the bytes 0 to 15
HASH_OF_SLOT = 0xD6D75024DFD6C30C  # with one source of these bytes
HASH_OF_SLOT_TWICE = 0xCD98CAD44BCDA2EA  # with two


@pytest.mark.parametrize(("value", "mixed"), KNOWN.items())
def test_known_values(value, mixed):
    from kvcanary_cli.kernels import hashing_cpu

    assert hashing_ref.mix(value) == mixed
    assert int(hashing_cpu.mix(np.uint64(value))) == mixed


def test_known_chain():
    from kvcanary_cli.kernels import hashing_cpu

    for chain in (hashing_ref.chain, lambda *words: int(hashing_cpu.chain(*map(np.uint64, words)))):
        assert chain(KNOWN[ANCHOR], 11, 0) == 0x89CD2ABFBEBC0649
        assert chain(0x89CD2ABFBEBC0649, 12, 1) == 0x13F5BAAFE6EF85D6


@pytest.mark.parametrize(
    ("num_sources", "mode", "hashed"),
    [
        (1, HashMode.ALL, HASH_OF_SLOT),
        (2, HashMode.ALL, HASH_OF_SLOT_TWICE),
        (2, HashMode.NONE, 0),
        (0, HashMode.ALL, 0),
    ],
)
def test_known_bytes(num_sources, mode, hashed):
    from kvcanary_cli.kernels import hashing_cpu
    from kvcanary_cli.kernels.sources_cpu import source_table

    memory = np.zeros((2, 80), dtype=np.uint8)
    memory[1, 32:48] = range(16)  # slot 4 of pages of three slots of 16 bytes, rows wider than that
    memory[1, 16:32] = range(16)
    sources = [KvSource(memory, 3, 16, 16)] * num_sources
    assert hashing_ref.hash_slot(sources, mode, 4) == hashed
    assert int(hashing_cpu.hash_slot(source_table(sources, mode), 4)) == hashed
    assert hashing_ref.hash_bytes(bytes(range(16))) == HASH_OF_16_BYTES


def test_partial_reads_the_first_16_bytes_of_each_source():
    from kvcanary_cli.kernels import hashing_cpu
    from kvcanary_cli.kernels.sources_cpu import source_table

    memory = np.arange(64, dtype=np.uint8).reshape(1, 64)
    whole, part = KvSource(memory, 1, 64, 48), KvSource(memory, 1, 64, 16)
    for hash_slot in (
        lambda source, mode: hashing_ref.hash_slot([source], mode, 0),
        lambda source, mode: int(hashing_cpu.hash_slot(source_table([source], mode), 0)),
    ):
        assert hash_slot(whole, HashMode.PARTIAL) == hash_slot(part, HashMode.ALL) == HASH_OF_SLOT
        assert hash_slot(whole, HashMode.ALL) != HASH_OF_SLOT


def test_triton_chains_are_the_same(device):
    import torch

    from tests.kernels.triton_probe import launch_chain

    rng = np.random.default_rng(7)
    words = rng.integers(-(2**63), 2**63, (3, 64), dtype=np.int64)
    words[:, :3] = [[0, -1, 2**63 - 1], [0, 2**31, -(2**63)], [0, -1, 5]]
    out = torch.full((64,), 0x5A, dtype=torch.int64, device=device)
    launch_chain(*(torch.from_numpy(row.copy()).to(device) for row in words), out)
    want = [hashing_ref.signed(hashing_ref.chain(*row)) for row in words.T.tolist()]
    assert out.tolist() == want


def test_triton_mix_is_the_same(device):
    import torch

    from tests.kernels.triton_probe import launch_mix

    values = list(KNOWN)
    out = torch.full((len(values),), 0x5A, dtype=torch.int64, device=device)
    launch_mix(torch.tensor([hashing_ref.signed(value) for value in values], device=device), out)
    assert out.tolist() == [hashing_ref.signed(mixed) for mixed in KNOWN.values()]
