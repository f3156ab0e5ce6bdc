"""Store each lane's expected tokens in its pool row, compiled by Numba.

Twins: `scatter.py`, `scatter_ref.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kvcanary_cli.kernels._checks import check_scatter


def scatter_cpu(
    *, flat: np.ndarray, offsets: np.ndarray, req_pool_indices: np.ndarray, pool: np.ndarray
) -> None:
    """`launch_scatter` on NumPy arrays: same arguments, same cells written, same refusals."""
    check_scatter(flat=flat, offsets=offsets, req_pool_indices=req_pool_indices, pool=pool)
    scatter_serial(flat, offsets, req_pool_indices, pool)


@njit(cache=True)
def scatter_serial(flat, offsets, req_pool_indices, pool):
    """One launch on the calling thread, unchecked. Copying is bound by memory: more threads don't help."""
    num_rows, width = pool.shape
    for lane in range(req_pool_indices.shape[0]):
        row = req_pool_indices[lane]
        if 0 <= row < num_rows:
            start = max(np.int64(0), offsets[lane])
            stop = min(offsets[lane + 1], np.int64(flat.shape[0]), start + width)
            for column in range(stop - start):
                pool[row, column] = np.int32(flat[start + column])
