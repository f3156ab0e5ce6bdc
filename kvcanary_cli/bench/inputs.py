"""Inputs of one benchmark case as NumPy arrays: a page table, right stamps of all prefixes, and what is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcanary_cli.bench.cases import Case
from kvcanary_cli.kernels.affine_ref import FACTOR
from kvcanary_cli.kernels.consts import STAMP_WORDS
from kvcanary_cli.kernels.hashing_ref import HEAD

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]
ByteArray = npt.NDArray[np.uint8]

VOCABULARY = 128_256
_SEED = 20_261


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One forward and the memory that it meets. Lane r has page table row r + 1.

    Attributes:
        table: [lanes + 1, prefix + extend] int32.
        rows, prefix_lens, extend_lens: [lanes] int64.
        stamps: [num_slots, 4] int64 before the forward; `written`: after it.
        write_offsets: [lanes + 1] int64; seeds: [lanes] int64, slot before each lane's first new token.
        tokens, positions, slots: [lanes * extend] int64, what is written.
        kv: byte sources, each [num_slots, bytes] uint8.
    """

    table: npt.NDArray[np.int32]
    rows: IntArray
    prefix_lens: IntArray
    extend_lens: IntArray
    stamps: IntArray
    written: IntArray
    write_offsets: IntArray
    seeds: IntArray
    tokens: IntArray
    positions: IntArray
    slots: IntArray
    kv: list[ByteArray]


def make_inputs(case: Case, order: str, *, is_affine: bool = False) -> Inputs:
    """Inputs of a case.

    Args:
        order: `random`, slots of a lane anywhere in the pool, or `contiguous`, one after another.
        is_affine: stamps hold affine chains.
    """
    rng = np.random.default_rng(_SEED)
    length = case.prefix + case.extend
    num_slots = case.lanes * length + 1  # slot 0 is padding
    flat = 1 + rng.permutation(num_slots - 1) if order == "random" else np.arange(1, num_slots)
    slots = flat.reshape(case.lanes, length)
    tokens = rng.integers(0, VOCABULARY, (case.lanes, length))
    kv = [
        rng.integers(0, 256, (num_slots, case.source_bytes), dtype=np.uint8) for _ in range(case.num_sources)
    ]
    written = _stamps(slots, tokens, kv, num_slots, is_affine)
    stamps = written.copy()
    new = np.ascontiguousarray(slots[:, case.prefix :]).reshape(-1)
    stamps[new] = 0
    table = np.zeros((case.lanes + 1, length), np.int32)
    table[1:] = slots
    seeds = slots[:, case.prefix - 1] if case.prefix else np.full(case.lanes, -1)
    return Inputs(
        table=table,
        rows=np.arange(1, case.lanes + 1),
        prefix_lens=np.full(case.lanes, case.prefix),
        extend_lens=np.full(case.lanes, case.extend),
        stamps=stamps,
        written=written,
        write_offsets=np.arange(case.lanes + 1) * case.extend,
        seeds=np.ascontiguousarray(seeds),
        tokens=np.ascontiguousarray(tokens[:, case.prefix :]).reshape(-1),
        positions=np.tile(np.arange(case.prefix, length), case.lanes),
        slots=new,
        kv=kv,
    )


def _stamps(
    slots: IntArray, tokens: IntArray, kv: list[ByteArray], num_slots: int, is_affine: bool
) -> IntArray:
    """Right stamps of all lanes, position by position for all lanes at once."""
    words = np.zeros((num_slots, STAMP_WORDS), np.uint64)
    running = np.full(len(slots), HEAD, np.uint64)
    hashes = hash_rows(kv) if kv else np.zeros(num_slots, np.uint64)
    for position in range(slots.shape[1]):
        token = tokens[:, position].astype(np.uint64)
        here = slots[:, position]
        words[here] = np.stack([token, np.full_like(token, position), running, hashes[here]], axis=1)
        running = chain_after(running, token, np.uint64(position), is_affine)
    return words.view(np.int64)


def chain_after(
    prev_hash: WordArray, token: WordArray, position: WordArray | np.uint64, is_affine: bool
) -> WordArray:
    """Hash of the chains that end with these tokens, of either kind, [n] uint64."""
    if is_affine:
        return prev_hash * np.uint64(FACTOR) + mix(mix(token) ^ position)
    return mix(mix(mix(prev_hash) ^ token) ^ position)


def mix(value: WordArray) -> WordArray:
    """`hashing_ref.mix` on arrays."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: WordArray = value ^ (value >> np.uint64(31))
    return mixed


def hash_rows(kv: list[ByteArray]) -> WordArray:
    """Compatible byte hash of every row over all sources, [num_slots] uint64."""
    total = np.zeros(len(kv[0]), np.uint64)
    for source in kv:
        words = np.ascontiguousarray(source.view(np.uint64).T)  # a word of all rows lies together
        value = np.zeros(words.shape[1], np.uint64)
        for word in words:
            value = mix(value ^ word)
        total = mix(total ^ value)
    return total
