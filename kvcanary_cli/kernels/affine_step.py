"""One step of the affine chain inside Triton kernels. Twins: `affine_cpu.py`, `affine_ref.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.kernels import affine_ref
from kvcanary_cli.kernels.hashing import mix

_FACTOR = tl.constexpr(affine_ref.FACTOR)


@triton.jit
def affine_input(token, position):
    """What a token at a position adds to the chain, uint64; arguments int64."""
    value = mix(token.to(tl.uint64, bitcast=True))
    return mix(value ^ position.to(tl.uint64, bitcast=True))


@triton.jit
def affine_step(prev_hash, token, position):
    """Hash of the chain that ends with this token at this position: int64 in and out, as stamps hold them."""
    value = prev_hash.to(tl.uint64, bitcast=True) * _FACTOR + affine_input(token, position)
    return value.to(tl.int64, bitcast=True)
