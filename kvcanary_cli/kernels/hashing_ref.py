"""The canary's hashes on Python integers. Twins: `hashing_cpu.py`, `hashing.py`.

Values are unsigned 64-bit; stamps hold the same bits as int64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.consts import ANCHOR

MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """The splitmix64 finaliser, without the increment."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


HEAD = mix(ANCHOR)  # hash of a chain that has no token yet


def chain(prev_hash: int, token: int, position: int) -> int:
    """Hash of the chain that ends with this token at this position; arguments by bit pattern, any sign."""
    return mix(mix(mix(prev_hash & MASK) ^ (token & MASK)) ^ (position & MASK))


def signed(value: int) -> int:
    """The int64 with the bits of this uint64."""
    return value - (1 << 64) if value >> 63 else value


def hash_bytes(data: bytes) -> int:
    """Hash of one source's bytes, a multiple of 8 of them."""
    value = 0
    for start in range(0, len(data), 8):
        value = mix(value ^ int.from_bytes(data[start : start + 8], "little"))
    return value


def hash_slot(sources: Sequence[KvSource], hash_mode: int, slot: int) -> int:
    """Hash of a slot's bytes in all sources; 0 without sources or in mode NONE."""
    value = 0
    for source in sources:
        num_bytes = source.hashed_bytes(hash_mode)
        if num_bytes:
            page, offset = divmod(slot, source.page_size)
            start = offset * source.num_bytes_per_token
            data = np.asarray(source.tensor[page, start : start + num_bytes])
            value = mix(value ^ hash_bytes(data.tobytes()))
    return value
