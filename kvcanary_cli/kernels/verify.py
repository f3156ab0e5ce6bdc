"""Compare stamps with a verify plan, on the GPU.

Stamp layout (int64 words): [token, position, prev_hash, kv_hash]. Twins: `verify_cpu.py`, `verify_ref.py`. All
three report the same rows; their order is free here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels import consts
from kvcanary_cli.kernels._checks import check_verify
from kvcanary_cli.kernels._sources import check_sources
from kvcanary_cli.kernels.chains import chain_step
from kvcanary_cli.kernels.hashing import HEAD, hash_slots, load_stamps
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.plans import VerifyPlan
from kvcanary_cli.kernels.ring import append_rows
from kvcanary_cli.kernels.sources import KvSource, source_table

# One entry a thread: then all tensors of the kernel have one layout and nothing is shuffled between threads.
DEFAULT_BLOCK = 128

BIT_CHAIN_HASH = tl.constexpr(consts.BIT_CHAIN_HASH)
BIT_POSITION = tl.constexpr(consts.BIT_POSITION)
BIT_KV_HASH = tl.constexpr(consts.BIT_KV_HASH)
BIT_VERIFY_TOKEN = tl.constexpr(consts.BIT_VERIFY_TOKEN)
BIT_OUT_OF_RANGE = tl.constexpr(consts.BIT_OUT_OF_RANGE)


def launch_verify(
    *,
    canary_buf: torch.Tensor,
    plan: VerifyPlan,
    sources: Sequence[KvSource],
    hash_mode: int,
    launch_tag: int,
    log: ViolationLog,
    check_expected_token: bool,
    is_affine: bool = False,
    block: int = DEFAULT_BLOCK,
) -> None:
    """Check the stamps of a plan's entries and report those that differ.

    Args:
        canary_buf: [num_slots, >= 4] int64, rows contiguous, possibly further apart. Read only.
        plan: entries to check; slot 0 is skipped, a slot outside the buffer is a violation.
        sources: KV bytes that `hash_mode` covers, any number, each with bytes for every slot.
        hash_mode: `consts.HashMode`. NONE expects a byte hash of 0.
        launch_tag: `consts.LaunchTag`, copied into the rows.
        log: gets one row an entry that differs, all its reasons in one; the counters always advance.
        check_expected_token: whether the plan's tokens are compared, -1 apart.
        is_affine: whether the stamps hold affine chains (`affine.py`).
        block: entries a program, a power of two.

    Contract: writes the log only. No host sync, and no allocation except at the first launch with new sources.
    ValueError before any launch if something does not fit.
    """
    stride = check_verify(canary_buf=canary_buf, plan=plan, log=log)
    num_slots = canary_buf.shape[0]
    check_sources(sources, hash_mode, num_slots, canary_buf)
    table = source_table(sources, hash_mode, canary_buf.device)
    _verify_kernel[(triton.cdiv(plan.verify_capacity, block),)](
        canary_buf,
        plan.verify_slot_indices,
        plan.verify_expected_tokens,
        plan.verify_expected_positions,
        plan.verify_prev_slot_indices,
        plan.verify_num_valid,
        plan.enable,
        table,
        log.ring,
        log.write_index,
        log.slot_run_counter,
        log.kernel_run_counter,
        num_slots=num_slots,
        verify_capacity=plan.verify_capacity,
        num_sources=table.shape[0],
        ring_capacity=log.ring_capacity,
        launch_tag=int(launch_tag),
        STRIDE=stride,
        CHECK_TOKEN=bool(check_expected_token),
        AFFINE=bool(is_affine),
        SMALL=num_slots < 2**31,
        BLOCK=block,
        num_warps=min(8, max(1, block // 32)),
    )


@triton.jit(
    do_not_specialize=["num_slots", "verify_capacity", "num_sources", "ring_capacity", "launch_tag"],
)
def _verify_kernel(
    stamps_ptr,  # [num_slots, STRIDE] int64
    slots_ptr,  # [verify_capacity] int64
    tokens_ptr,  # [verify_capacity] int64, -1: unknown
    positions_ptr,  # [verify_capacity] int64
    prevs_ptr,  # [verify_capacity] int64, negative: head of a chain
    num_valid_ptr,  # [1] int32
    enable_ptr,  # [1] int32
    table_ptr,  # [num_sources, 5] int64, addresses of the byte sources
    out_ring_ptr,  # [ring_capacity, 8] int64
    out_write_index_ptr,  # [1] int32
    out_slot_run_ptr,  # [1] int64
    out_kernel_run_ptr,  # [1] int64
    num_slots,  # scalar
    verify_capacity,  # scalar
    num_sources,  # scalar
    ring_capacity,  # scalar
    launch_tag,  # scalar
    STRIDE: tl.constexpr,  # words from one stamp to the next
    CHECK_TOKEN: tl.constexpr,
    AFFINE: tl.constexpr,  # whether the stamps hold affine chains
    SMALL: tl.constexpr,  # slots fit 32 bits
    BLOCK: tl.constexpr,
):
    num_entries = tl.minimum(tl.load(num_valid_ptr), verify_capacity)
    num_entries = tl.where(tl.load(enable_ptr) != 0, tl.maximum(num_entries, 0), 0)
    if tl.program_id(0) == 0:
        tl.atomic_add(out_slot_run_ptr, num_entries.to(tl.int64), sem="relaxed")
        tl.atomic_add(out_kernel_run_ptr, 1, sem="relaxed")
    first = tl.program_id(0).to(tl.int64) * BLOCK
    if first < num_entries:
        entry_offs = first + tl.arange(0, BLOCK)  # [BLOCK]
        entry_mask = entry_offs < num_entries
        slots = tl.load(slots_ptr + entry_offs, mask=entry_mask, other=0)
        prevs = tl.load(prevs_ptr + entry_offs, mask=entry_mask, other=0)
        positions = tl.load(positions_ptr + entry_offs, mask=entry_mask, other=0)
        tokens = slots * 0 - 1
        if CHECK_TOKEN:
            tokens = tl.load(tokens_ptr + entry_offs, mask=entry_mask, other=-1)
        is_inside = (slots > 0) & (slots < num_slots)
        is_outside = (slots < 0) | (slots >= num_slots)
        token, position, prev_hash, kv_hash = load_stamps(stamps_ptr, slots, is_inside, STRIDE)
        expected_prev, bits = check_chains(stamps_ptr, prevs, prev_hash, is_inside, num_slots, STRIDE, AFFINE)
        expected_kv = hash_slots(table_ptr, num_sources, tl.where(is_inside, slots, 0), is_inside, SMALL)
        bits |= tl.where(position != positions, BIT_POSITION, 0)
        bits |= tl.where(kv_hash != expected_kv, BIT_KV_HASH, 0)
        bits |= tl.where((tokens != -1) & (token != tokens), BIT_VERIFY_TOKEN, 0)
        # outside of the buffer nothing else is known, in the padding slot nothing is checked
        bits = tl.where(is_inside, bits, tl.where(is_outside, BIT_OUT_OF_RANGE, 0))
        aux = tl.where(is_inside, expected_prev, 0)
        append_rows(
            out_ring_ptr,
            out_write_index_ptr,
            ring_capacity,
            bits != 0,
            launch_tag,
            slots,
            position,
            token,
            tokens,
            prev_hash,
            aux,
            bits,
        )


@triton.jit
def check_chains(
    stamps_ptr,  # [num_slots, STRIDE] int64
    prevs,  # [N] int64, predecessors
    prev_hashes,  # [N] int64, what the entries' stamps hold
    mask,  # [N]
    num_slots,  # scalar
    STRIDE: tl.constexpr,
    AFFINE: tl.constexpr,
):
    """The prev_hash that each predecessor's stamp asks for, and the bits of the comparison, both [N].

    The stored hash where the predecessor is slot 0, the predecessor itself where it is outside of the buffer.
    """
    is_stamp = (prevs > 0) & (prevs < num_slots)
    is_outside = prevs >= num_slots
    token, position, prev_hash, _ = load_stamps(stamps_ptr, prevs, mask & is_stamp, STRIDE)
    expected = tl.where(is_stamp, chain_step(prev_hash, token, position, AFFINE), HEAD)
    expected = tl.where(prevs == 0, prev_hashes, expected)
    bits = tl.where(prev_hashes != expected, BIT_CHAIN_HASH, 0)
    bits = tl.where(is_outside, BIT_OUT_OF_RANGE, bits)
    return tl.where(is_outside, prevs, expected), bits
