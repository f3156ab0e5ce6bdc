"""The bytes that the modelled forward leaves in KV memory, for Triton. Twin: `bytes_cpu.py`.

Word j (8 bytes, little-endian) of source number s is `mix(c ^ mix(s << 32 ^ j) ^ salt)`, where c is the chain
after the slot's token (trace format, section Bytes). The inner `mix` depends on neither slot nor forward:
callers keep it in `keys`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels.chains import chain_step
from kvcanary_cli.kernels.consts import STAMP_WORDS
from kvcanary_cli.kernels.hashing import load_stamps, mix

DEFAULT_TILE = 1024  # words a program: eight 8-byte stores for each of 128 threads
MAX_WORDS = 128  # of one slot a program: 1 KiB of neighbouring memory, more of it gains nothing


def launch_fill_slots(
    *,
    out_words: torch.Tensor,
    slots: torch.Tensor,
    contexts: torch.Tensor,
    keys: torch.Tensor,
    tile: int = DEFAULT_TILE,
) -> None:
    """Write the bytes of slots in one source.

    Args:
        out_words: [num_slots, num_words] int64, contiguous. Other slots are not touched.
        slots: [n] int64. Those outside [0, num_slots) are skipped; a repeated one must have equal contexts.
        contexts: [n] int64, the bits of the chain after each slot's token, `byte_salt` mixed in.
        keys: [num_words] int64 from `word_keys`.
        tile: words a program, a power of two.

    Contract: no host sync, no allocation.
    """
    num_writes, num_words = slots.shape[0], keys.shape[0]
    if num_writes == 0:
        return
    block_words = min(triton.next_power_of_2(num_words), MAX_WORDS, tile)
    block_slots = tile // block_words
    grid = (triton.cdiv(num_writes, block_slots), triton.cdiv(num_words, block_words))
    _fill_slots_kernel[grid](
        slots,
        contexts,
        keys,
        out_words,
        num_writes,
        out_words.shape[0],
        num_words,
        BLOCK_SLOTS=block_slots,
        BLOCK_WORDS=block_words,
    )


def launch_stamp_contexts(
    *,
    stamps: torch.Tensor,
    slots: torch.Tensor,
    out_contexts: torch.Tensor,
    is_affine: bool = False,
    block: int = DEFAULT_TILE,
) -> None:
    """Set `out_contexts[i]` to the chain value after the stamp of `slots[i]`.

    Args:
        stamps: [num_slots, 4] int64, contiguous. Read only.
        slots: [n] int64. Those outside [0, num_slots) get 0.
        out_contexts: [n] int64. Every element is written.
        is_affine: whether the stamps hold affine chains.
        block: slots a program, a power of two.

    Contract: no host sync, no allocation.
    """
    num_reads = slots.shape[0]
    if num_reads == 0:
        return
    _stamp_contexts_kernel[(triton.cdiv(num_reads, block),)](
        stamps,
        slots,
        out_contexts,
        num_reads,
        stamps.shape[0],
        STRIDE=STAMP_WORDS,
        AFFINE=bool(is_affine),
        BLOCK=block,
    )


@triton.jit(do_not_specialize=["num_writes", "num_slots", "num_words"])
def _fill_slots_kernel(
    slots_ptr,  # [num_writes] int64
    contexts_ptr,  # [num_writes] int64
    keys_ptr,  # [num_words] int64
    out_words_ptr,  # [num_slots, num_words] int64
    num_writes,  # scalar
    num_slots,  # scalar
    num_words,  # scalar
    BLOCK_SLOTS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    # int64 before any multiply: num_slots * num_words can pass 2**31
    write_offs = tl.program_id(0).to(tl.int64) * BLOCK_SLOTS + tl.arange(0, BLOCK_SLOTS)  # [BLOCK_SLOTS]
    word_offs = tl.program_id(1).to(tl.int64) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)  # [BLOCK_WORDS]
    write_mask = write_offs < num_writes
    word_mask = word_offs < num_words
    slots = tl.load(slots_ptr + write_offs, mask=write_mask, other=-1)
    contexts = tl.load(contexts_ptr + write_offs, mask=write_mask, other=0)
    keys = tl.load(keys_ptr + word_offs, mask=word_mask, other=0)
    words = mix((contexts[:, None] ^ keys[None, :]).to(tl.uint64, bitcast=True))  # [BLOCK_SLOTS, BLOCK_WORDS]
    inside = write_mask & (slots >= 0) & (slots < num_slots)
    tl.store(
        out_words_ptr + slots[:, None] * num_words + word_offs[None, :],
        words.to(tl.int64, bitcast=True),
        mask=inside[:, None] & word_mask[None, :],
    )


@triton.jit(do_not_specialize=["num_reads", "num_slots"])
def _stamp_contexts_kernel(
    stamps_ptr,  # [num_slots, STRIDE] int64
    slots_ptr,  # [num_reads] int64
    out_contexts_ptr,  # [num_reads] int64
    num_reads,  # scalar
    num_slots,  # scalar
    STRIDE: tl.constexpr,  # words from one stamp to the next
    AFFINE: tl.constexpr,  # whether the stamps hold affine chains
    BLOCK: tl.constexpr,
):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < num_reads
    slots = tl.load(slots_ptr + offs, mask=mask, other=-1)
    inside = (slots >= 0) & (slots < num_slots)
    token, position, prev_hash, _ = load_stamps(stamps_ptr, slots, inside, STRIDE)
    # outside, all three are 0, and so is their chain, of either kind: mix(0) is 0
    tl.store(out_contexts_ptr + offs, chain_step(prev_hash, token, position, AFFINE), mask=mask)
