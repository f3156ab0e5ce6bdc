"""Violations of a run as records: the first ones kept in full, all of them counted and joined into runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcanary_cli.kernels.consts import RING_BITS, RING_SLOT, RING_TAG, LaunchTag
from kvcanary_cli.replay.violations import ViolationBatch, expected_of, stored_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One violation row with its place.

    Attributes:
        slot, page: where, in the buffers of the launch's group.
        row, rid: table row and request that reached the slot; None in sweeps or when no lane reaches it.
        position: position at which the table (or the cache) reaches the slot.
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
    step: int
    launch: str
    bits: int
    stored: dict[str, int | None]
    expected: dict[str, int | None]


@dataclass(slots=True)
class SlotStory:
    """What first went wrong with a slot, and how it went on.

    Attributes:
        first: its first violation.
        count: all violations of this slot.
        last_step: forward of the latest.
        launches: every launch that complained.
        rids: requests that reached it while it failed.
    """

    first: Violation
    count: int = 0
    last_step: int = 0
    launches: set[str] = field(default_factory=set)
    rids: set[str] = field(default_factory=set)


@dataclass(kw_only=True, slots=True)
class Run:
    """Neighbouring slots with the same story."""

    slots: list[int]
    stories: list[SlotStory]

    @property
    def first(self) -> Violation:
        return self.stories[0].first


class ViolationRecords:
    """The run's violation log as users see it: filled once, counted always.

    Attributes:
        kept: the first `ring_capacity` violations, in order.
        total: all violations, kept or not.
    """

    def __init__(self, page_size: int, ring_capacity: int) -> None:
        self._page_size = page_size
        self.ring_capacity = ring_capacity
        self.kept: list[Violation] = []
        self.total = 0
        self.slots: dict[tuple[str, int], SlotStory] = {}

    def add(self, batch: ViolationBatch) -> None:
        """Take the violations of one forward or sweep."""
        self.total += len(batch) + batch.lost
        for i in range(len(batch)):
            violation = self._record(batch, i)
            if len(self.kept) < self.ring_capacity:
                self.kept.append(violation)
            group = "swa" if violation.launch.endswith("SWA") else "full"
            story = self.slots.setdefault((group, violation.slot), SlotStory(first=violation))
            story.count += 1
            story.last_step = violation.step
            story.launches.add(violation.launch)
            if violation.rid is not None:
                story.rids.add(violation.rid)

    def runs(self) -> list[Run]:
        """Runs of neighbouring slots with the same story, by first step, then slot."""
        runs: list[Run] = []
        previous: tuple[object, ...] | None = None
        for (group, slot), story in sorted(self.slots.items(), key=lambda item: _order(item[0], item[1])):
            story_key = (group, *_story_key(story.first))
            if previous == (*story_key, slot - 1):
                runs[-1].slots.append(slot)
                runs[-1].stories.append(story)
            else:
                runs.append(Run(slots=[slot], stories=[story]))
            previous = (*story_key, slot)
        return sorted(runs, key=lambda run: (run.first.step, run.slots[0]))

    def _record(self, batch: ViolationBatch, i: int) -> Violation:
        row = batch.rows[i]
        slot = int(row[RING_SLOT])
        position = int(batch.positions[i])
        table_row = int(batch.table_row[i])
        return Violation(
            slot=slot,
            page=slot // self._page_size,
            row=table_row if table_row >= 0 else None,
            rid=batch.rids[i],
            position=position,
            step=batch.step,
            launch=LaunchTag(int(row[RING_TAG])).name,
            bits=int(row[RING_BITS]),
            stored=stored_of(row),
            expected=expected_of(row, position),
        )


def _story_key(violation: Violation) -> tuple[object, ...]:
    return (violation.step, violation.launch, violation.bits, violation.rid, violation.row)


def _order(place: tuple[str, int], story: SlotStory) -> tuple[object, ...]:
    first = story.first
    return (place[0], first.step, first.launch, first.bits, first.rid or "", first.row or 0, place[1])
