"""One step of a run's chain on Python integers, mixed or affine. Twins: `chains_cpu.py`, `chains.py`."""

from __future__ import annotations

from kvcanary_cli.kernels.affine_ref import affine_step
from kvcanary_cli.kernels.hashing_ref import chain


def chain_step(prev_hash: int, token: int, position: int, is_affine: bool = False) -> int:
    """Hash of the chain that ends with this token at this position; arguments by bit pattern, any sign."""
    return affine_step(prev_hash, token, position) if is_affine else chain(prev_hash, token, position)
