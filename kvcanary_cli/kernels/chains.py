"""One step of a run's chain inside Triton kernels, mixed or affine. Twins: `chains_cpu.py`, `chains_ref.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.kernels.affine_step import affine_step
from kvcanary_cli.kernels.hashing import chain


@triton.jit
def chain_step(prev_hash, token, position, AFFINE: tl.constexpr):
    """Hash of the chain that ends with this token at this position: int64 in and out, as stamps hold them."""
    if AFFINE:
        after = affine_step(prev_hash, token, position)
    else:
        after = chain(prev_hash, token, position)
    return after
