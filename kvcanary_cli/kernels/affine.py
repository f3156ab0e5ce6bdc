"""The affine chain on the GPU: steps inside of kernels, and stamping lanes of any length in two launches.

`h' = h * FACTOR + affine_input(token, position)`. A run of such steps is one pair (a, b), `h' = h * a + b`, and
pairs are combined associatively: blocks of tokens are reduced side by side, then every block combines those before
it and scans its own. The first token of a lane has a = 0, which cuts the lanes apart. Twins: `affine_cpu.py`,
`affine_ref.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels import affine_ref
from kvcanary_cli.kernels._checks import check_array, check_write
from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels.affine_step import affine_input, affine_step
from kvcanary_cli.kernels.hashing import HEAD, load_stamps
from kvcanary_cli.kernels.lanes import find_lanes, search_steps
from kvcanary_cli.kernels.plans import WritePlan
from kvcanary_cli.kernels.stamping import positions_before, report_seeds, stamp_entries
from kvcanary_cli.kernels.targets import Targets, count_launch, target_stamps

DEFAULT_BLOCK = 256  # tokens a program
COMBINED_BLOCKS = 64  # blocks before its own that a program combines at a time

_FACTOR = tl.constexpr(affine_ref.FACTOR)
_INVERSE = tl.constexpr(affine_ref.INVERSE)
_COMBINED = tl.constexpr(COMBINED_BLOCKS)


def affine_work_words(num_tokens: int, num_lanes: int, block: int = DEFAULT_BLOCK) -> int:
    """Words of working memory that one target needs for a launch."""
    return 2 * triton.cdiv(max(num_tokens, 1), block) + 2 * num_lanes


def launch_write_affine(
    *,
    targets: Targets,
    plan: WritePlan,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    expected_inputs: ExpectedInputs | None,
    chain_position_assert: bool,
    work: torch.Tensor | None = None,
    block: int = DEFAULT_BLOCK,
) -> None:
    """`launch_write_all` with affine chains; stamps differ in their prev_hash words only.

    Args:
        targets, plan, input_ids, positions, out_cache_loc, expected_inputs, chain_position_assert: as in
            `launch_write_all`.
        work: [num_targets, >= affine_work_words(tokens, the plan's lanes, block)] int64 working memory; None:
            allocated for this launch.
        block: tokens a program, a power of two.

    Contract: no lane writes a slot that another lane reads or writes. No host sync. ValueError before any launch
    if something does not fit.
    """
    for item in targets.items:
        check_write(
            canary_buf=item.canary_buf,
            seed_buf=None,
            plan=plan,
            input_ids=input_ids,
            positions=positions,
            out_cache_loc=out_cache_loc,
            log=item.log,
            expected_inputs=expected_inputs,
        )
    num_targets, num_tokens, num_lanes = len(targets.items), input_ids.shape[0], plan.write_req_capacity
    num_blocks = triton.cdiv(max(num_tokens, 1), block)
    if work is None:
        shape = (num_targets, affine_work_words(num_tokens, num_lanes, block))
        work = torch.empty(shape, dtype=torch.int64, device=input_ids.device)
    check_array("work", work, "int64", rank=2, length=num_targets, reference=("input_ids", input_ids))
    expected = (input_ids, positions) if expected_inputs is None else expected_inputs
    lanes = (targets.table, plan.write_offsets, plan.write_seed_slot_indices, plan.write_num_valid_reqs)
    shared = {
        "num_blocks": num_blocks,
        "num_steps": search_steps(num_lanes),
        "num_slots": targets.num_slots,
        "write_req_capacity": num_lanes,
        "num_tokens": num_tokens,
        "work_stride": work.shape[1],
        "STRIDE": targets.stride,
        "GRAIN": targets.grain,
        "BLOCK": block,
        "num_warps": min(8, max(1, block // 32)),
    }
    _reduce_affine_kernel[(num_blocks + triton.cdiv(num_lanes, block), num_targets)](
        *lanes, input_ids, positions, out_cache_loc, work, **shared
    )
    if num_tokens == 0:
        return
    _write_affine_kernel[(num_blocks, num_targets)](
        *lanes,
        input_ids,
        positions,
        out_cache_loc,
        *expected,
        work,
        **shared,
        HAS_EXPECTED=expected_inputs is not None,
        CHECK_CHAIN=bool(chain_position_assert),
        HAS_SOURCES=targets.has_sources,
        SMALL=targets.num_slots < 2**31,
    )


@triton.jit(
    do_not_specialize=[
        "num_blocks",
        "num_steps",
        "num_slots",
        "write_req_capacity",
        "num_tokens",
        "work_stride",
    ]
)
def _reduce_affine_kernel(
    targets_ptr,  # [num_targets, 9] int64, `targets.COL_*`
    offsets_ptr,  # [write_req_capacity + 1] int64
    seeds_ptr,  # [write_req_capacity] int64
    num_valid_ptr,  # [1] int32
    input_ids_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    slots_ptr,  # [num_tokens] int64
    out_work_ptr,  # [num_targets, work_stride] int64: a and b of blocks, hash and position of seeds
    num_blocks,  # scalar
    num_steps,  # scalar, `search_steps(write_req_capacity)`
    num_slots,  # scalar
    write_req_capacity,  # scalar
    num_tokens,  # scalar
    work_stride,  # scalar
    STRIDE: tl.constexpr,  # words from one stamp to the next
    GRAIN: tl.constexpr,  # bytes that stamps are aligned to
    BLOCK: tl.constexpr,
):
    program, target = tl.program_id(0), tl.program_id(1)
    out_work_ptr += target.to(tl.int64) * work_stride
    num_lanes = tl.minimum(tl.maximum(tl.load(num_valid_ptr), 0), write_req_capacity)
    if program >= num_blocks:
        # the last programs see to the lanes: seeds are reported, and kept as they are now
        if program == num_blocks:
            count_launch(targets_ptr, target)
        lanes = (program - num_blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
        seeds = tl.load(seeds_ptr + lanes, mask=lanes < num_lanes, other=-1)
        report_seeds(targets_ptr, target, seeds, num_slots)
        before, position = _seed_hashes(targets_ptr, target, seeds, num_slots, STRIDE, GRAIN)
        seeds_work_ptr = out_work_ptr + 2 * num_blocks + 2 * lanes
        tl.store(seeds_work_ptr, before.to(tl.int64, bitcast=True), mask=lanes < num_lanes)
        tl.store(seeds_work_ptr + 1, position, mask=lanes < num_lanes)
    else:
        entries = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
        stop = tl.minimum(tl.load(offsets_ptr + num_lanes), num_tokens)
        mask = (entries >= tl.load(offsets_ptr)) & (entries < stop)
        lanes = find_lanes(offsets_ptr, num_lanes, num_steps, entries, mask)
        is_first = mask & (tl.load(offsets_ptr + lanes, mask=mask, other=-1) == entries)
        seeds = tl.load(seeds_ptr + lanes, mask=is_first, other=-1)
        before, _ = _seed_hashes(targets_ptr, target, seeds, num_slots, STRIDE, GRAIN)
        factor, added, _, _, _, _ = _token_pairs(
            input_ids_ptr, positions_ptr, slots_ptr, entries, mask, is_first, before
        )
        factor, added = tl.associative_scan((factor, added), 0, _then)
        is_last = tl.arange(0, BLOCK) == BLOCK - 1
        pair_ptrs = out_work_ptr + 2 * program + tl.zeros([BLOCK], tl.int32)
        tl.store(pair_ptrs, factor.to(tl.int64, bitcast=True), mask=is_last)
        tl.store(pair_ptrs + 1, added.to(tl.int64, bitcast=True), mask=is_last)


@triton.jit(
    do_not_specialize=[
        "num_blocks",
        "num_steps",
        "num_slots",
        "write_req_capacity",
        "num_tokens",
        "work_stride",
    ]
)
def _write_affine_kernel(
    targets_ptr,  # [num_targets, 9] int64, `targets.COL_*`
    offsets_ptr,  # [write_req_capacity + 1] int64
    seeds_ptr,  # [write_req_capacity] int64
    num_valid_ptr,  # [1] int32
    input_ids_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    slots_ptr,  # [num_tokens] int64
    expected_tokens_ptr,  # [num_tokens] int64
    expected_positions_ptr,  # [num_tokens] int64
    work_ptr,  # [num_targets, work_stride] int64, from `_reduce_affine_kernel`
    num_blocks,  # scalar
    num_steps,  # scalar, `search_steps(write_req_capacity)`
    num_slots,  # scalar
    write_req_capacity,  # scalar
    num_tokens,  # scalar
    work_stride,  # scalar
    STRIDE: tl.constexpr,
    GRAIN: tl.constexpr,
    HAS_EXPECTED: tl.constexpr,
    CHECK_CHAIN: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    SMALL: tl.constexpr,  # slots fit 32 bits
    BLOCK: tl.constexpr,
):
    program, target = tl.program_id(0), tl.program_id(1)
    work_ptr += target.to(tl.int64) * work_stride
    seeds_work_ptr = work_ptr + 2 * num_blocks
    num_lanes = tl.minimum(tl.maximum(tl.load(num_valid_ptr), 0), write_req_capacity)
    entries = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    stop = tl.minimum(tl.load(offsets_ptr + num_lanes), num_tokens)
    mask = (entries >= tl.load(offsets_ptr)) & (entries < stop)
    lanes = find_lanes(offsets_ptr, num_lanes, num_steps, entries, mask)
    starts = tl.load(offsets_ptr + lanes, mask=mask, other=-1)
    is_first = mask & (starts == entries)
    seed_hashes = tl.load(seeds_work_ptr + 2 * lanes, mask=is_first, other=0).to(tl.uint64, bitcast=True)
    factor, added, adding, token, position, slots = _token_pairs(
        input_ids_ptr, positions_ptr, slots_ptr, entries, mask, is_first, seed_hashes
    )
    factor, added = tl.associative_scan((factor, added), 0, _then)
    after = factor * _hash_before_block(work_ptr, program) + added
    # one step back: what this token made of the hash before it, undone
    before = ((after - adding) * _INVERSE).to(tl.int64, bitcast=True)
    is_active = slots >= 0
    has_previous = slots != slots
    previous = position
    if CHECK_CHAIN:
        has_previous, previous = positions_before(
            slots_ptr,
            positions_ptr,
            seeds_work_ptr + 1,
            starts,
            tl.load(seeds_ptr + lanes, mask=is_active, other=-1),
            2 * lanes,
            entries,
            is_active,
            num_slots,
        )
    stamp_entries(
        targets_ptr,
        target,
        slots,
        token,
        position,
        before,
        has_previous,
        previous,
        expected_tokens_ptr + entries,
        expected_positions_ptr + entries,
        num_slots,
        STRIDE,
        GRAIN,
        HAS_EXPECTED,
        CHECK_CHAIN,
        HAS_SOURCES,
        SMALL,
    )


@triton.jit
def _then(factor, added, next_factor, next_added):
    """One step after another as one step."""
    return factor * next_factor, added * next_factor + next_added


@triton.jit
def _seed_hashes(targets_ptr, target, seeds, num_slots, STRIDE: tl.constexpr, GRAIN: tl.constexpr):
    """Hash after each seed [N] uint64, HEAD without one, and its position [N] int64."""
    has_seed = (seeds >= 0) & (seeds < num_slots)
    stamps_ptr = target_stamps(targets_ptr, target, GRAIN)
    token, position, prev_hash, _ = load_stamps(stamps_ptr, seeds, has_seed, STRIDE)
    after = tl.where(has_seed, affine_step(prev_hash, token, position), HEAD)
    return after.to(tl.uint64, bitcast=True), position


@triton.jit
def _token_pairs(
    input_ids_ptr,
    positions_ptr,
    slots_ptr,
    entries,  # [N] int64
    mask,  # [N], entries that belong to a lane
    is_first,  # [N], the first ones of their lanes
    seed_hashes,  # [N] uint64, hash before the first ones
):
    """Each token's step as a pair of uint64, what it adds by itself, then token, position and slot: six times [N]."""
    slots = tl.load(slots_ptr + entries, mask=mask, other=-1)
    token = tl.load(input_ids_ptr + entries, mask=mask, other=0)
    position = tl.load(positions_ptr + entries, mask=mask, other=0)
    zeros = (entries * 0).to(tl.uint64, bitcast=True)
    # skipped tokens leave the hash as it is
    adding = tl.where(slots >= 0, affine_input(token, position), zeros)
    factor = tl.where(slots >= 0, zeros + _FACTOR, zeros + 1)
    added = tl.where(is_first, seed_hashes * factor + adding, adding)
    return tl.where(is_first, zeros, factor), added, adding, token, position, slots


@triton.jit
def _hash_before_block(work_ptr, program):
    """Hash before the program's first token, uint64 scalar: all blocks before it, one after another."""
    value = tl.cast(0, tl.uint64)
    columns = tl.arange(0, _COMBINED)
    for first in range(0, program, _COMBINED):
        pair_ptrs = work_ptr + 2 * (first + columns)
        mask = first + columns < program
        factor = tl.load(pair_ptrs, mask=mask, other=1).to(tl.uint64, bitcast=True)
        added = tl.load(pair_ptrs + 1, mask=mask, other=0).to(tl.uint64, bitcast=True)
        factor, added = tl.associative_scan((factor, added), 0, _then)
        combined = tl.where(columns == _COMBINED - 1, factor * value + added, 0)
        value = tl.sum(combined, axis=0)
    return value
