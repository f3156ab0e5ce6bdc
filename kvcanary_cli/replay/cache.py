"""What the prefix cache holds: entries of position, slot and predecessor.

The content is a set of entries, not a property of slots: after a fault one slot can stand in two entries, and a
sweep checks both. Entries live in flat arrays, chained per slot, so that publishing and evicting cost time
proportional to the slots named.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

IntArray = npt.NDArray[np.int64]

_NONE = -1
_COLUMNS = 4  # slot, position, predecessor, next entry of the same slot
_SLOT, _POSITION, _PREDECESSOR, _NEXT = range(_COLUMNS)


@njit(cache=True)
def _publish(store, first, free, num_free, used, slots, at, predecessor):
    """Add entries for slots at positions `at`…; one that exists already stays as it is."""
    for i in range(slots.size):
        slot, position = slots[i], at + i
        entry = first[slot]
        while entry != _NONE and store[entry, _POSITION] != position:
            entry = store[entry, _NEXT]
        if entry == _NONE:
            if num_free > 0:
                num_free -= 1
                entry = free[num_free]
            else:
                entry = used
                used += 1
            store[entry, _SLOT] = slot
            store[entry, _POSITION] = position
            store[entry, _PREDECESSOR] = predecessor
            store[entry, _NEXT] = first[slot]
            first[slot] = entry
        predecessor = slot
    return num_free, used


@njit(cache=True)
def _evict(store, first, free, num_free, slots):
    """Remove one entry a listed slot: the one that continues the list, else the oldest."""
    position = np.int64(-2)
    missing = 0
    for i in range(slots.size):
        slot = slots[i]
        chosen, before_chosen = np.int64(_NONE), np.int64(_NONE)
        entry, before = first[slot], np.int64(_NONE)
        while entry != _NONE:
            chosen, before_chosen = entry, before
            if store[entry, _POSITION] == position + 1:
                break
            before, entry = entry, store[entry, _NEXT]
        if chosen == _NONE:
            missing += 1
            position = -2
            continue
        position = store[chosen, _POSITION]
        if before_chosen == _NONE:
            first[slot] = store[chosen, _NEXT]
        else:
            store[before_chosen, _NEXT] = store[chosen, _NEXT]
        store[chosen, _SLOT] = _NONE
        free[num_free] = chosen
        num_free += 1
    return num_free, missing


class CacheEntries:
    """Entries of one prefix cache over `num_slots` slots."""

    def __init__(self, num_slots: int) -> None:
        self._first = np.full(num_slots, _NONE, np.int64)
        self._store = np.full((64, _COLUMNS), _NONE, np.int64)
        self._free = np.zeros(64, np.int64)
        self._num_free = 0
        self._used = 0

    def __len__(self) -> int:
        return self._used - self._num_free

    def publish(self, slots: IntArray, at: int, predecessor: int) -> None:
        """The cache holds `slots` at positions `at`…; `predecessor` is the slot before the first (-1: none)."""
        self._reserve(slots.size)
        self._num_free, self._used = _publish(
            self._store, self._first, self._free, self._num_free, self._used, slots, at, predecessor
        )

    def evict(self, slots: IntArray) -> int:
        """The cache gives up one entry for each listed slot; returns how many slots had none."""
        self._num_free, missing = _evict(self._store, self._first, self._free, self._num_free, slots)
        return int(missing)

    def clear(self) -> None:
        """Forget everything (a gap: what the cache holds now is unknown)."""
        self._first[:] = _NONE
        self._store[:] = _NONE
        self._num_free = self._used = 0

    def entries(self) -> tuple[IntArray, IntArray, IntArray]:
        """Slots, positions and predecessors, [n] int64 each, in order of entry."""
        live = self._store[: self._used]
        live = live[live[:, _SLOT] != _NONE]
        return (
            np.ascontiguousarray(live[:, _SLOT]),
            np.ascontiguousarray(live[:, _POSITION]),
            np.ascontiguousarray(live[:, _PREDECESSOR]),
        )

    def holds(self, slots: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each slot stands in an entry."""
        return self._first[slots] != _NONE

    def _reserve(self, more: int) -> None:
        need = self._used + more
        if need > self._store.shape[0]:
            size = max(need, 2 * self._store.shape[0])
            store = np.full((size, _COLUMNS), _NONE, np.int64)
            store[: self._used] = self._store[: self._used]
            free = np.zeros(size, np.int64)
            free[: self._num_free] = self._free[: self._num_free]
            self._store, self._free = store, free
