"""Whose chain a stamp belongs to: from stamp to stamp back to a slot that somebody holds where the stamp says.

A stamp holds the hash of everything before it, so at most one history leads to it: the slot before is the one whose
own chain value that is. Nobody needs to hold the slots on the way; what a finished request left behind is found too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcanary_cli.audit.claims import Entries, IntArray
from kvcanary_cli.kernels.consts import WORD_POSITION, WORD_PREV_HASH
from kvcanary_cli.kernels.hashing_ref import HEAD
from kvcanary_cli.runtime.bytes_cpu import stamp_contexts

MAX_STEPS = (
    1_000_000  # of all traces together: where everything fails, not every trace is followed to its end
)
MAX_CANDIDATES = 16  # slots with one and the same history that are looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a stamp comes from.

    Attributes:
        state: `held`: it goes on from a slot that `holders` hold, and that is in order;
            `unheld`: it goes on from slots that nobody holds where they say, back to the head or to where the
            trace is lost; `blank`: it was never written; `unknown`: no slot has the history that it names.
        position: what the stamp says.
        token: what the stamp says.
        holders: rows, and `claims.CACHE`.
        anchor: last slot of the chain that `holders` hold; None where there is none.
        since: first position that the chain has to itself, apart from `holders`.
        start: slot of that position.
    """

    state: str
    position: int
    token: int
    holders: tuple[int, ...] = ()
    anchor: int | None = None
    since: int | None = None
    start: int | None = None


class Origins:
    """Answers for one stamp buffer.

    Args:
        stamps: [slots, 4] int64.
        failed: [entries] whether a check failed on it, in any buffer.
    """

    def __init__(self, stamps: IntArray, entries: Entries, failed: np.ndarray, *, is_affine: bool) -> None:
        self._stamps = stamps
        self._entries = entries
        self._failed = failed
        after = stamp_contexts(stamps, np.arange(len(stamps)), is_affine)
        written = np.flatnonzero(stamps.any(axis=1))
        order = written[np.argsort(after[written], kind="stable")]
        self._slots, self._after = order, after[order]
        self._chain_after = after
        self._known: dict[tuple[int, int | None], Origin] = {}
        self._steps = 0

    def of(self, slot: int, holder: int | None = None) -> Origin:
        """Origin of the stamp that a slot holds; where several fit, the one that `holder` holds."""
        key = (slot, holder)
        if key not in self._known:
            self._known[key] = self._trace(slot, holder)
        return self._known[key]

    def _trace(self, slot: int, holder: int | None) -> Origin:
        token, position, *_ = self._stamps[slot].tolist()
        if not self._stamps[slot].any():
            return Origin(state="blank", position=0, token=0)
        seen = {slot}
        at, since = slot, position
        while self._steps < MAX_STEPS:
            self._steps += 1
            found = self.before(at, holder)
            if found is None or found in seen:
                break
            holders = self.sound_holders(found)
            if holders:
                return Origin(
                    state="held",
                    position=position,
                    token=token,
                    holders=tuple(holders),
                    anchor=found,
                    since=since,
                    start=at,
                )
            seen.add(found)
            at, since = found, since - 1
        is_whole = since == 0 and self._hash(at) == HEAD
        holders = self.sound_holders(at) if is_whole else []
        if holders:
            # the head itself is somebody's: a second copy of a first token has no slot before it
            return Origin(
                state="held", position=position, token=token, holders=tuple(holders), since=since, start=at
            )
        state = "unheld" if is_whole or at != slot else "unknown"
        return Origin(state=state, position=position, token=token, since=since, start=at)

    def sound_holders(self, slot: int) -> list[int]:
        """Who holds a slot at the position that its stamp says, without a failed check."""
        position = int(self._stamps[slot, WORD_POSITION])
        holders: set[int] = set()
        for entry in self._entries.of_slot(slot):
            if self._entries.position[entry] == position and not self._failed[entry]:
                holders.update(self._entries.holders_of(entry))
        return sorted(holders, key=lambda row: (row < 0, row))

    def position(self, slot: int) -> int:
        """The position that the stamp of a slot says."""
        return int(self._stamps[slot, WORD_POSITION])

    def words(self, slot: int) -> tuple[int, int]:
        """Token and position that the stamp of a slot says."""
        token, position = self._stamps[slot, :WORD_PREV_HASH].tolist()
        return token, position

    def goes_on_from(self, slot: int, before: int) -> bool:
        """Whether the stamp of a slot names the history that the one of `before` ends."""
        return int(self._chain_after[before]) == self._hash(slot)

    def is_head(self, slot: int) -> bool:
        """Whether the stamp of a slot begins a chain."""
        return self._hash(slot) == HEAD

    def is_alike(self, slot: int, other: int) -> bool:
        """Whether two stamps differ in their tokens at most."""
        mine, its = self._stamps[slot], self._stamps[other]
        return bool(
            (mine[WORD_POSITION : WORD_PREV_HASH + 1] == its[WORD_POSITION : WORD_PREV_HASH + 1]).all()
        )

    def _hash(self, slot: int) -> int:
        return int(self._stamps[slot, WORD_PREV_HASH]) & (2**64 - 1)

    def before(self, slot: int, holder: int | None = None) -> int | None:
        """The slot whose chain a stamp goes on from; where several fit, one that `holder` or anybody holds."""
        position = int(self._stamps[slot, WORD_POSITION]) - 1
        if position < 0:
            return None
        wanted = np.uint64(self._hash(slot))
        first = int(np.searchsorted(self._after, wanted))
        best, rank = None, -1
        for candidate in self._slots[first : first + MAX_CANDIDATES].tolist():
            if self._after[first] != wanted:
                break
            first += 1
            if self._stamps[candidate, WORD_POSITION] != position:
                continue
            holders = self.sound_holders(candidate)
            this = 2 if holder in holders else 1 if holders else 0
            if this > rank:
                best, rank = candidate, this
        return best
