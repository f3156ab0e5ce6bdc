"""Store each lane's expected tokens in its pool row, in plain Python.

Twins: `scatter_cpu.py`, `scatter.py`.
"""

from __future__ import annotations

import numpy as np

from kvcanary_cli.kernels._checks import check_scatter


def scatter_ref(
    *, flat: np.ndarray, offsets: np.ndarray, req_pool_indices: np.ndarray, pool: np.ndarray
) -> None:
    """`launch_scatter` on NumPy arrays: same arguments, same cells written, same refusals."""
    check_scatter(flat=flat, offsets=offsets, req_pool_indices=req_pool_indices, pool=pool)
    num_rows, width = pool.shape
    bounds = np.clip(offsets, 0, len(flat)).tolist()
    for lane, row in enumerate(req_pool_indices.tolist()):
        if 0 <= row < num_rows:
            tokens = flat[bounds[lane] : bounds[lane + 1]][:width]
            pool[row, : len(tokens)] = tokens.astype(np.int32)
