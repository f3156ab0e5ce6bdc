"""Stamp the slots of a forward's tokens, on the GPU.

Chains are serial: one kernel walks them, a lane a thread, and stores the prev_hash words. Everything that does not
depend on the chain, above all the bytes, is done by a second kernel, an entry a thread. Twins: `write_cpu.py`,
`write_ref.py`. All three leave the same stamps and report the same rows; the rows' order is free here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels import consts
from kvcanary_cli.kernels._checks import check_write
from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels._sources import check_sources
from kvcanary_cli.kernels.chains import chain_step
from kvcanary_cli.kernels.hashing import HEAD, hash_slots, load_stamps
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.plans import WritePlan
from kvcanary_cli.kernels.ring import append_rows
from kvcanary_cli.kernels.sources import KvSource, source_table

DEFAULT_BLOCK = 128  # entries a program, one a thread
DEFAULT_LANE_BLOCK = 32  # chains a program: a warp, so that its reductions stay inside of it

BIT_WRITE_TOKEN = tl.constexpr(consts.BIT_WRITE_TOKEN)
BIT_WRITE_POSITION = tl.constexpr(consts.BIT_WRITE_POSITION)
BIT_OUT_OF_RANGE = tl.constexpr(consts.BIT_OUT_OF_RANGE)


def launch_write(
    *,
    canary_buf: torch.Tensor,
    plan: WritePlan,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    sources: Sequence[KvSource],
    hash_mode: int,
    launch_tag: int,
    log: ViolationLog,
    expected_inputs: ExpectedInputs | None,
    chain_position_assert: bool,
    seed_buf: torch.Tensor | None = None,
    is_affine: bool = False,
    block: int = DEFAULT_BLOCK,
    lane_block: int = DEFAULT_LANE_BLOCK,
) -> None:
    """Write the stamps of a forward's tokens, each lane's chain going on from its seed.

    Args:
        canary_buf: [num_slots, >= 4] int64, rows contiguous, possibly further apart. Only the first four words
            of a row are written.
        plan: lanes, their tokens and seeds; offsets never decrease.
        input_ids, positions, out_cache_loc: [num_tokens] int64. A negative slot skips its token; a slot beyond
            the buffer is a violation and nothing is stored.
        sources, hash_mode: KV bytes whose hash goes into the stamps, as in `launch_verify`.
        launch_tag: `consts.LaunchTag`, copied into the rows.
        log: gets the violations, and the number of stamps written.
        expected_inputs: tokens and positions that the inputs must equal, both [num_tokens] int64, or None.
        chain_position_assert: whether positions must go up by one from the seed's on.
        seed_buf: where seeds are read, with canary_buf's shape and strides; None: canary_buf itself. A caller
            whose lanes write each other's seeds or slots passes a copy made before, and launches lane by lane.
        is_affine: whether the chains are affine; walked here as others are, see `affine.py`.
        block, lane_block: entries and chains a program, powers of two.

    Contract: no host sync, and no allocation except at the first launch with new sources. Entries are written in
    any order. ValueError before any launch if something does not fit.
    """
    stride = check_write(
        canary_buf=canary_buf,
        seed_buf=seed_buf,
        plan=plan,
        input_ids=input_ids,
        positions=positions,
        out_cache_loc=out_cache_loc,
        log=log,
        expected_inputs=expected_inputs,
    )
    num_slots, num_tokens = canary_buf.shape[0], input_ids.shape[0]
    check_sources(sources, hash_mode, num_slots, canary_buf)
    table = source_table(sources, hash_mode, canary_buf.device)
    expected = (input_ids, positions) if expected_inputs is None else expected_inputs
    # chains first: they read seeds, which the second kernel may overwrite
    _write_chains_kernel[(triton.cdiv(plan.write_req_capacity, lane_block),)](
        canary_buf,
        canary_buf if seed_buf is None else seed_buf,
        plan.write_offsets,
        plan.write_seed_slot_indices,
        plan.write_num_valid_reqs,
        input_ids,
        positions,
        out_cache_loc,
        expected[0],
        expected[1],
        log.ring,
        log.write_index,
        log.kernel_run_counter,
        num_slots=num_slots,
        write_req_capacity=plan.write_req_capacity,
        num_tokens=num_tokens,
        ring_capacity=log.ring_capacity,
        launch_tag=int(launch_tag),
        STRIDE=stride,
        HAS_EXPECTED=expected_inputs is not None,
        CHECK_CHAIN=bool(chain_position_assert),
        AFFINE=bool(is_affine),
        BLOCK=lane_block,
        num_warps=min(8, max(1, lane_block // 32)),
    )
    if num_tokens == 0:
        return
    _write_entries_kernel[(triton.cdiv(num_tokens, block),)](
        canary_buf,
        plan.write_offsets,
        plan.write_num_valid_reqs,
        input_ids,
        positions,
        out_cache_loc,
        table,
        log.slot_run_counter,
        num_slots=num_slots,
        write_req_capacity=plan.write_req_capacity,
        num_tokens=num_tokens,
        num_sources=table.shape[0],
        STRIDE=stride,
        SMALL=num_slots < 2**31,
        BLOCK=block,
        num_warps=min(8, max(1, block // 32)),
    )


@triton.jit(do_not_specialize=["num_slots", "write_req_capacity", "num_tokens", "num_sources"])
def _write_entries_kernel(
    out_stamps_ptr,  # [num_slots, STRIDE] int64
    offsets_ptr,  # [write_req_capacity + 1] int64
    num_valid_ptr,  # [1] int32
    input_ids_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    slots_ptr,  # [num_tokens] int64
    table_ptr,  # [num_sources, 5] int64, addresses of the byte sources
    out_slot_run_ptr,  # [1] int64
    num_slots,  # scalar
    write_req_capacity,  # scalar
    num_tokens,  # scalar
    num_sources,  # scalar
    STRIDE: tl.constexpr,  # words from one stamp to the next
    SMALL: tl.constexpr,  # slots fit 32 bits
    BLOCK: tl.constexpr,
):
    num_lanes = tl.minimum(tl.maximum(tl.load(num_valid_ptr), 0), write_req_capacity)
    entry_offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    # tokens outside of all lanes belong to nobody
    entry_mask = (entry_offs >= tl.load(offsets_ptr)) & (entry_offs < tl.load(offsets_ptr + num_lanes))
    entry_mask &= entry_offs < num_tokens
    slots = tl.load(slots_ptr + entry_offs, mask=entry_mask, other=-1)
    is_inside = (slots >= 0) & (slots < num_slots)
    tokens = tl.load(input_ids_ptr + entry_offs, mask=is_inside, other=0)
    positions = tl.load(positions_ptr + entry_offs, mask=is_inside, other=0)
    kv_hashes = hash_slots(table_ptr, num_sources, tl.where(is_inside, slots, 0), is_inside, SMALL)
    word_offs = slots * STRIDE
    pair_offs = word_offs[:, None] + tl.arange(0, 2)[None, :]  # [BLOCK, 2], 16 bytes at once
    tl.store(out_stamps_ptr + pair_offs, tl.join(tokens, positions), mask=is_inside[:, None])
    tl.store(out_stamps_ptr + word_offs + 3, kv_hashes, mask=is_inside)
    num_written = tl.sum(is_inside.to(tl.int32), axis=0)
    if num_written > 0:
        tl.atomic_add(out_slot_run_ptr, num_written.to(tl.int64), sem="relaxed")


@triton.jit(
    do_not_specialize=["num_slots", "write_req_capacity", "num_tokens", "ring_capacity", "launch_tag"],
)
def _write_chains_kernel(
    out_stamps_ptr,  # [num_slots, STRIDE] int64
    seed_stamps_ptr,  # [num_slots, STRIDE] int64, may be the same memory
    offsets_ptr,  # [write_req_capacity + 1] int64
    seeds_ptr,  # [write_req_capacity] int64
    num_valid_ptr,  # [1] int32
    input_ids_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    slots_ptr,  # [num_tokens] int64
    expected_tokens_ptr,  # [num_tokens] int64
    expected_positions_ptr,  # [num_tokens] int64
    out_ring_ptr,  # [ring_capacity, 8] int64
    out_write_index_ptr,  # [1] int32
    out_kernel_run_ptr,  # [1] int64
    num_slots,  # scalar
    write_req_capacity,  # scalar
    num_tokens,  # scalar
    ring_capacity,  # scalar
    launch_tag,  # scalar
    STRIDE: tl.constexpr,  # words from one stamp to the next
    HAS_EXPECTED: tl.constexpr,
    CHECK_CHAIN: tl.constexpr,
    AFFINE: tl.constexpr,  # whether the chains are affine
    BLOCK: tl.constexpr,  # chains walked side by side
):
    num_lanes = tl.minimum(tl.load(num_valid_ptr), write_req_capacity)
    if tl.program_id(0) == 0:
        tl.atomic_add(out_kernel_run_ptr, 1, sem="relaxed")
    lane_offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    lane_mask = lane_offs < num_lanes
    starts = tl.maximum(tl.load(offsets_ptr + lane_offs, mask=lane_mask, other=0), 0)
    stops = tl.minimum(tl.load(offsets_ptr + lane_offs + 1, mask=lane_mask, other=0), num_tokens)
    seeds = tl.load(seeds_ptr + lane_offs, mask=lane_mask, other=-1)
    has_seed = (seeds >= 0) & (seeds < num_slots)
    token, previous, prev_hash, _ = load_stamps(seed_stamps_ptr, seeds, has_seed, STRIDE)
    running = tl.where(has_seed, chain_step(prev_hash, token, previous, AFFINE), HEAD)
    zeros = seeds * 0
    append_rows(
        out_ring_ptr,
        out_write_index_ptr,
        ring_capacity,
        seeds >= num_slots,
        launch_tag,
        seeds,
        zeros - 1,
        zeros,
        zeros - 1,
        zeros,
        zeros + num_slots,
        zeros + BIT_OUT_OF_RANGE,
    )
    # the next step's inputs are loaded while this step's hash is computed
    entry_offs = starts  # [BLOCK]
    next_slots = tl.load(slots_ptr + entry_offs, mask=entry_offs < stops, other=-1)
    next_tokens = tl.load(input_ids_ptr + entry_offs, mask=entry_offs < stops, other=0)
    next_positions = tl.load(positions_ptr + entry_offs, mask=entry_offs < stops, other=0)
    for _ in range(tl.max(stops - starts, axis=0).to(tl.int32)):
        slots, tokens, positions = next_slots, next_tokens, next_positions
        next_offs = entry_offs + 1
        next_mask = next_offs < stops
        next_slots = tl.load(slots_ptr + next_offs, mask=next_mask, other=-1)
        next_tokens = tl.load(input_ids_ptr + next_offs, mask=next_mask, other=0)
        next_positions = tl.load(positions_ptr + next_offs, mask=next_mask, other=0)
        # lanes that have ended read slot -1, as do tokens that are skipped
        is_active = slots >= 0
        is_outside = slots >= num_slots
        tl.store(out_stamps_ptr + slots * STRIDE + 2, running, mask=is_active & (slots < num_slots))
        is_bad = is_outside
        if HAS_EXPECTED:
            wanted_tokens = tl.load(expected_tokens_ptr + entry_offs, mask=is_active, other=0)
            wanted_positions = tl.load(expected_positions_ptr + entry_offs, mask=is_active, other=0)
            input_bits = tl.where(tokens != wanted_tokens, BIT_WRITE_TOKEN, 0)
            input_bits += tl.where(positions != wanted_positions, BIT_WRITE_POSITION, 0)
            is_wrong = is_active & (input_bits != 0)
            is_bad = is_bad | is_wrong
        if CHECK_CHAIN:
            is_broken = has_seed & is_active & (positions != previous + 1)
            is_bad = is_bad | is_broken
        if tl.max(is_bad.to(tl.int32), axis=0) > 0:
            if HAS_EXPECTED:
                append_rows(
                    out_ring_ptr,
                    out_write_index_ptr,
                    ring_capacity,
                    is_wrong,
                    launch_tag,
                    slots,
                    positions,
                    tokens,
                    wanted_tokens,
                    running,
                    wanted_positions,
                    input_bits,
                )
            if CHECK_CHAIN:
                append_rows(
                    out_ring_ptr,
                    out_write_index_ptr,
                    ring_capacity,
                    is_broken,
                    launch_tag,
                    slots,
                    positions,
                    tokens,
                    tokens,
                    running,
                    previous + 1,
                    zeros + BIT_WRITE_POSITION,
                )
            append_rows(
                out_ring_ptr,
                out_write_index_ptr,
                ring_capacity,
                is_outside,
                launch_tag,
                slots,
                positions,
                tokens,
                tokens,
                running,
                zeros + num_slots,
                zeros + BIT_OUT_OF_RANGE,
            )
        if CHECK_CHAIN:
            previous = tl.where(is_active, positions, previous)
        running = tl.where(is_active, chain_step(running, tokens, positions, AFFINE), running)
        entry_offs = next_offs
