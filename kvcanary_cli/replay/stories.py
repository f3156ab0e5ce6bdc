"""What went wrong with each slot: its first violation, and what the ledger knew at that moment.

Facts are taken when a slot first fails, because the ledger only knows the present: one step later the slot may
have another writer. A slot that is handed out anew gets a new story.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_WRITE_POSITION,
    RING_BITS,
    RING_SLOT,
    RING_TAG,
    LaunchTag,
)
from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.ledger.records import SlotFacts
from kvcanary_cli.replay.violations import ViolationBatch, expected_of, group_of_tag, stored_of
from kvcanary_cli.runtime.layout import SWA

# facts of a slot that the pool does not have
_NOTHING: dict[str, Any] = {
    "epoch": 0,
    "known": True,
    "holders": (),
    "allocated": None,
    "released": None,
    "given_up": None,
    "previous": None,
    "byte_writer": None,
    "stamp_writer": None,
    "is_written": False,
    "published": False,
    "token": None,
    "last_checked_step": None,
}

# Slots looked at in front of broken chains, over a whole run: hidden damage is rare, a wrong table is not.
MOST_WALKED = 50_000

Neighbours = Callable[[str, int | None, int], list[tuple[int, int]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One violation row with its place.

    Attributes:
        slot, page: where, in the buffers of the launch's group.
        row, rid: table row and request that reached the slot; None in sweeps or when no lane reaches it.
        position: position at which the table (or the cache) reaches the slot.
        predecessor: slot before it there; -1 at the head of a chain, -2 when not known.
        step: forward, from 0; a sweep carries the step of the forward before it.
        launch: name of the launch tag.
        bits: reason bits.
        stored, expected: token, position and prev_hash; None where the check had no expectation.
    """

    slot: int
    page: int
    row: int | None
    rid: str | None
    position: int
    predecessor: int
    step: int
    launch: str
    bits: int
    stored: dict[str, int | None]
    expected: dict[str, int | None]


@dataclass(kw_only=True, slots=True)
class SlotStory:
    """One slot in one epoch, from its first violation on.

    Attributes:
        group: buffer group.
        first: its first violation.
        bits: every reason seen in the forward of the first violation.
        facts: the ledger's view of the slot when it first failed.
        before: the same for the slot before it in the chain; None at the head.
        full_slot: for a window slot, the full slot that maps to it.
        run_before: slots (with their facts) in front of it that its request did not write, nearest first:
            where the damage is when only the chain tells (law 1).
        count: violations so far, at least: of thousands in one forward some are only counted in total.
        last_step: forward of the latest.
        readers: request -> (first step, last step, forwards) in which it failed for this reader.
    """

    group: str
    first: Violation
    bits: int
    facts: SlotFacts
    before: SlotFacts | None
    full_slot: int | None = None
    run_before: list[SlotFacts] = field(default_factory=list)
    count: int = 0
    last_step: int = 0
    readers: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def slot(self) -> int:
        return self.first.slot


class Stories:
    """Violations of a run: the first ones kept in full, all of them counted by slot.

    Args:
        ledger: asked about a slot when it first fails.
        row_before: `(group, row, position) -> [(slot, position), …]`, the slots in front of a position in a
            row of the table as it is now, nearest first, at most a page's worth.
        ring_capacity: violations kept in full, as in the server's log.
        num_slots: slots of each group; those beyond are nobody's.
        full_of: full slot that maps to a window slot now, None when there is none.

    Attributes:
        kept: the first `ring_capacity` violations.
        total: all violations, kept or not.
    """

    def __init__(
        self,
        ledger: Ledger,
        page_size: int,
        ring_capacity: int,
        row_before: Neighbours,
        num_slots: dict[str, int],
        full_of: Callable[[int], int | None],
    ) -> None:
        self._ledger = ledger
        self._full_of = full_of
        self._num_slots = num_slots
        self._page_size = page_size
        self._row_before = row_before
        self.ring_capacity = ring_capacity
        self.kept: list[Violation] = []
        self.total = 0
        self._walked = 0
        self._failed = {group: np.zeros(size, np.bool_) for group, size in num_slots.items()}
        self._by_slot: dict[tuple[str, int, int], SlotStory] = {}

    def is_known(self, group: str, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each slot failed before."""
        failed = self._failed.get(group)
        if failed is None:
            return np.zeros(slots.size, np.bool_)
        inside = (slots >= 0) & (slots < failed.size)
        return np.where(inside, failed[np.where(inside, slots, 0)], True)

    def all(self) -> list[SlotStory]:
        """Stories by first step, group and slot."""
        return sorted(self._by_slot.values(), key=lambda s: (s.first.step, s.group, s.slot))

    def add(self, batch: ViolationBatch) -> list[SlotStory]:
        """Take the violations of one forward or sweep; returns the stories that begin with it."""
        self.total += len(batch) + batch.lost
        new = []
        for i in range(len(batch)):
            violation = self._record(batch, i)
            if len(self.kept) < self.ring_capacity:
                self.kept.append(violation)
            group = group_of_tag(int(batch.rows[i, RING_TAG]))
            key = (group, violation.slot, self._ledger.epoch(group, violation.slot))
            story = self._by_slot.get(key)
            if story is None:
                facts = self._facts(group, violation.slot)
                story = self._by_slot[key] = self._begin(group, violation, facts)
                if 0 <= violation.slot < self._num_slots.get(group, 0):
                    self._failed[group][violation.slot] = True
                new.append(story)
            self._continue(story, violation)
        return new

    def _facts(self, group: str, slot: int) -> SlotFacts:
        if 0 <= slot < self._num_slots.get(group, 0):
            return self._ledger.slot(group, slot)
        return SlotFacts(slot=slot, group=group, **_NOTHING)

    def _begin(self, group: str, violation: Violation, facts: SlotFacts) -> SlotStory:
        before = self._facts(group, violation.predecessor) if violation.predecessor > 0 else None
        run = []
        # only a chain that breaks for no reason of its own asks what stands before it
        looks_back = (
            violation.bits & ~(BIT_CHAIN_HASH | BIT_WRITE_POSITION) == 0 and self._walked < MOST_WALKED
        )
        place = (group, violation.row, violation.position)
        for slot, position in self._row_before(*place) if looks_back else ():
            held = self._facts(group, slot)
            self._walked += 1
            if not _is_foreign(held, violation.rid, position):
                break
            run.append(held)
        full_slot = self._full_of(violation.slot) if group == SWA else None
        return SlotStory(
            group=group,
            first=violation,
            bits=0,
            facts=facts,
            before=before,
            full_slot=full_slot,
            run_before=run,
        )

    def _continue(self, story: SlotStory, violation: Violation) -> None:
        story.count += 1
        story.last_step = violation.step
        if violation.step == story.first.step:
            story.bits |= violation.bits
        if violation.rid is not None:
            first, last, forwards = story.readers.get(violation.rid, (violation.step, -1, 0))
            story.readers[violation.rid] = (first, violation.step, forwards + (violation.step != last))

    def _record(self, batch: ViolationBatch, i: int) -> Violation:
        row = batch.rows[i]
        slot, position, table_row = int(row[RING_SLOT]), int(batch.positions[i]), int(batch.table_row[i])
        return Violation(
            slot=slot,
            page=slot // self._page_size,
            row=table_row if table_row >= 0 else None,
            rid=batch.rids[i],
            position=position,
            predecessor=int(batch.predecessors[i]),
            step=batch.step,
            launch=LaunchTag(int(row[RING_TAG])).name,
            bits=int(row[RING_BITS]),
            stored=stored_of(row),
            expected=expected_of(row, position),
        )


def _is_foreign(facts: SlotFacts, rid: str | None, position: int) -> bool:
    """Whether a slot of a row was stamped by somebody who is not of its line: not the reader, not a publisher."""
    writer = facts.stamp_writer
    if writer is None:
        return not facts.is_written
    if writer.name is None:
        return False  # a copy: it may well be this request's
    return writer.name != rid and not facts.published and (writer.position != position or not writer.in_row)
