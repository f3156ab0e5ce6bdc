"""How the Numba kernels see NumPy memory.

A strided stamp buffer and a plain one would be two array types to Numba, and every kernel would be compiled
twice. Kernels therefore take the buffer as one flat array of words and a stride.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kvcanary_cli.kernels._checks import stamp_stride
from kvcanary_cli.kernels.consts import STAMP_WORDS

# Pieces that a parallel launch is cut into. A constant, because asking Numba for its number of threads inside
# a kernel keeps the kernel out of the cache; enough for any machine, since memory limits a launch, not cores.
NUM_CHUNKS = 64

# what kernels are given where an optional array is absent
NO_WORDS = np.zeros(0, dtype=np.int64)
NO_POOL = np.zeros((0, 0), dtype=np.int32)


def flat_words(canary_buf: np.ndarray, stride: int | None = None) -> np.ndarray:
    """The buffer's memory as a flat [num_slots * stride] int64 view; slot s begins at word s * stride.

    Args:
        canary_buf: [num_slots, >= 4] int64; rows may be further apart than they are wide.
        stride: words between rows, if the caller has it already (`_checks.stamp_stride`).

    ValueError if the buffer is not one of stamps.
    """
    if stride is None:
        stride = stamp_stride(canary_buf)
    if canary_buf.flags.c_contiguous:
        return canary_buf.reshape(-1)
    # the last row ends with its stamp: what follows may belong to somebody else
    length = (canary_buf.shape[0] - 1) * stride + STAMP_WORDS
    return as_strided(canary_buf, shape=(length,), strides=(8,))
