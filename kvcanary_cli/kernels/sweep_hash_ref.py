"""The order-free byte hash of sweeps, in plain Python. Twins: `sweep_hash_cpu.py`, `sweep_hash.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.hashing_ref import MASK, mix, signed


def sweep_hash_ref(*, sources: Sequence[KvSource], out_hashes: np.ndarray, first_slot: int = 0) -> None:
    """`launch_sweep_hash` on NumPy arrays."""
    for index in range(len(out_hashes)):
        out_hashes[index] = signed(_hash_slot(sources, first_slot + index)) if sources else 0


def _hash_slot(sources: Sequence[KvSource], slot: int) -> int:
    total = 0
    for number, source in enumerate(sources):
        page, offset = divmod(slot, source.page_size)
        start = offset * source.num_bytes_per_token
        data = np.asarray(source.tensor[page, start : start + source.read_bytes]).tobytes()
        for word in range(source.read_bytes // 8):
            value = int.from_bytes(data[8 * word : 8 * word + 8], "little")
            total += mix(value ^ mix(number << 32 | word))
    return mix(total & MASK)
