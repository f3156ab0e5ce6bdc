"""Stamp the slots of a forward's tokens in several buffers at once, on the GPU.

Same stamps, rows and counters as one `launch_write` a target. A chain is serial and takes as long as it is, so all
of them are walked side by side, a thread for each lane and target; everything else is done by a second kernel, an
entry a thread. Where lanes are short (decode) one kernel does both. Twins: `write_cpu.py`, `write_ref.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels._checks import check_array, check_write
from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels.affine import launch_write_affine
from kvcanary_cli.kernels.chains import chain_step
from kvcanary_cli.kernels.hashing import HEAD, chain, load_stamps
from kvcanary_cli.kernels.lanes import find_lanes, search_steps
from kvcanary_cli.kernels.plans import WritePlan
from kvcanary_cli.kernels.stamping import (
    lane_bounds,
    load_token,
    positions_before,
    report_seeds,
    stamp_entries,
)
from kvcanary_cli.kernels.targets import Targets, count_launch, target_stamps

DEFAULT_BLOCK = 128  # entries a program, one a thread
DEFAULT_LANE_BLOCK = 32  # chains a program, one a thread of a warp
UNROLL = 16  # tokens whose loads are under way while those before are hashed
SHORT_LANE = 8  # tokens; up to here one launch beats two


def launch_write_all(
    *,
    targets: Targets,
    plan: WritePlan,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    expected_inputs: ExpectedInputs | None,
    chain_position_assert: bool,
    longest_lane: int | None = None,
    is_affine: bool = False,
    chains: torch.Tensor | None = None,
    block: int = DEFAULT_BLOCK,
    lane_block: int = DEFAULT_LANE_BLOCK,
    unroll: int = UNROLL,
) -> None:
    """Write the stamps of a forward's tokens to every target, each lane's chain going on from that target's seed.

    Args:
        targets: stamp buffers and their logs. Only the first four words of a row are written.
        plan, input_ids, positions, out_cache_loc, expected_inputs, chain_position_assert: as in `launch_write`.
        longest_lane: most tokens of any lane, if the caller knows. A wrong number costs time only.
        is_affine: whether the chains are affine. Long ones then go through `launch_write_affine`, whose time does
            not grow with them.
        chains: [num_targets, >= num_tokens + lanes the plan has room for] int64 working memory; None: allocated
            for this launch.
        block, lane_block: entries and chains a program, powers of two.
        unroll: tokens of a chain that are loaded at once.

    Contract: no lane writes a slot that another lane reads or writes (such forwards go lane by lane through
    `launch_write`). No host sync. ValueError before any launch if something does not fit.
    """
    is_short = longest_lane is not None and longest_lane <= SHORT_LANE
    if is_affine and not is_short:
        launch_write_affine(
            targets=targets,
            plan=plan,
            input_ids=input_ids,
            positions=positions,
            out_cache_loc=out_cache_loc,
            expected_inputs=expected_inputs,
            chain_position_assert=chain_position_assert,
        )
        return
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
    num_targets, num_tokens = len(targets.items), input_ids.shape[0]
    num_lanes = plan.write_req_capacity
    expected = (input_ids, positions) if expected_inputs is None else expected_inputs
    if chains is None:
        size = 1 if is_short else num_tokens + num_lanes
        chains = torch.empty((num_targets, size), dtype=torch.int64, device=input_ids.device)
    check_array("chains", chains, "int64", rank=2, length=num_targets, reference=("input_ids", input_ids))
    shared = {
        "num_slots": targets.num_slots,
        "write_req_capacity": num_lanes,
        "num_tokens": num_tokens,
        "STRIDE": targets.stride,
        "GRAIN": targets.grain,
    }
    checks = {
        "HAS_EXPECTED": expected_inputs is not None,
        "CHECK_CHAIN": bool(chain_position_assert),
        "HAS_SOURCES": targets.has_sources,
        "SMALL": targets.num_slots < 2**31,
    }
    tokens = (input_ids, positions, out_cache_loc)
    lanes = (targets.table, plan.write_offsets, plan.write_seed_slot_indices, plan.write_num_valid_reqs)
    if is_short:
        _write_short_kernel[(triton.cdiv(num_lanes, lane_block), num_targets)](
            *lanes,
            *tokens,
            *expected,
            **shared,
            **checks,
            AFFINE=bool(is_affine),
            BLOCK=lane_block,
            num_warps=_warps(lane_block),
        )
        return
    _walk_chains_kernel[(triton.cdiv(num_lanes, lane_block), num_targets)](
        *lanes,
        *tokens,
        chains,
        chain_stride=chains.shape[1],
        **shared,
        UNROLL=unroll,
        BLOCK=lane_block,
        num_warps=_warps(lane_block),
    )
    if num_tokens == 0:
        return
    _write_stamps_kernel[(triton.cdiv(num_tokens, block), num_targets)](
        *lanes,
        *tokens,
        *expected,
        chains,
        chain_stride=chains.shape[1],
        num_steps=search_steps(num_lanes),
        **shared,
        **checks,
        BLOCK=block,
        num_warps=_warps(block),
    )


def _warps(block: int) -> int:
    return min(8, max(1, block // 32))


@triton.jit(do_not_specialize=["chain_stride", "num_slots", "write_req_capacity", "num_tokens"])
def _walk_chains_kernel(
    targets_ptr,  # [num_targets, 9] int64, `targets.COL_*`
    offsets_ptr,  # [write_req_capacity + 1] int64
    seeds_ptr,  # [write_req_capacity] int64
    num_valid_ptr,  # [1] int32
    input_ids_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    slots_ptr,  # [num_tokens] int64
    out_chains_ptr,  # [num_targets, chain_stride] int64, hash before each token, position of each seed
    chain_stride,  # scalar
    num_slots,  # scalar
    write_req_capacity,  # scalar
    num_tokens,  # scalar
    STRIDE: tl.constexpr,  # words from one stamp to the next
    GRAIN: tl.constexpr,  # bytes that stamps are aligned to
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,  # chains walked side by side
):
    target = tl.program_id(1)
    if tl.program_id(0) == 0:
        count_launch(targets_ptr, target)
    lane_offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    starts, stops, seeds = lane_bounds(
        offsets_ptr, seeds_ptr, num_valid_ptr, lane_offs, write_req_capacity, num_tokens
    )
    running, seed_position, _ = _begin_chains(targets_ptr, target, seeds, num_slots, STRIDE, GRAIN, False)
    out_ptr = out_chains_ptr + target.to(tl.int64) * chain_stride
    # a lane may write its own seed, so the stamp is not there any more when positions are compared
    tl.store(out_ptr + num_tokens + lane_offs, seed_position, mask=lane_offs < write_req_capacity)
    ahead = ()
    for step in tl.static_range(UNROLL):
        loaded = load_token(input_ids_ptr, positions_ptr, slots_ptr, starts + step, stops)
        ahead = ahead + (loaded,)  # type: ignore[assignment]  # noqa: RUF005 - Triton has no unpacking
    for first in range(0, tl.max(stops - starts, axis=0).to(tl.int32), UNROLL):
        now = ahead
        ahead = ()
        # none of these depend on the chain: they arrive while it is computed
        for step in tl.static_range(UNROLL):
            entry_offs = starts + first + UNROLL + step
            loaded = load_token(input_ids_ptr, positions_ptr, slots_ptr, entry_offs, stops)
            ahead = ahead + (loaded,)  # type: ignore[assignment]  # noqa: RUF005
        for step in tl.static_range(UNROLL):
            token, position, slot = now[step]  # type: ignore[var-annotated]
            tl.store(out_ptr + starts + first + step, running, mask=starts + first + step < stops)
            # skipped tokens and lanes that have ended have slot -1
            running = tl.where(slot >= 0, chain(running, token, position), running)


@triton.jit(do_not_specialize=["chain_stride", "num_steps", "num_slots", "write_req_capacity", "num_tokens"])
def _write_stamps_kernel(
    targets_ptr,  # [num_targets, 9] int64, `targets.COL_*`
    offsets_ptr,  # [write_req_capacity + 1] int64
    seeds_ptr,  # [write_req_capacity] int64
    num_valid_ptr,  # [1] int32
    input_ids_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    slots_ptr,  # [num_tokens] int64
    expected_tokens_ptr,  # [num_tokens] int64
    expected_positions_ptr,  # [num_tokens] int64
    chains_ptr,  # [num_targets, chain_stride] int64, hash before each token, position of each seed
    chain_stride,  # scalar
    num_steps,  # scalar, `search_steps(write_req_capacity)`
    num_slots,  # scalar
    write_req_capacity,  # scalar
    num_tokens,  # scalar
    STRIDE: tl.constexpr,
    GRAIN: tl.constexpr,
    HAS_EXPECTED: tl.constexpr,
    CHECK_CHAIN: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    SMALL: tl.constexpr,  # slots fit 32 bits
    BLOCK: tl.constexpr,
):
    target = tl.program_id(1)
    num_lanes = tl.minimum(tl.maximum(tl.load(num_valid_ptr), 0), write_req_capacity)
    entry_offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    # tokens outside of all lanes belong to nobody
    stop = tl.minimum(tl.load(offsets_ptr + num_lanes), num_tokens)
    entry_mask = (entry_offs >= tl.load(offsets_ptr)) & (entry_offs < stop)
    slots = tl.load(slots_ptr + entry_offs, mask=entry_mask, other=-1)
    is_active = slots >= 0
    token = tl.load(input_ids_ptr + entry_offs, mask=is_active, other=0)
    position = tl.load(positions_ptr + entry_offs, mask=is_active, other=0)
    chains_ptr += target.to(tl.int64) * chain_stride
    running = tl.load(chains_ptr + entry_offs, mask=is_active, other=0)
    has_previous = slots != slots
    previous = position
    if CHECK_CHAIN:
        lanes = find_lanes(offsets_ptr, num_lanes, num_steps, entry_offs, is_active)
        has_previous, previous = positions_before(
            slots_ptr,
            positions_ptr,
            chains_ptr + num_tokens,
            tl.load(offsets_ptr + lanes, mask=is_active, other=0),
            tl.load(seeds_ptr + lanes, mask=is_active, other=-1),
            lanes,
            entry_offs,
            is_active,
            num_slots,
        )
    stamp_entries(
        targets_ptr,
        target,
        slots,
        token,
        position,
        running,
        has_previous,
        previous,
        expected_tokens_ptr + entry_offs,
        expected_positions_ptr + entry_offs,
        num_slots,
        STRIDE,
        GRAIN,
        HAS_EXPECTED,
        CHECK_CHAIN,
        HAS_SOURCES,
        SMALL,
    )


@triton.jit(do_not_specialize=["num_slots", "write_req_capacity", "num_tokens"])
def _write_short_kernel(
    targets_ptr,  # [num_targets, 9] int64, `targets.COL_*`
    offsets_ptr,  # [write_req_capacity + 1] int64
    seeds_ptr,  # [write_req_capacity] int64
    num_valid_ptr,  # [1] int32
    input_ids_ptr,  # [num_tokens] int64
    positions_ptr,  # [num_tokens] int64
    slots_ptr,  # [num_tokens] int64
    expected_tokens_ptr,  # [num_tokens] int64
    expected_positions_ptr,  # [num_tokens] int64
    num_slots,  # scalar
    write_req_capacity,  # scalar
    num_tokens,  # scalar
    STRIDE: tl.constexpr,
    GRAIN: tl.constexpr,
    HAS_EXPECTED: tl.constexpr,
    CHECK_CHAIN: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    SMALL: tl.constexpr,
    AFFINE: tl.constexpr,  # whether the chains are affine
    BLOCK: tl.constexpr,  # chains walked side by side
):
    target = tl.program_id(1)
    if tl.program_id(0) == 0:
        count_launch(targets_ptr, target)
    lane_offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    starts, stops, seeds = lane_bounds(
        offsets_ptr, seeds_ptr, num_valid_ptr, lane_offs, write_req_capacity, num_tokens
    )
    running, previous, has_seed = _begin_chains(targets_ptr, target, seeds, num_slots, STRIDE, GRAIN, AFFINE)
    for step in range(tl.max(stops - starts, axis=0).to(tl.int32)):
        entry_offs = starts + step
        token, position, slots = load_token(input_ids_ptr, positions_ptr, slots_ptr, entry_offs, stops)
        stamp_entries(
            targets_ptr,
            target,
            slots,
            token,
            position,
            running,
            has_seed & (slots >= 0),
            previous,
            expected_tokens_ptr + entry_offs,
            expected_positions_ptr + entry_offs,
            num_slots,
            STRIDE,
            GRAIN,
            HAS_EXPECTED,
            CHECK_CHAIN,
            HAS_SOURCES,
            SMALL,
        )
        previous = tl.where(slots >= 0, position, previous)
        running = tl.where(slots >= 0, chain_step(running, token, position, AFFINE), running)


@triton.jit
def _begin_chains(
    targets_ptr, target, seeds, num_slots, STRIDE: tl.constexpr, GRAIN: tl.constexpr, AFFINE: tl.constexpr
):
    """Hash before each lane's first token, its seed's position, and whether it has a seed, each [N]."""
    stamps_ptr = target_stamps(targets_ptr, target, GRAIN)
    has_seed = (seeds >= 0) & (seeds < num_slots)
    token, position, prev_hash, _ = load_stamps(stamps_ptr, seeds, has_seed, STRIDE)
    report_seeds(targets_ptr, target, seeds, num_slots)
    return tl.where(has_seed, chain_step(prev_hash, token, position, AFFINE), HEAD), position, has_seed
