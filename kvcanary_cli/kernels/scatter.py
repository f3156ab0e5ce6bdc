"""Store each lane's expected tokens in its pool row, on the GPU. Twins: `scatter_cpu.py`, `scatter_ref.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels._checks import check_scatter
from kvcanary_cli.kernels.lanes import find_lanes, search_steps

DEFAULT_BLOCK = 256  # tokens a program


def launch_scatter(
    *,
    flat: torch.Tensor,
    offsets: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pool: torch.Tensor,
    block: int = DEFAULT_BLOCK,
) -> None:
    """Copy lane r's tokens `flat[offsets[r]:offsets[r + 1]]` to the beginning of its row, cut at the pool's width.

    Args:
        flat: [num_tokens] int64 token ids, below 2**31.
        offsets: [lanes + 1] int64, never decreasing. Any number of lanes.
        req_pool_indices: [lanes] int64, row of each lane; no row twice. Rows outside the pool are skipped.
        pool: [rows, width] int32. Cells that no token goes to are left as they are.
        block: tokens a program, a power of two.

    Contract: no host sync, no allocation. ValueError before any launch if something does not fit.
    """
    check_scatter(flat=flat, offsets=offsets, req_pool_indices=req_pool_indices, pool=pool)
    num_tokens, num_lanes = flat.shape[0], req_pool_indices.shape[0]
    if num_tokens == 0 or num_lanes == 0:
        return
    _scatter_kernel[(triton.cdiv(num_tokens, block),)](
        flat,
        offsets,
        req_pool_indices,
        pool,
        num_tokens=num_tokens,
        num_lanes=num_lanes,
        num_steps=search_steps(num_lanes),
        num_rows=pool.shape[0],
        width=pool.shape[1],
        BLOCK=block,
        num_warps=min(8, max(1, block // 32)),
    )


@triton.jit(do_not_specialize=["num_tokens", "num_lanes", "num_steps", "num_rows", "width"])
def _scatter_kernel(
    flat_ptr,  # [num_tokens] int64
    offsets_ptr,  # [num_lanes + 1] int64
    rows_ptr,  # [num_lanes] int64
    out_pool_ptr,  # [num_rows, width] int32
    num_tokens,  # scalar
    num_lanes,  # scalar
    num_steps,  # scalar
    num_rows,  # scalar
    width,  # scalar
    BLOCK: tl.constexpr,
):
    token_offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    token_mask = token_offs < num_tokens
    lanes = find_lanes(offsets_ptr, num_lanes, num_steps, token_offs, token_mask)
    starts = tl.load(offsets_ptr + lanes, mask=token_mask, other=0)
    stops = tl.load(offsets_ptr + lanes + 1, mask=token_mask, other=0)
    rows = tl.load(rows_ptr + lanes, mask=token_mask, other=-1)
    # tokens before the first lane and after the last one belong to nobody
    keep = token_mask & (token_offs >= starts) & (token_offs < stops)
    columns = token_offs - tl.maximum(starts, 0)
    keep &= (rows >= 0) & (rows < num_rows) & (columns < width)
    tokens = tl.load(flat_ptr + token_offs, mask=keep, other=0)
    tl.store(out_pool_ptr + rows * width + columns, tokens.to(tl.int32), mask=keep)
