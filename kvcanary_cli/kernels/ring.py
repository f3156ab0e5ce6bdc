"""Violation rows inside Triton kernels. The twin for Numba is `ring_cpu.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.kernels.consts import RING_WORDS

_WORDS = tl.constexpr(RING_WORDS)


@triton.jit
def append_rows(
    ring_ptr,  # [ring_capacity, 8] int64
    write_index_ptr,  # [1] int32
    ring_capacity,  # scalar
    is_bad,  # [N] int1, which elements get a row
    launch_tag,  # scalar
    slots,  # [N] int64, as are the columns that follow
    positions,
    stored_tokens,
    expected_tokens,
    stored_prevs,
    aux,
    bits,
):
    """Take the next indices of the log for the bad elements and store their rows; what the ring can't hold is dropped.

    One atomic addition a program, and none where nothing is bad.
    """
    num_bad = tl.sum(is_bad.to(tl.int32), axis=0)
    if num_bad > 0:
        first = tl.atomic_add(write_index_ptr, num_bad, sem="relaxed")
        index = first + tl.cumsum(is_bad.to(tl.int32), axis=0) - 1  # [N]
        # a counter that wrapped around is negative
        keep = is_bad & (index >= 0) & (index < ring_capacity)
        row_ptrs = ring_ptr + index.to(tl.int64) * _WORDS
        tl.store(row_ptrs, slots * 0 + launch_tag, mask=keep)
        tl.store(row_ptrs + 1, slots, mask=keep)
        tl.store(row_ptrs + 2, positions, mask=keep)
        tl.store(row_ptrs + 3, stored_tokens, mask=keep)
        tl.store(row_ptrs + 4, expected_tokens, mask=keep)
        tl.store(row_ptrs + 5, stored_prevs, mask=keep)
        tl.store(row_ptrs + 6, aux, mask=keep)
        tl.store(row_ptrs + 7, bits, mask=keep)
