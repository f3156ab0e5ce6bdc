"""The bytes that the modelled forward leaves in KV memory, for Numba.

Word j (8 bytes, little-endian) of source number s is `mix(c ^ mix(s << 32 ^ j) ^ salt)`, where c is the chain after
the slot's token (trace format, section Bytes). Twin: `bytes_gpu.py` (Triton).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kvcanary_cli.kernels.chains_cpu import chain_step
from kvcanary_cli.kernels.hashing_cpu import hash_slot, mix


@njit(cache=True)
def word_keys(source, num_words):
    """[num_words] uint64 `mix(source << 32 ^ j)`."""
    keys = np.empty(num_words, np.uint64)
    for j in range(num_words):
        keys[j] = mix((np.uint64(source) << np.uint64(32)) ^ np.uint64(j))
    return keys


@njit(cache=True)
def fill_slots(words, slots, contexts, keys, salt):
    """Write the bytes of slots.

    Args:
        words: [num_slots, bytes_per_slot // 8] uint64, one source's memory.
        slots: [n] int64, in order; those outside the memory are skipped.
        contexts: [n] uint64.
        keys: [bytes_per_slot // 8] uint64 from `word_keys`.
        salt: uint64.
    """
    for i in range(slots.size):
        slot = slots[i]
        if 0 <= slot < words.shape[0]:
            base = contexts[i] ^ salt
            for j in range(keys.size):
                words[slot, j] = mix(base ^ keys[j])


@njit(cache=True)
def stamp_contexts(stamps, slots, is_affine):
    """[n] uint64 chain value after the stamp of each slot; 0 for slots outside the buffer."""
    contexts = np.zeros(slots.size, np.uint64)
    for i in range(slots.size):
        slot = slots[i]
        if 0 <= slot < stamps.shape[0]:
            token, position, prev_hash = stamps[slot, 0], stamps[slot, 1], stamps[slot, 2]
            contexts[i] = chain_step(np.uint64(prev_hash), np.uint64(token), np.uint64(position), is_affine)
    return contexts


@njit(cache=True)
def has_conflict(slots, seeds, offsets, mark, serial):
    """Whether two entries write one slot, or a lane writes the slot that another lane's chain goes on from.

    Args:
        slots: [n] int64, slots of the lanes' entries.
        seeds: [num_lanes] int64.
        offsets: [num_lanes + 1] int64, first entry of each lane.
        mark: [num_slots] int64 scratch, smaller than `serial` everywhere.
        serial: a number that grows with each call by more than the number of lanes.
    """
    for lane in range(seeds.size):
        for i in range(offsets[lane], offsets[lane + 1]):
            slot = slots[i]
            if 0 <= slot < mark.size:
                if mark[slot] >= serial:
                    return True
                mark[slot] = serial + lane
    for lane in range(seeds.size):
        seed = seeds[lane]
        if 0 <= seed < mark.size and mark[seed] >= serial and mark[seed] != serial + lane:
            return True
    return False


@njit(cache=True)
def hash_slots(table, count):
    """[count] uint64 byte hash of slots 0 … count-1 of a source table."""
    out = np.empty(count, np.uint64)
    for slot in range(count):
        out[slot] = hash_slot(table, slot)
    return out
