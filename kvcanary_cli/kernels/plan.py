"""Turn a forward's page table rows into a verify plan and a write plan, on the GPU.

The first kernel lays out the lanes in one program: offsets, seeds, totals. The second fills in the verify
entries, any number of programs. Twins: `plan_cpu.py`, `plan_ref.py`. All three write the same bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels._checks import check_plan
from kvcanary_cli.kernels.lanes import find_lanes, search_steps
from kvcanary_cli.kernels.plans import VerifyPlan, WritePlan

DEFAULT_BLOCK = 256  # entries a program
DEFAULT_LANE_BLOCK = 1024  # lanes laid out at a time; more lanes are a loop, not a limit


def launch_plan(
    *,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa: torch.Tensor | None,
    expected_tokens: torch.Tensor | None,
    expected_valid_lens: torch.Tensor | None,
    token_id_vs_position_offset: int,
    verify_capacity: int | None = None,
    write_req_capacity: int | None = None,
    block: int = DEFAULT_BLOCK,
    lane_block: int = DEFAULT_LANE_BLOCK,
) -> None:
    """Plan what a forward's lanes verify and write.

    Args:
        verify_plan_out: one entry for each position below a lane's prefix, the last `swa_window_size` of them if
            that is positive. If they don't fit, `enable` is 0 and the entries are left as they were.
        write_plan_out: offsets and seeds of all lanes, and working memory.
        req_pool_indices: [lanes] int64, page table row; 0, or a row outside the table: the lane does nothing.
        prefix_lens: [lanes] int64, tokens written before.
        extend_seq_lens: [lanes] int64, tokens to write.
        req_to_token: [rows, width] int32 page table. A position past a row's end is read from the next row, as
            memory would; past the table's end it has slot -1.
        swa_window_size: 0 for the full group.
        full_to_swa: [full slots] int64 or None. Negative slots pass through, slots beyond its end become -1.
        expected_tokens: [rows, width] int32 or None, with `expected_valid_lens`.
        expected_valid_lens: [lanes] int64 or None, tokens known of each lane's row.
        token_id_vs_position_offset: 0, or 1 where the slot at position p holds the token of p + 1.
        verify_capacity, write_req_capacity: if given, must be the plans' own.
        block, lane_block: entries and lanes a program, powers of two.

    Contract: no host sync, no allocation, any number of lanes. ValueError before any launch if something does
    not fit.
    """
    check_plan(
        verify_plan_out=verify_plan_out,
        write_plan_out=write_plan_out,
        req_pool_indices=req_pool_indices,
        prefix_lens=prefix_lens,
        extend_seq_lens=extend_seq_lens,
        req_to_token=req_to_token,
        swa_window_size=swa_window_size,
        full_to_swa=full_to_swa,
        expected_tokens=expected_tokens,
        expected_valid_lens=expected_valid_lens,
        verify_capacity=verify_capacity,
        write_req_capacity=write_req_capacity,
    )
    num_lanes = req_pool_indices.shape[0]
    num_rows, width = req_to_token.shape
    # stand-ins of the right type where there is no map or pool: never read
    map_or_any = req_pool_indices if full_to_swa is None else full_to_swa
    pool_or_any = req_to_token if expected_tokens is None else expected_tokens
    lens_or_any = prefix_lens if expected_valid_lens is None else expected_valid_lens
    _plan_offsets_kernel[(1,)](
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        map_or_any,
        verify_plan_out.verify_num_valid,
        verify_plan_out.enable,
        write_plan_out.write_offsets,
        write_plan_out.write_seed_slot_indices,
        write_plan_out.write_num_valid_reqs,
        write_plan_out.verify_offsets,
        num_lanes=num_lanes,
        num_rows=num_rows,
        width=width,
        window=max(0, int(swa_window_size)),
        map_size=map_or_any.shape[0],
        verify_capacity=verify_plan_out.verify_capacity,
        HAS_MAP=full_to_swa is not None,
        BLOCK=lane_block,
        num_warps=min(8, max(1, lane_block // 32)),
    )
    if num_lanes == 0:
        return
    _plan_entries_kernel[(triton.cdiv(verify_plan_out.verify_capacity, block),)](
        req_pool_indices,
        prefix_lens,
        req_to_token,
        map_or_any,
        pool_or_any,
        lens_or_any,
        write_plan_out.verify_offsets,
        verify_plan_out.verify_slot_indices,
        verify_plan_out.verify_expected_tokens,
        verify_plan_out.verify_expected_positions,
        verify_plan_out.verify_prev_slot_indices,
        num_lanes=num_lanes,
        num_steps=search_steps(num_lanes),
        num_rows=num_rows,
        width=width,
        window=max(0, int(swa_window_size)),
        map_size=map_or_any.shape[0],
        pool_rows=pool_or_any.shape[0],
        pool_width=pool_or_any.shape[1],
        token_offset=int(token_id_vs_position_offset),
        verify_capacity=verify_plan_out.verify_capacity,
        HAS_MAP=full_to_swa is not None,
        HAS_POOL=expected_tokens is not None,
        BLOCK=block,
        num_warps=min(8, max(1, block // 32)),
    )


@triton.jit(do_not_specialize=["num_lanes", "num_rows", "width", "window", "map_size", "verify_capacity"])
def _plan_offsets_kernel(
    rows_ptr,  # [num_lanes] int64
    prefix_lens_ptr,  # [num_lanes] int64
    extend_lens_ptr,  # [num_lanes] int64
    cells_ptr,  # [num_rows * width] int32, the page table as flat memory
    map_ptr,  # [map_size] int64
    out_num_valid_ptr,  # [1] int32
    out_enable_ptr,  # [1] int32
    out_write_offsets_ptr,  # [write_req_capacity + 1] int64
    out_write_seeds_ptr,  # [write_req_capacity] int64
    out_write_num_valid_ptr,  # [1] int32
    out_verify_offsets_ptr,  # [write_req_capacity + 1] int64
    num_lanes,  # scalar
    num_rows,  # scalar
    width,  # scalar
    window,  # scalar, 0: no window
    map_size,  # scalar
    verify_capacity,  # scalar
    HAS_MAP: tl.constexpr,
    BLOCK: tl.constexpr,  # lanes at a time
):
    num_cells = tl.cast(num_rows, tl.int64) * width
    verify_total = tl.cast(num_lanes, tl.int64) * 0
    write_total = verify_total
    for first in range(0, num_lanes, BLOCK):
        lane_offs = first + tl.arange(0, BLOCK)  # [BLOCK]
        lane_mask = lane_offs < num_lanes
        rows = tl.load(rows_ptr + lane_offs, mask=lane_mask, other=0)
        prefixes = tl.load(prefix_lens_ptr + lane_offs, mask=lane_mask, other=0)
        extends = tl.load(extend_lens_ptr + lane_offs, mask=lane_mask, other=0)
        is_live = (rows > 0) & (rows < num_rows)
        num_verify = tl.where(is_live, tl.maximum(prefixes - window_starts(prefixes, window), 0), 0)
        num_write = tl.where(is_live, tl.maximum(extends, 0), 0)
        verify_starts = verify_total + tl.cumsum(num_verify, axis=0) - num_verify
        write_starts = write_total + tl.cumsum(num_write, axis=0) - num_write
        has_seed = is_live & (extends > 0) & (prefixes > 0)
        seed_cells = rows * width + prefixes - 1
        seeds = table_slots(cells_ptr, num_cells, map_ptr, map_size, seed_cells, has_seed, HAS_MAP)
        tl.store(out_verify_offsets_ptr + lane_offs, verify_starts, mask=lane_mask)
        tl.store(out_write_offsets_ptr + lane_offs, write_starts, mask=lane_mask)
        tl.store(out_write_seeds_ptr + lane_offs, seeds, mask=lane_mask)
        verify_total += tl.sum(num_verify, axis=0)
        write_total += tl.sum(num_write, axis=0)
    tl.store(out_verify_offsets_ptr + num_lanes, verify_total)
    tl.store(out_write_offsets_ptr + num_lanes, write_total)
    tl.store(out_write_num_valid_ptr, num_lanes)
    tl.store(out_num_valid_ptr, tl.minimum(verify_total, verify_capacity).to(tl.int32))
    tl.store(out_enable_ptr, (verify_total <= verify_capacity).to(tl.int32))


@triton.jit(
    do_not_specialize=[
        "num_lanes",
        "num_steps",
        "num_rows",
        "width",
        "window",
        "map_size",
        "pool_rows",
        "pool_width",
        "token_offset",
        "verify_capacity",
    ]
)
def _plan_entries_kernel(
    rows_ptr,  # [num_lanes] int64
    prefix_lens_ptr,  # [num_lanes] int64
    cells_ptr,  # [num_rows * width] int32, the page table as flat memory
    map_ptr,  # [map_size] int64
    pool_ptr,  # [pool_rows, pool_width] int32
    valid_lens_ptr,  # [num_lanes] int64
    verify_offsets_ptr,  # [num_lanes + 1] int64
    out_slots_ptr,  # [verify_capacity] int64
    out_tokens_ptr,  # [verify_capacity] int64
    out_positions_ptr,  # [verify_capacity] int64
    out_prevs_ptr,  # [verify_capacity] int64
    num_lanes,  # scalar
    num_steps,  # scalar
    num_rows,  # scalar
    width,  # scalar
    window,  # scalar, 0: no window
    map_size,  # scalar
    pool_rows,  # scalar
    pool_width,  # scalar
    token_offset,  # scalar
    verify_capacity,  # scalar
    HAS_MAP: tl.constexpr,
    HAS_POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    total = tl.load(verify_offsets_ptr + num_lanes)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    if (total <= verify_capacity) & (first < total):
        num_cells = tl.cast(num_rows, tl.int64) * width
        entry_offs = first + tl.arange(0, BLOCK)  # [BLOCK]
        entry_mask = entry_offs < total
        lanes = find_lanes(verify_offsets_ptr, num_lanes, num_steps, entry_offs, entry_mask)
        rows = tl.load(rows_ptr + lanes, mask=entry_mask, other=0)
        starts = window_starts(tl.load(prefix_lens_ptr + lanes, mask=entry_mask, other=0), window)
        positions = starts + entry_offs - tl.load(verify_offsets_ptr + lanes, mask=entry_mask, other=0)
        cells = rows * width + positions
        slots = table_slots(cells_ptr, num_cells, map_ptr, map_size, cells, entry_mask, HAS_MAP)
        has_prev = entry_mask & (positions > 0)
        prevs = table_slots(cells_ptr, num_cells, map_ptr, map_size, cells - 1, has_prev, HAS_MAP)
        tokens = slots * 0 - 1
        if HAS_POOL:
            columns = positions + token_offset
            num_known = tl.load(valid_lens_ptr + lanes, mask=entry_mask, other=0)
            # the scatter cuts at the pool's width, so nothing is known beyond it
            is_known = (columns >= 0) & (columns < num_known) & (columns < pool_width) & (rows < pool_rows)
            pool_offs = rows * pool_width + columns
            tokens = tl.load(pool_ptr + pool_offs, mask=entry_mask & is_known, other=-1).to(tl.int64)
        tl.store(out_slots_ptr + entry_offs, slots, mask=entry_mask)
        tl.store(out_tokens_ptr + entry_offs, tokens, mask=entry_mask)
        tl.store(out_positions_ptr + entry_offs, positions, mask=entry_mask)
        tl.store(out_prevs_ptr + entry_offs, prevs, mask=entry_mask)


@triton.jit
def window_starts(prefixes, window):
    """First verified position of each lane, [N] int64."""
    return tl.where(window > 0, tl.maximum(prefixes - window, 0), 0)


@triton.jit
def table_slots(
    cells_ptr,  # [num_cells] int32
    num_cells,  # scalar
    map_ptr,  # [map_size] int64
    map_size,  # scalar
    cells,  # [N] int64, indices into the flat page table
    mask,  # [N]
    HAS_MAP: tl.constexpr,
):
    """Slots at these cells, through the window map if there is one, [N] int64; -1 outside of either or masked."""
    is_inside = mask & (cells >= 0) & (cells < num_cells)
    slots = tl.load(cells_ptr + cells, mask=is_inside, other=-1).to(tl.int64)
    if HAS_MAP:
        mapped = tl.load(map_ptr + slots, mask=(slots >= 0) & (slots < map_size), other=-1)
        slots = tl.where(slots >= 0, mapped, slots)
    return slots
