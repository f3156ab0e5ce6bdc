"""What a dump says about slots: who holds which at what position, and the entries to verify that follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

CACHE = -1
"""Holder of the entries of the prefix cache; other holders are rows of the page table."""

HEAD_OF_CHAIN = -1
UNKNOWN_TOKEN = -1


@dataclass(frozen=True, kw_only=True)
class Claims:
    """One line a position of a row or an entry of the cache, [n] int64 each.

    Attributes:
        holder: row, or `CACHE`.
        predecessor: slot before it, negative at the head of a chain.
        token: expected token, -1 where none is known.
    """

    holder: IntArray
    position: IntArray
    slot: IntArray
    predecessor: IntArray
    token: IntArray

    def __len__(self) -> int:
        return int(self.slot.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Expected tokens: pool [rows, width], how many of each row are known, and the pool's offset."""

    pool: np.ndarray
    lens: IntArray
    offset: int


def row_claims(
    table: np.ndarray, lens: IntArray, *, window: int, lut: IntArray | None, tokens: Tokens | None
) -> Claims:
    """Positions of all rows.

    Args:
        table: [rows, width] slots of the full group.
        lens: [rows] positions to take of each row, none beyond the width; row 0 is padding.
        window: the last positions of each row that are taken; 0: all of them.
        lut: slot of the window group by slot of the full one; None: the slots as they are.
    """
    rows, width = table.shape
    lens = np.clip(lens, 0, width)
    lens[:1] = 0
    starts = np.maximum(lens - window, 0) if window else np.zeros(rows, np.int64)
    counts = lens - starts
    holder = np.repeat(np.arange(rows), counts)
    first = np.cumsum(counts) - counts
    position = np.arange(holder.size) - (first - starts)[holder]
    slot = table[holder, position].astype(np.int64)
    before = table[holder, np.maximum(position - 1, 0)].astype(np.int64)
    if lut is not None:
        slot, before = through(lut, slot), through(lut, before)
    token = np.full(holder.size, UNKNOWN_TOKEN, np.int64)
    if tokens is not None:
        at = position + tokens.offset
        is_known = at < np.minimum(tokens.lens, tokens.pool.shape[1])[holder]
        token[is_known] = tokens.pool[holder[is_known], at[is_known]]
    return Claims(
        holder=holder,
        position=position,
        slot=slot,
        predecessor=np.where(position == 0, HEAD_OF_CHAIN, before),
        token=token,
    )


def cache_claims(
    slots: IntArray, positions: IntArray, predecessors: IntArray, lut: IntArray | None
) -> Claims:
    """Entries of the prefix cache; its slots and predecessors are of the full group too."""
    if lut is not None:
        slots, predecessors = through(lut, slots), through(lut, predecessors)
    return Claims(
        holder=np.full(slots.size, CACHE, np.int64),
        position=positions,
        slot=slots,
        predecessor=np.where(predecessors < 0, HEAD_OF_CHAIN, predecessors),
        token=np.full(slots.size, UNKNOWN_TOKEN, np.int64),
    )


def through(lut: IntArray, slots: IntArray) -> IntArray:
    """Slots of the window group: negative ones stay, those beyond the map become -1."""
    inside = (slots >= 0) & (slots < lut.size)
    return np.where(inside, lut[np.where(inside, slots, 0)], np.where(slots < 0, slots, -1))


def joined(parts: list[Claims]) -> Claims:
    """Several lists of claims as one."""
    return Claims(
        **{
            name: np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0, np.int64)])
            for name in ("holder", "position", "slot", "predecessor", "token")
        }
    )


class Entries:
    """What the claims of one group come down to: each slot, position, predecessor and token once.

    Attributes:
        slot, position, predecessor, token: [m] int64, ordered by slot, then position.
        claims: the claims; `of_claim` [n] is the entry of each.
        num_slots: slots that the group's buffers have.
    """

    def __init__(self, claims: Claims, num_slots: int) -> None:
        self.claims = claims
        self.num_slots = num_slots
        keys = (-claims.token, claims.predecessor, claims.position, claims.slot)
        order = np.lexsort(keys)
        ordered = np.stack([claims.slot, claims.position, claims.predecessor, claims.token], axis=1)[order]
        is_new = np.ones(order.size, np.bool_)
        is_new[1:] = (ordered[1:, :3] != ordered[:-1, :3]).any(axis=1)
        # a claim that knows no token goes with the first one that does
        token_differs = np.zeros(order.size, np.bool_)
        token_differs[1:] = (ordered[1:, 3] != ordered[:-1, 3]) & (ordered[1:, 3] != UNKNOWN_TOKEN)
        is_new |= token_differs
        number = np.cumsum(is_new) - 1
        self.of_claim = np.empty(order.size, np.int64)
        self.of_claim[order] = number
        self._claim_order = order
        self._first_claim = np.flatnonzero(is_new)
        self.slot, self.position, self.predecessor, self.token = (
            np.ascontiguousarray(ordered[is_new, column]) for column in range(4)
        )

    def __len__(self) -> int:
        return int(self.slot.size)

    @cached_property
    def is_outside(self) -> npt.NDArray[np.bool_]:
        """[m] whether the slot is none of the pool's."""
        return (self.slot < 0) | (self.slot >= self.num_slots)

    @cached_property
    def is_checked(self) -> npt.NDArray[np.bool_]:
        """[m] whether a kernel looks at it: not the padding slot, and inside the pool."""
        return ~self.is_outside & (self.slot != 0)

    @cached_property
    def occurrence(self) -> IntArray:
        """[m] how many entries of the same slot come before."""
        is_first = np.ones(len(self), np.bool_)
        is_first[1:] = self.slot[1:] != self.slot[:-1]
        start = np.flatnonzero(is_first)
        return np.arange(len(self)) - np.repeat(start, np.diff([*start, len(self)]))

    def claims_of(self, entry: int) -> IntArray:
        """The claims that say this."""
        stop = self._first_claim[entry + 1] if entry + 1 < len(self) else self._claim_order.size
        return np.sort(self._claim_order[self._first_claim[entry] : stop])

    def holders_of(self, entry: int) -> list[int]:
        """Rows, and `CACHE`, that claim this; rows first."""
        holders = np.unique(self.claims.holder[self.claims_of(entry)]).tolist()
        return [row for row in holders if row != CACHE] + [CACHE] * (CACHE in holders)

    def of_slot(self, slot: int) -> range:
        """The entries of a slot."""
        first, last = np.searchsorted(self.slot, [slot, slot + 1])
        return range(int(first), int(last))

    def before(self, entry: int) -> int | None:
        """The entry that this one's chain goes on from, None at a head and where no one claims it.

        A slot may be claimed by several chains: the one that has a holder in common with this entry goes first.
        """
        position = int(self.position[entry]) - 1
        found = [o for o in self.of_slot(int(self.predecessor[entry])) if self.position[o] == position]
        if len(found) > 1:
            mine = set(self.holders_of(entry))
            found.sort(key=lambda other: not mine & set(self.holders_of(other)))
        return found[0] if found else None

    @cached_property
    def _by_predecessor(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.predecessor, kind="stable")
        return order, self.predecessor[order]

    def after(self, entry: int) -> list[int]:
        """Entries that go on from this one."""
        order, predecessors = self._by_predecessor
        slot = int(self.slot[entry])
        first, last = np.searchsorted(predecessors, [slot, slot + 1])
        wanted = self.position[entry] + 1
        return [int(other) for other in order[first:last] if self.position[other] == wanted]
