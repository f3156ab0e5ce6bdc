"""The order-free byte hash of sweeps, compiled by Numba. Twins: `sweep_hash.py`, `sweep_hash_ref.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange

from kvcanary_cli.kernels._checks import check_array
from kvcanary_cli.kernels._sources import (
    SOURCE_ADDRESS,
    SOURCE_PAGE_SIZE,
    SOURCE_ROW_STRIDE,
    SOURCE_TOKEN_BYTES,
    SOURCE_WORDS,
    KvSource,
    check_sources,
)
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.kernels.hashing_cpu import load_word, mix
from kvcanary_cli.kernels.memory_cpu import NUM_CHUNKS
from kvcanary_cli.kernels.sources_cpu import source_table


def sweep_hash_cpu(*, sources: Sequence[KvSource], out_hashes: np.ndarray, first_slot: int = 0) -> None:
    """`launch_sweep_hash` on NumPy arrays."""
    check_array("out_hashes", out_hashes, "int64")
    check_sources(sources, HashMode.ALL, first_slot + len(out_hashes), out_hashes)
    if not sources:
        out_hashes[:] = 0
        return
    table = source_table(sources, HashMode.ALL)
    longest = int(table[:, SOURCE_WORDS].max())
    _hash_slots(table, _word_keys(len(table), longest), int(first_slot), out_hashes)


def _word_keys(num_sources: int, num_words: int) -> np.ndarray:
    """[sources, words] uint64: what is mixed into each word of each source."""
    keys = np.empty((num_sources, num_words), np.uint64)
    _fill_keys(keys)
    return keys


@njit(cache=True)
def _fill_keys(keys):
    for number in range(keys.shape[0]):
        for word in range(keys.shape[1]):
            keys[number, word] = mix(np.uint64(number << 32 | word))


@njit(cache=True, parallel=True, error_model="numpy")
def _hash_slots(table, keys, first_slot, out_hashes):
    num_slots = out_hashes.shape[0]
    for chunk in prange(NUM_CHUNKS):
        for index in range(num_slots * chunk // NUM_CHUNKS, num_slots * (chunk + 1) // NUM_CHUNKS):
            total = np.uint64(0)
            slot = np.uint64(first_slot + index)
            for number in range(table.shape[0]):
                page_size = np.uint64(table[number, SOURCE_PAGE_SIZE])
                page = slot // page_size
                address = np.uint64(table[number, SOURCE_ADDRESS])
                address += page * np.uint64(table[number, SOURCE_ROW_STRIDE])
                address += (slot - page * page_size) * np.uint64(table[number, SOURCE_TOKEN_BYTES])
                for word in range(table[number, SOURCE_WORDS]):
                    total += mix(load_word(address + np.uint64(8 * word)) ^ keys[number, word])
            out_hashes[index] = np.int64(mix(total))
