"""From failed entries to damaged slots: what is wrong itself, and what only follows something wrong.

A chain breaks at the slot behind the damage. That slot is good and is never blamed (it is a *shadow*); and the slots
of a foreign run agree with each other, so that only its first one fails. Both are told apart by where stamps come
from (`origins.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvcanary_cli.audit.claims import CACHE, Entries
from kvcanary_cli.audit.origins import Origin, Origins
from kvcanary_cli.audit.verify import BufferResult
from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_KV_HASH,
    BIT_OUT_OF_RANGE,
    BIT_POSITION,
    BIT_VERIFY_TOKEN,
    RING_BITS,
    WORD_KV_HASH,
)

MAX_OWN_STEPS = 4096
MAX_JUDGED = 20_000  # failed entries that are looked at one by one

STAMP_BITS = BIT_CHAIN_HASH | BIT_POSITION | BIT_VERIFY_TOKEN

# kinds of damage
SHARED = "shared-slot"
FOREIGN = "foreign-stamp"
MISPLACED = "misplaced-slot"
FORMER = "former-stamp"
CHANGED = "changed-stamp"
UNWRITTEN = "unwritten-slot"
BYTES = "changed-bytes"
TOKEN = "wrong-token"
OUTSIDE = "slot-outside-pool"
PADDING = "padding-slot"


@dataclass(kw_only=True, slots=True)
class Damage:
    """One slot that is wrong where somebody holds it.

    Attributes:
        entry: what is claimed of it.
        holders: rows, and `CACHE`, that claim it.
        bits: of all launches that failed; 0 where only the chain behind it tells.
        origin: where its stamp comes from; None where that was not asked.
        also: holders that hold the slot rightfully.
        evidence: how it is known where no check failed on it.
        shadows: slots behind it whose chain broke.
    """

    kind: str
    entry: int
    slot: int
    position: int
    holders: list[int]
    bits: int
    launches: tuple[str, ...] = ()
    origin: Origin | None = None
    also: list[int] = field(default_factory=list)
    evidence: str = ""
    shadows: list[int] = field(default_factory=list)


class Blame:
    """Sorts the failed entries of one group.

    Args:
        results: what was found in each buffer, TAIL first.
    """

    def __init__(self, entries: Entries, results: Sequence[BufferResult], *, is_affine: bool) -> None:
        self._entries = entries
        self._results = results
        self._is_affine = is_affine
        self.bits: dict[int, int] = {}
        self.launches: dict[int, list[BufferResult]] = {}
        for result in results:
            for entry, row in zip(result.entries.tolist(), result.rows, strict=True):
                self.bits[entry] = self.bits.get(entry, 0) | int(row[RING_BITS])
                self.launches.setdefault(entry, []).append(result)
        self._failed = np.zeros(len(entries), np.bool_)
        self._failed[list(self.bits)] = True
        self._failed |= entries.is_outside | (entries.slot == 0)
        self._origins: dict[str, Origins] = {}
        self.damages: dict[int, Damage] = {}
        self.shadows: dict[int, int | None] = {}
        self.num_unjudged = 0

    def run(self) -> list[Damage]:
        """Damages in the order of their positions; `shadows` maps a shadow's entry to what is damaged before it."""
        order = sorted(self.bits, key=lambda entry: (int(self._entries.position[entry]), entry))
        self.num_unjudged = max(0, len(order) - MAX_JUDGED)
        for entry in order[:MAX_JUDGED]:
            self._judge(entry)
        return list(self.damages.values())

    def _judge(self, entry: int) -> None:
        bits = self.bits[entry]
        if not bits & (STAMP_BITS | BIT_OUT_OF_RANGE):
            self._add(BYTES, entry)
            return
        before = self._entries.before(entry)
        origin = self._origin(entry)
        breaks_only = not bits & (BIT_POSITION | BIT_VERIFY_TOKEN)
        if self._is_own(entry) or (breaks_only and origin.state == "unknown" and self._is_behind(before)):
            self._judge_own(entry, before, origin)
            return
        if breaks_only and self._could_be_before(before, origin) and self._blame_before(entry, before):
            return
        kind = self._kind(entry, origin)
        self._add(kind, entry, origin)
        if kind in (SHARED, FOREIGN, MISPLACED, FORMER):
            self._follow(entry, kind, origin)

    def _judge_own(self, entry: int, before: int | None, origin: Origin) -> None:
        """The stamp is its holder's, at its place: the chain broke before it, or bytes or token are wrong."""
        bits = self.bits[entry]
        if bits & (BIT_CHAIN_HASH | BIT_OUT_OF_RANGE):
            self._shadow(entry, before)
        if bits & BIT_VERIFY_TOKEN:
            is_later = any(other in self.bits for other in self._entries.after(entry))
            self._add(CHANGED if is_later else TOKEN, entry, origin)
        elif bits & BIT_KV_HASH:
            self._add(BYTES, entry)

    def _is_own(self, entry: int) -> bool:
        """Whether the stamp is that of its holder, at its place.

        The nearest slot in front that is in order decides: the chain of the stamp leads there, over whatever slots
        hold the part between.
        """
        entries, origins = self._entries, self._origins_of(entry)
        slot, before = int(entries.slot[entry]), entries.before(entry)
        if origins.position(slot) != entries.position[entry]:
            return False
        for _ in range(MAX_OWN_STEPS):
            if before is None:
                return origins.position(slot) == 0 and origins.is_head(slot)
            if not self._failed[before] and before not in self.damages:
                return origins.goes_on_from(slot, int(entries.slot[before]))
            found = origins.before(slot)
            if found is None:
                return False
            slot, before = found, entries.before(before)
        return False

    def _could_be_before(self, before: int | None, origin: Origin) -> bool:
        """Whether the break may come from the stamp before: its true one is nowhere, or somebody else's copy of it."""
        if before is None or origin.state == "unknown":
            return True
        if origin.anchor is None:
            return False
        origins = next(iter(self._origins.values()))
        return origins.is_alike(int(self._entries.slot[before]), origin.anchor)

    def _is_behind(self, before: int | None) -> bool:
        """Whether the slot before is wrong, so that a broken chain says nothing about this one."""
        if before is None:
            return False
        if before in self.damages:
            return self.damages[before].kind != BYTES
        return bool(self._entries.is_outside[before])

    def _blame_before(self, entry: int, before: int | None) -> bool:
        """A chain that breaks once, between two stamps that no other check finds fault with: which one is it?

        The stamp before it if the slot behind agrees with this one, or if the buffers differ in that stamp and
        not in this one.
        """
        slot = int(self._entries.slot[entry])
        if (
            before is None
            or self._failed[before]
            or any(not self._failed[o] for o in self._entries.of_slot(slot))
        ):
            return False
        differs_before, differs_here = self._differs(before), self._differs(entry)
        follows = self._entries.after(entry)
        goes_on = bool(follows) and not any(self._failed[other] for other in follows)
        if differs_before == differs_here:
            if not goes_on:
                return False
            evidence = (
                "the slot behind it does not go on from it, those behind that one agree with each other"
            )
        elif differs_here:
            return False
        else:
            evidence = "its stamps in HEAD and TAIL, K and V are not the same"
        self._add(CHANGED, before, evidence=evidence)
        self._shadow(entry, before)
        return True

    def _differs(self, entry: int) -> bool:
        """Whether the buffers of the group disagree about token, position or history of a slot."""
        slot = int(self._entries.slot[entry])
        stamps = [result.stamps[slot, :WORD_KV_HASH] for result in self._results]
        return any(not np.array_equal(stamps[0], other) for other in stamps[1:])

    def _kind(self, entry: int, origin: Origin) -> str:
        if origin.state == "blank":
            return UNWRITTEN
        if origin.state == "unheld":
            return FORMER
        if origin.state == "held":
            slot = int(self._entries.slot[entry])
            if any(not self._failed[other] for other in self._entries.of_slot(slot)):
                return SHARED
            return MISPLACED if set(origin.holders) & set(self._entries.holders_of(entry)) else FOREIGN
        return TOKEN if self.bits[entry] & STAMP_BITS == BIT_VERIFY_TOKEN else CHANGED

    def _follow(self, entry: int, kind: str, first: Origin) -> None:
        """The slots behind a foreign one, as long as they agree with it: they are as foreign."""
        holders = set(self._entries.holders_of(entry))
        at = entry
        while True:
            follows = [
                other
                for other in self._entries.after(at)
                if not self._failed[other] and holders & set(self._entries.holders_of(other))
            ]
            if not follows or follows[0] in self.damages:
                return
            at = follows[0]
            only = [row for row in self._entries.holders_of(at) if row in holders]
            token, position = self._origins_of(entry).words(int(self._entries.slot[at]))
            origin = replace(first, token=token, position=position)
            self._add(
                kind,
                at,
                origin,
                holders=only,
                evidence="it goes on from the slot before it, which is not its own",
            )

    def _origin(self, entry: int) -> Origin:
        slot = int(self._entries.slot[entry])
        return self._origins_of(entry).of(slot, self._entries.holders_of(entry)[0])

    def _origins_of(self, entry: int) -> Origins:
        """Traces in the first buffer in which an entry failed."""
        result = self.launches[entry][0]
        if result.launch not in self._origins:
            self._origins[result.launch] = Origins(
                result.stamps, self._entries, self._failed, is_affine=self._is_affine
            )
        return self._origins[result.launch]

    def _add(
        self,
        kind: str,
        entry: int,
        origin: Origin | None = None,
        *,
        holders: list[int] | None = None,
        evidence: str = "",
    ) -> None:
        entries = self._entries
        held = holders if holders is not None else entries.holders_of(entry)
        slot = int(entries.slot[entry])
        also: set[int] = set()
        for other in entries.of_slot(slot):
            if not self._failed[other]:
                also |= set(entries.holders_of(other)) - set(held)
        self.damages[entry] = Damage(
            kind=kind,
            entry=entry,
            slot=slot,
            position=int(entries.position[entry]),
            holders=held,
            bits=self.bits.get(entry, 0),
            launches=tuple(result.launch for result in self.launches.get(entry, ())),
            origin=origin,
            also=sorted(also, key=lambda row: (row == CACHE, row)),
            evidence=evidence,
        )

    def _shadow(self, entry: int, before: int | None) -> None:
        self.shadows[entry] = before
        if before is not None and before in self.damages:
            self.damages[before].shadows.append(int(self._entries.slot[entry]))


def table_damages(entries: Entries, *, padding: bool) -> list[Damage]:
    """Entries that no kernel can look at: slots outside the pool and, where that is wrong, the padding slot."""
    wrong = entries.is_outside.copy()
    if padding:
        wrong |= entries.slot == 0
    return [
        Damage(
            kind=PADDING if entries.slot[entry] == 0 else OUTSIDE,
            entry=entry,
            slot=int(entries.slot[entry]),
            position=int(entries.position[entry]),
            holders=entries.holders_of(entry),
            bits=0 if entries.slot[entry] == 0 else BIT_OUT_OF_RANGE,
        )
        for entry in np.flatnonzero(wrong).tolist()
    ]


def shared_slots(entries: Entries) -> list[tuple[int, list[int]]]:
    """Slots that are held at several positions, or behind several slots, with all entries that say so."""
    same = np.flatnonzero(entries.is_checked & (entries.occurrence == 1))
    found = []
    for entry in same.tolist():
        others = list(entries.of_slot(int(entries.slot[entry])))
        places = {(int(entries.position[o]), int(entries.predecessor[o])) for o in others}
        if len(places) > 1:
            found.append((int(entries.slot[entry]), others))
    return found
