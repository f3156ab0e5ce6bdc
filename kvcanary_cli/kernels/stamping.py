"""What kernels that stamp several buffers share: lanes and tokens, one stamp an element, and rows about inputs."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.kernels import consts
from kvcanary_cli.kernels.byte_hash import hash_tiles
from kvcanary_cli.kernels.ring import append_rows
from kvcanary_cli.kernels.targets import count_entries, target_log, target_sources, target_stamps

BIT_WRITE_TOKEN = tl.constexpr(consts.BIT_WRITE_TOKEN)
BIT_WRITE_POSITION = tl.constexpr(consts.BIT_WRITE_POSITION)
BIT_OUT_OF_RANGE = tl.constexpr(consts.BIT_OUT_OF_RANGE)


@triton.jit
def lane_bounds(
    offsets_ptr,  # [write_req_capacity + 1] int64
    seeds_ptr,  # [write_req_capacity] int64
    num_valid_ptr,  # [1] int32
    lanes,  # [N] int64
    write_req_capacity,  # scalar
    num_tokens,  # scalar
):
    """First token, the one after the last, and seed slot of lanes, each [N]; no tokens and -1 beyond the last lane."""
    mask = lanes < tl.minimum(tl.load(num_valid_ptr), write_req_capacity)
    starts = tl.maximum(tl.load(offsets_ptr + lanes, mask=mask, other=0), 0)
    stops = tl.minimum(tl.load(offsets_ptr + lanes + 1, mask=mask, other=0), num_tokens)
    return starts, stops, tl.load(seeds_ptr + lanes, mask=mask, other=-1)


@triton.jit
def load_token(input_ids_ptr, positions_ptr, slots_ptr, entries, stops):
    """Token, position and slot of entries [N], each [N]; slot -1 at and after `stops`."""
    mask = entries < stops
    token = tl.load(input_ids_ptr + entries, mask=mask, other=0)
    position = tl.load(positions_ptr + entries, mask=mask, other=0)
    return token, position, tl.load(slots_ptr + entries, mask=mask, other=-1)


@triton.jit
def positions_before(
    slots_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    seed_positions_ptr,  # [num_lanes] int64, as the seeds were before anything was written
    starts,  # [N] int64, first token of the entries' lanes
    seeds,  # [N] int64, seed of the entries' lanes
    lanes,  # [N] int64
    entries,  # [N] int64
    is_active,  # [N], entries that are written
    num_slots,  # scalar
):
    """Whether an entry's position is compared with one before, and that one: both [N]. Skipped tokens don't count."""
    has_previous = is_active & (seeds >= 0) & (seeds < num_slots)
    before = entries - 1
    is_skipped = has_previous & (before >= starts)
    is_skipped &= tl.load(slots_ptr + before, mask=is_skipped, other=0) < 0
    while tl.max(is_skipped.to(tl.int32), axis=0) > 0:
        before -= is_skipped.to(tl.int64)
        is_skipped &= before >= starts
        is_skipped &= tl.load(slots_ptr + before, mask=is_skipped, other=0) < 0
    in_lane = has_previous & (before >= starts)
    previous = tl.load(positions_ptr + before, mask=in_lane, other=0)
    at_seed = has_previous & (before < starts)
    seed_position = tl.load(seed_positions_ptr + lanes, mask=at_seed, other=0)
    return has_previous, tl.where(at_seed, seed_position, previous)


@triton.jit
def report_seeds(targets_ptr, target, seeds, num_slots):
    """A row for each seed beyond the buffer."""
    zeros = seeds * 0
    is_outside = seeds >= num_slots
    if tl.max(is_outside.to(tl.int32), axis=0) > 0:
        ring_ptr, write_index_ptr, ring_capacity, launch_tag = target_log(targets_ptr, target)
        append_rows(
            ring_ptr,
            write_index_ptr,
            ring_capacity,
            is_outside,
            launch_tag,
            seeds,
            zeros - 1,
            zeros,
            zeros - 1,
            zeros,
            zeros + num_slots,
            zeros + BIT_OUT_OF_RANGE,
        )


@triton.jit
def stamp_entries(
    targets_ptr,
    target,
    slots,  # [N] int64, negative: nothing to do
    token,  # [N] int64
    position,  # [N] int64
    running,  # [N] int64, hash before the token
    has_previous,  # [N], whether the position is compared with the one before
    previous,  # [N] int64
    wanted_token_ptrs,  # [N]
    wanted_position_ptrs,  # [N]
    num_slots,  # scalar
    STRIDE: tl.constexpr,
    GRAIN: tl.constexpr,
    HAS_EXPECTED: tl.constexpr,
    CHECK_CHAIN: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    SMALL: tl.constexpr,
):
    """Store one stamp an element, count it, and report what is wrong with the inputs."""
    is_inside = (slots >= 0) & (slots < num_slots)
    kv_hash = slots * 0
    if HAS_SOURCES:
        table_ptr, num_sources = target_sources(targets_ptr, target)
        kv_hash = hash_tiles(table_ptr, num_sources, tl.where(is_inside, slots, 0), is_inside, SMALL)
    stamps_ptr = target_stamps(targets_ptr, target, GRAIN)
    pair_offs = (slots * STRIDE)[:, None] + tl.arange(0, 2)[None, :]  # [N, 2], 16 bytes at once
    tl.store(stamps_ptr + pair_offs, tl.join(token, position), mask=is_inside[:, None])
    tl.store(stamps_ptr + pair_offs + 2, tl.join(running, kv_hash), mask=is_inside[:, None])
    num_written = tl.sum(is_inside.to(tl.int32), axis=0)
    if num_written > 0:
        count_entries(targets_ptr, target, num_written.to(tl.int64))
    bits = tl.where(slots >= num_slots, BIT_OUT_OF_RANGE, 0)
    wanted_token, wanted_position = token, position
    if HAS_EXPECTED:
        wanted_token = tl.load(wanted_token_ptrs, mask=slots >= 0, other=0)
        wanted_position = tl.load(wanted_position_ptrs, mask=slots >= 0, other=0)
        is_active = slots >= 0
        bits |= tl.where(is_active & (token != wanted_token), BIT_WRITE_TOKEN, 0)
        bits |= tl.where(is_active & (position != wanted_position), BIT_WRITE_POSITION, 0)
    is_broken = slots != slots
    if CHECK_CHAIN:
        is_broken = has_previous & (position != previous + 1)
    if tl.max((is_broken | (bits != 0)).to(tl.int32), axis=0) > 0:
        _report_inputs(
            targets_ptr,
            target,
            slots,
            token,
            position,
            running,
            wanted_token,
            wanted_position,
            bits & (BIT_WRITE_TOKEN | BIT_WRITE_POSITION),
            is_broken,
            previous + 1,
            num_slots,
        )


@triton.jit
def _report_inputs(
    targets_ptr,
    target,
    slots,  # [N] int64, as are the columns that follow
    token,
    position,
    running,
    wanted_token,
    wanted_position,
    input_bits,  # [N] int32, inputs that differ from the expected ones
    is_broken,  # [N], positions that do not follow
    follows,  # [N] int64, the positions that would
    num_slots,  # scalar
):
    """Up to three rows an element: expected inputs, position after position, slot beyond the buffer."""
    ring_ptr, write_index_ptr, ring_capacity, launch_tag = target_log(targets_ptr, target)
    zeros = slots * 0
    for kind in tl.static_range(3):
        is_bad = slots >= num_slots
        stored, wanted, aux = position, token, zeros + num_slots
        bits = zeros + BIT_OUT_OF_RANGE
        if kind == 0:
            is_bad, wanted, aux, bits = input_bits != 0, wanted_token, wanted_position, zeros + input_bits
        if kind == 1:
            is_bad, aux, bits = is_broken, follows, zeros + BIT_WRITE_POSITION
        append_rows(
            ring_ptr,
            write_index_ptr,
            ring_capacity,
            is_bad,
            launch_tag,
            slots,
            stored,
            token,
            wanted,
            running,
            aux,
            bits,
        )
