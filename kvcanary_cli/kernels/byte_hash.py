"""The compatible byte hash, read in tiles: the same value as `hashing.hash_slots`, at the speed of the memory.

The hash of a slot is serial, so a slot belongs to one thread; 128 bytes of each slot are read by eight neighbouring
threads at once and then handed to the slot's own thread. Reading a slot by one thread alone touches 32 lines an
instruction, which the first-level cache serves one after another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.kernels._sources import (
    SOURCE_ADDRESS,
    SOURCE_COLUMNS,
    SOURCE_PAGE_SIZE,
    SOURCE_ROW_STRIDE,
    SOURCE_TOKEN_BYTES,
    SOURCE_WORDS,
)
from kvcanary_cli.kernels.hashing import load_pairs, mix

TILE_WORDS = 16  # 128 bytes: a line of the cache

_COLUMNS = tl.constexpr(SOURCE_COLUMNS)
_ADDRESS = tl.constexpr(SOURCE_ADDRESS)
_ROW_STRIDE = tl.constexpr(SOURCE_ROW_STRIDE)
_PAGE_SIZE = tl.constexpr(SOURCE_PAGE_SIZE)
_TOKEN_BYTES = tl.constexpr(SOURCE_TOKEN_BYTES)
_WORDS = tl.constexpr(SOURCE_WORDS)
_TILE = tl.constexpr(TILE_WORDS)


@triton.jit
def slot_words(row_ptr, slots, SMALL: tl.constexpr):
    """Where slots [N] lie in the source of one table row: pointer, word offsets [N], words a slot."""
    page_size = tl.load(row_ptr + _PAGE_SIZE)
    if SMALL:
        pages = (slots.to(tl.int32) // page_size.to(tl.int32)).to(tl.int64)
    else:
        pages = slots // page_size
    # address, strides and lengths are multiples of 16 bytes: two words are read at once
    words_ptr = tl.multiple_of(tl.load(row_ptr + _ADDRESS).to(tl.pointer_type(tl.int64)), 16)
    word_offs = pages * (tl.load(row_ptr + _ROW_STRIDE) // 8)
    word_offs += (slots - pages * page_size) * (tl.load(row_ptr + _TOKEN_BYTES) // 8)
    return words_ptr, word_offs, tl.multiple_of(tl.load(row_ptr + _WORDS).to(tl.int32), 2)


@triton.jit
def hash_tiles(
    table_ptr,  # [num_sources, 5] int64, `sources.source_table`
    num_sources,  # scalar
    slots,  # [N] int64, in every source where the mask is set, 0 elsewhere
    mask,  # [N]
    SMALL: tl.constexpr,  # slots fit 32 bits, which divide several times faster
):
    """Hash of each slot's bytes in all sources, [N] int64; 0 without sources."""
    value = (slots * 0).to(tl.uint64, bitcast=True)
    columns = tl.arange(0, _TILE)[None, :]
    for number in range(num_sources):
        words_ptr, word_offs, num_words = slot_words(table_ptr + number * _COLUMNS, slots, SMALL)
        source_hash = (slots * 0).to(tl.uint64, bitcast=True)
        num_tiled = num_words // _TILE * _TILE
        for word in range(0, num_tiled, _TILE):
            tile_offs = tl.multiple_of(word_offs + word, 2)[:, None] + columns  # [N, 16]
            tile = tl.load(words_ptr + tile_offs, mask=mask[:, None], other=0)
            source_hash = _mix_tile(source_hash, tile.to(tl.uint64, bitcast=True))
        for word in range(num_tiled, num_words, 2):
            even, odd = load_pairs(words_ptr, tl.multiple_of(word_offs + word, 2), mask)
            source_hash = mix(source_hash ^ even.to(tl.uint64, bitcast=True))
            source_hash = mix(source_hash ^ odd.to(tl.uint64, bitcast=True))
        value = mix(value ^ source_hash)
    return value.to(tl.int64, bitcast=True)


@triton.jit
def _mix_tile(value, tile):
    """Mix the 16 words of each row of `tile` [N, 16] into `value` [N], in order."""
    # halving by the lowest bit of the index four times leaves words 0, 8, 4, 12, ... : picked by name in order
    even, odd = _halve(tile)
    w0, w4, w8, w12, w2, w6, w10, w14 = _eight(even)
    w1, w5, w9, w13, w3, w7, w11, w15 = _eight(odd)
    value = mix(mix(mix(mix(value ^ w0) ^ w1) ^ w2) ^ w3)
    value = mix(mix(mix(mix(value ^ w4) ^ w5) ^ w6) ^ w7)
    value = mix(mix(mix(mix(value ^ w8) ^ w9) ^ w10) ^ w11)
    return mix(mix(mix(mix(value ^ w12) ^ w13) ^ w14) ^ w15)


@triton.jit
def _halve(words):
    """Even and odd columns of [N, M], each [N, M / 2]."""
    return tl.split(tl.reshape(words, [words.shape[0], words.shape[1] // 2, 2]))


@triton.jit
def _eight(words):
    """Columns 0, 2, 4, 6, 1, 3, 5, 7 of [N, 8]."""
    even, odd = _halve(words)
    c0, c2, c4, c6 = _four(even)
    c1, c3, c5, c7 = _four(odd)
    return c0, c2, c4, c6, c1, c3, c5, c7


@triton.jit
def _four(words):
    """Columns of [N, 4] in order, each [N]."""
    even, odd = _halve(words)
    c0, c2 = tl.split(even)
    c1, c3 = tl.split(odd)
    return c0, c1, c2, c3
