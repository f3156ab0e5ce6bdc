"""The affine chain for Numba. Twins: `affine.py`, `affine_ref.py`.

On a CPU lanes are walked one after another, as other chains are: there is nothing to gain from a scan.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kvcanary_cli.kernels import affine_ref
from kvcanary_cli.kernels.hashing_cpu import mix

FACTOR = np.uint64(affine_ref.FACTOR)


@njit(cache=True)
def affine_input(token, position):
    """What a token at a position adds to the chain; uint64 in and out."""
    return mix(mix(token) ^ position)


@njit(cache=True)
def affine_step(prev_hash, token, position):
    """Hash of the chain that ends with this token at this position; uint64 in and out."""
    return prev_hash * FACTOR + affine_input(token, position)


@njit(cache=True)
def affine_chain_cpu(prev_hash, tokens, positions, out_before):
    """Walk one chain.

    Args:
        prev_hash: uint64, hash before the first token.
        tokens, positions: [n] int64.
        out_before: [n] int64, hash before each token, as a stamp holds it.

    Returns the hash after the last token.
    """
    running = prev_hash
    for index in range(tokens.shape[0]):
        out_before[index] = np.int64(running)
        running = affine_step(running, np.uint64(tokens[index]), np.uint64(positions[index]))
    return running
