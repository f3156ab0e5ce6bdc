"""One step of a run's chain for Numba, mixed or affine. Twins: `chains.py`, `chains_ref.py`."""

from __future__ import annotations

import numpy as np
from numba import njit

from kvcanary_cli.kernels.affine_cpu import affine_step
from kvcanary_cli.kernels.hashing_cpu import chain


@njit(cache=True)
def chain_step(prev_hash, token, position, is_affine):
    """Hash of the chain that ends with this token at this position; uint64 in and out."""
    if is_affine:
        return affine_step(prev_hash, token, position)
    return chain(prev_hash, token, position)


@njit(cache=True)
def stamp_chain(words, base, is_affine):
    """Hash of the chain that ends with the stamp at `words[base]`, as uint64."""
    token, position, prev_hash = words[base], words[base + 1], words[base + 2]
    return chain_step(np.uint64(prev_hash), np.uint64(token), np.uint64(position), is_affine)
