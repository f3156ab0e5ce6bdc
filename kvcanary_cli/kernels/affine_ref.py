"""The affine chain on Python integers. Twins: `affine_cpu.py`, `affine.py`.

`h' = h * FACTOR + affine_input(token, position)` modulo 2^64. It takes the place of `hashing_ref.chain`; stamps, checks
and the head of a chain are the same, and memory that was never stamped, all zeros, agrees with itself as it does there.
A sequence of such steps is one step of the same form, which is what lets a GPU compute a chain of any length in
parallel.
"""

from __future__ import annotations

from kvcanary_cli.kernels.hashing_ref import MASK, mix

# odd, so that it has an inverse; spectral properties as a 64-bit LCG: Steele and Vigna, arXiv 2001.05304
FACTOR = 0xD1342543DE82EF95
INVERSE = pow(FACTOR, -1, 1 << 64)


def affine_input(token: int, position: int) -> int:
    """What a token at a position adds; arguments by bit pattern. One to one in each of the two, and 0 for (0, 0)."""
    return mix(mix(token & MASK) ^ (position & MASK))


def affine_step(prev_hash: int, token: int, position: int) -> int:
    """Hash of the chain that ends with this token at this position."""
    return ((prev_hash & MASK) * FACTOR + affine_input(token, position)) & MASK
