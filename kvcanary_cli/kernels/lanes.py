"""From a flat entry to its lane inside Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl


def search_steps(num_lanes: int) -> int:
    """Halvings that `find_lanes` needs for this many lanes."""
    return max(1, num_lanes.bit_length())


@triton.jit
def find_lanes(
    offsets_ptr,  # [num_lanes + 1] int64, never decreasing
    num_lanes,  # scalar, at least 1
    num_steps,  # scalar, `search_steps(num_lanes)`
    entries,  # [N] int64
    mask,  # [N]
):
    """The last lane that begins at or before each entry, [N] int64: the entry's own, lanes without entries skipped.

    Lane 0 for entries before the first offset.
    """
    low = entries * 0
    high = low + num_lanes
    for _ in range(num_steps):
        middle = (low + high) // 2
        begins = tl.load(offsets_ptr + middle, mask=mask, other=0) <= entries
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle)
    return low
