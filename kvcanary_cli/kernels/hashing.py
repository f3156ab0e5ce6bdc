"""The canary's hashes inside Triton kernels. Twins: `hashing_cpu.py`, `hashing_ref.py`.

Everything here works on uint64; stamps hold the same bits as int64 and are cast by bit pattern.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.kernels import hashing_ref
from kvcanary_cli.kernels._sources import (
    SOURCE_ADDRESS,
    SOURCE_COLUMNS,
    SOURCE_PAGE_SIZE,
    SOURCE_ROW_STRIDE,
    SOURCE_TOKEN_BYTES,
    SOURCE_WORDS,
)

HEAD = tl.constexpr(hashing_ref.signed(hashing_ref.HEAD))  # as a stamp holds it

_FACTOR_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_FACTOR_2 = tl.constexpr(0x94D049BB133111EB)

_COLUMNS = tl.constexpr(SOURCE_COLUMNS)
_ADDRESS = tl.constexpr(SOURCE_ADDRESS)
_ROW_STRIDE = tl.constexpr(SOURCE_ROW_STRIDE)
_PAGE_SIZE = tl.constexpr(SOURCE_PAGE_SIZE)
_TOKEN_BYTES = tl.constexpr(SOURCE_TOKEN_BYTES)
_WORDS = tl.constexpr(SOURCE_WORDS)


@triton.jit
def mix(value):
    """The splitmix64 finaliser on uint64, without the increment."""
    value = (value ^ (value >> 30)) * _FACTOR_1
    value = (value ^ (value >> 27)) * _FACTOR_2
    return value ^ (value >> 31)


@triton.jit
def chain(prev_hash, token, position):
    """Hash of the chain that ends with this token at this position: int64 in and out, as stamps hold them."""
    value = prev_hash.to(tl.uint64, bitcast=True)
    # three times `mix`, written out: a call costs the interpreter more than all of its arithmetic
    for step in tl.static_range(3):
        value = (value ^ (value >> 30)) * _FACTOR_1
        value = (value ^ (value >> 27)) * _FACTOR_2
        value = value ^ (value >> 31)
        if step == 0:
            value = value ^ token.to(tl.uint64, bitcast=True)
        if step == 1:
            value = value ^ position.to(tl.uint64, bitcast=True)
    return value.to(tl.int64, bitcast=True)


@triton.jit
def load_pairs(words_ptr, word_offs, mask):
    """Two neighbouring int64 words for each of `word_offs` [N], as two tensors [N]."""
    pair_offs = word_offs[:, None] + tl.arange(0, 2)[None, :]  # [N, 2]
    return tl.split(tl.load(words_ptr + pair_offs, mask=mask[:, None], other=0))


@triton.jit
def load_stamps(stamps_ptr, slots, mask, STRIDE: tl.constexpr):
    """Token, position, prev_hash and kv_hash of slots [N], each [N] int64; zeros where masked.

    Slots are int64 and in range where the mask is set. A stamp is read as two times 16 bytes.
    """
    token, position = load_pairs(stamps_ptr, slots * STRIDE, mask)
    prev_hash, kv_hash = load_pairs(stamps_ptr, slots * STRIDE + 2, mask)
    return token, position, prev_hash, kv_hash


@triton.jit
def hash_slots(
    table_ptr,  # [num_sources, 5] int64, `sources.source_table`
    num_sources,  # scalar
    slots,  # [N] int64, in every source where the mask is set, 0 elsewhere
    mask,  # [N]
    SMALL: tl.constexpr,  # slots fit 32 bits, which divide several times faster
):
    """Hash of each slot's bytes in all sources, [N] int64; 0 without sources."""
    value = (slots * 0).to(tl.uint64, bitcast=True)
    for number in range(num_sources):
        row_ptr = table_ptr + number * _COLUMNS
        address = tl.load(row_ptr + _ADDRESS)
        page_size = tl.load(row_ptr + _PAGE_SIZE)
        if SMALL:
            pages = (slots.to(tl.int32) // page_size.to(tl.int32)).to(tl.int64)
        else:
            pages = slots // page_size
        # address, strides and lengths are multiples of 16 bytes: two words are read at once
        words_ptr = tl.multiple_of(address.to(tl.pointer_type(tl.int64)), 16)
        word_offs = pages * (tl.load(row_ptr + _ROW_STRIDE) // 8)
        word_offs += (slots - pages * page_size) * (tl.load(row_ptr + _TOKEN_BYTES) // 8)
        source_hash = (slots * 0).to(tl.uint64, bitcast=True)
        for word in range(0, tl.load(row_ptr + _WORDS).to(tl.int32), 2):
            even, odd = load_pairs(words_ptr, tl.multiple_of(word_offs + word, 2), mask)
            source_hash = mix(source_hash ^ even.to(tl.uint64, bitcast=True))
            source_hash = mix(source_hash ^ odd.to(tl.uint64, bitcast=True))
        value = mix(value ^ source_hash)
    return value.to(tl.int64, bitcast=True)
