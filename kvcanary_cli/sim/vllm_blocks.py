"""Blocks of the vLLM model: who is counted on which block, and in which order free ones are handed out.

A free block keeps what was computed in it until it is handed out again, so the free list is the prefix cache's
eviction order too. Lists of a request are freed from their end, so that the blocks behind a beginning go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from kvcanary_cli.trace.tokens import mix_all


class Taken(NamedTuple):
    """Blocks that were handed out, and those of them that the cache lost by it."""

    blocks: list[int]
    evicted: list[int]


class BlockPool:
    """Blocks 1 to `num_blocks`, all free at first; block 0 is padding."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # a dict is an ordered set here: first out in front, and any block can be taken from the middle
        self._free: dict[int, None] = dict.fromkeys(range(1, num_blocks + 1))
        self._users = [0] * (num_blocks + 1)
        self._key_of: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._idle = 0

    @property
    def room(self) -> int:
        """Blocks that no request uses."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks whose content can be found, used ones included."""
        return len(self._cached)

    @property
    def idle(self) -> int:
        """Blocks whose content can be found and that no request uses."""
        return self._idle

    def find(self, keys: Sequence[int]) -> list[int]:
        """Blocks of the longest beginning of `keys` that is cached."""
        found = []
        for key in keys:
            block = self._cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def unused(self, blocks: Sequence[int]) -> int:
        """How many of these are on the free list: using them takes room as well."""
        return sum(not self._users[block] for block in blocks)

    def use(self, blocks: Sequence[int]) -> None:
        """One more request uses these cached blocks."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
                self._idle -= 1
            self._users[block] += 1

    def take(self, count: int) -> Taken:
        """Hand out the next `count` blocks; the caller has seen that there is room."""
        blocks = list(islice(self._free, count))
        evicted = []
        for block in blocks:
            del self._free[block]
            self._users[block] = 1
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._cached[key]
                self._idle -= 1
                evicted.append(block)
        return Taken(blocks, evicted)

    def cache(self, key: int, block: int) -> int:
        """Make a full block findable; the block that has this content already, if there is one, else `block`."""
        found = self._cached.setdefault(key, block)
        if found == block:
            self._key_of[block] = key
        return found

    def release(self, blocks: Sequence[int]) -> None:
        """One request less uses these blocks, given in the order of its positions."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                self._idle += block in self._key_of


def block_keys(tokens: np.ndarray, block_size: int) -> list[int]:
    """One number for each whole block of `tokens` that stands for it and for everything before it.

    A sum over positions: equal beginnings have equal numbers, and a block in another place has another one.
    """
    whole = len(tokens) // block_size * block_size
    places = np.arange(whole, dtype=np.uint64) << np.uint64(32)
    sums = np.cumsum(mix_all(places ^ tokens[:whole].astype(np.uint64)), dtype=np.uint64)
    keys: list[int] = sums[block_size - 1 :: block_size].tolist()
    return keys
