"""Violation rows for Numba. The twin for Triton is `ring.py`."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def store_row(ring, index, launch_tag, slot, position, stored_token, expected_token, stored_prev, aux, bits):
    """Write one row at `index` of the ring; an index outside it is dropped.

    A launch that only counts passes the ring's capacity. A counter that wrapped around is negative.
    """
    if 0 <= index < ring.shape[0]:
        ring[index, 0] = launch_tag
        ring[index, 1] = slot
        ring[index, 2] = position
        ring[index, 3] = stored_token
        ring[index, 4] = expected_token
        ring[index, 5] = np.int64(stored_prev)
        ring[index, 6] = aux
        ring[index, 7] = bits
