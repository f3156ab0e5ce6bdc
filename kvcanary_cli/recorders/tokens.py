"""Token ids as they go into a trace: as they are, or as salted hashes that keep what replay compares.

Replay only ever asks whether two tokens at the same position are equal. So the hash covers the position too:
the same word at two places gives two numbers, and counting how often a number occurs says nothing about words.
The salt is drawn when a recorder starts and is never written. The hash is SipHash-1-3, cut to 31 bits, the
range that the trace format allows.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from kvcanary_cli.recorders.staged import IntArray

TOKEN_BITS = np.int64((1 << 31) - 1)
_INIT = tuple(
    np.uint64(word)
    for word in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
)
_LENGTH_BLOCK = np.uint64(8 << 56)  # one message of 8 bytes
_FINAL = np.uint64(0xFF)

WordArray = npt.NDArray[np.uint64]
_State = tuple[WordArray, WordArray, WordArray, WordArray]


class Tokens:
    """Turns token ids into what is written.

    Args:
        is_hashed: whether ids are replaced; else only ids outside the format's range are.
        salt: 16 bytes; None draws them.
    """

    def __init__(self, *, is_hashed: bool, salt: bytes | None = None) -> None:
        key = np.frombuffer(salt or os.urandom(16), "<u8")
        self.is_hashed = is_hashed
        self._start = tuple(_INIT[i] ^ key[i % 2] for i in range(4))

    def at(self, ids: IntArray, positions: IntArray) -> IntArray:
        """[n] ids at [n] positions, as they are written: each in 0 … 2^31 - 1."""
        if not self.is_hashed:
            if not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) <= int(TOKEN_BITS)):
                return ids
            outside = (ids < 0) | (ids > TOKEN_BITS)
            return np.where(outside, self._hash(ids, np.zeros_like(positions)), ids)
        return self._hash(ids, positions)

    def run(self, ids: IntArray, first: int) -> IntArray:
        """[n] ids at positions `first` and on."""
        return self.at(ids, np.arange(first, first + len(ids), dtype=np.int64))

    def _hash(self, ids: IntArray, positions: IntArray) -> IntArray:
        # ids fit into 32 bits in every vocabulary; the fold keeps larger ones (image hashes) apart as well
        word = ids.view(np.uint64)
        low = (word ^ (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        message = low | (positions.view(np.uint64) << np.uint64(32))
        v0, v1, v2, v3 = (np.full(len(ids), start) for start in self._start)
        for block in (message, np.full(len(ids), _LENGTH_BLOCK)):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ block)
            v0 = v0 ^ block
        v2 = v2 ^ _FINAL
        for _ in range(3):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        return (v0 ^ v1 ^ v2 ^ v3).view(np.int64) & TOKEN_BITS


def _round(v0: WordArray, v1: WordArray, v2: WordArray, v3: WordArray) -> _State:
    v0 = v0 + v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _rotate(word: WordArray, by: int) -> WordArray:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))
