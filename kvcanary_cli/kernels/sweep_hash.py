"""A byte hash for sweeps over whole pools, on the GPU: as fast as the memory is read.

The hash of a slot is `mix` of the sum over all its words of `mix(word ^ mix(source << 32 | index))`: words count by
their place, yet in any order, so all threads read side by side. Not the stamps' byte hash, which is serial within
a slot. Any number of sources. Twins: `sweep_hash_cpu.py`, `sweep_hash_ref.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels._checks import check_array
from kvcanary_cli.kernels._sources import SOURCE_COLUMNS, KvSource, check_sources
from kvcanary_cli.kernels.byte_hash import slot_words
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.kernels.hashing import mix
from kvcanary_cli.kernels.sources import source_table

# Measured on an H200 with 2 KiB a slot: wider tiles spend their time adding up across threads.
DEFAULT_SLOTS = 32  # slots a program
DEFAULT_WORDS = 32  # words of each slot that a program reads at once
DEFAULT_WARPS = 4

_COLUMNS = tl.constexpr(SOURCE_COLUMNS)


def launch_sweep_hash(
    *,
    sources: Sequence[KvSource],
    out_hashes: torch.Tensor,
    first_slot: int = 0,
    slots: int = DEFAULT_SLOTS,
    words: int = DEFAULT_WORDS,
    num_warps: int = DEFAULT_WARPS,
) -> None:
    """Hash the bytes of neighbouring slots.

    Args:
        sources: KV tensors, `read_bytes` of each are hashed; each has bytes for all the slots.
        out_hashes: [num_slots] int64, hash of slot `first_slot + i`. Every element is written; 0 without sources.
        first_slot: where the range begins.
        slots, words: slots a program, and words of a slot that it reads at once, powers of two.

    Contract: no host sync, and no allocation except at the first launch with new sources. ValueError before any
    launch if something does not fit.
    """
    check_array("out_hashes", out_hashes, "int64")
    num_slots = out_hashes.shape[0]
    check_sources(sources, HashMode.ALL, first_slot + num_slots, out_hashes)
    table = source_table(sources, HashMode.ALL, out_hashes.device)
    if num_slots == 0:
        return
    _sweep_hash_kernel[(triton.cdiv(num_slots, slots),)](
        table,
        out_hashes,
        num_sources=table.shape[0],
        first_slot=int(first_slot),
        num_slots=num_slots,
        SMALL=first_slot + num_slots < 2**31,
        EVEN=all(source.read_bytes % (8 * words) == 0 for source in sources),
        SLOTS=slots,
        WORDS=words,
        num_warps=num_warps,
    )


@triton.jit(do_not_specialize=["num_sources", "first_slot", "num_slots"])
def _sweep_hash_kernel(
    table_ptr,  # [num_sources, 5] int64, `sources.source_table`
    out_hashes_ptr,  # [num_slots] int64
    num_sources,  # scalar
    first_slot,  # scalar
    num_slots,  # scalar
    SMALL: tl.constexpr,  # slots fit 32 bits
    EVEN: tl.constexpr,  # every source's words are a multiple of WORDS
    SLOTS: tl.constexpr,
    WORDS: tl.constexpr,
):
    slot_offs = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)  # [SLOTS]
    mask = slot_offs < num_slots
    slots = tl.where(mask, first_slot + slot_offs, 0)
    columns = tl.arange(0, WORDS)
    total = tl.zeros([SLOTS, WORDS], tl.uint64)
    for number in range(num_sources):
        words_ptr, word_offs, num_words = slot_words(table_ptr + number * _COLUMNS, slots, SMALL)
        for first in range(0, num_words, WORDS):
            keys = mix((tl.cast(number, tl.uint64) << 32) | (first + columns).to(tl.uint64))  # [WORDS]
            is_word = mask[:, None]
            if not EVEN:
                is_word = is_word & (first + columns < num_words)[None, :]
            places = tl.multiple_of(word_offs + first, 2)[:, None] + columns[None, :]  # [SLOTS, WORDS]
            read = tl.load(words_ptr + places, mask=is_word, other=0).to(tl.uint64, bitcast=True)
            total += tl.where(is_word, mix(read ^ keys[None, :]), 0)
    hashes = mix(tl.sum(total, axis=1))
    hashes = tl.where(num_sources > 0, hashes, 0)
    tl.store(out_hashes_ptr + slot_offs, hashes.to(tl.int64, bitcast=True), mask=mask)
