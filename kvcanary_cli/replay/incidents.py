"""An incident: what is damaged, whose it was, who wrote it, since when, and why we think so."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from kvcanary_cli.kinds import KINDS
from kvcanary_cli.ledger.records import Breach, SlotFacts, Writer
from kvcanary_cli.replay.stories import SlotStory


class Strength(IntEnum):
    """How sure a cause is.

    CERTAIN: recorded events alone prove it. STRONG: a positive match and nothing against it. WEAK: possible,
    and nothing better. UNKNOWN: no cause fits what was recorded.
    """

    UNKNOWN = 0
    WEAK = 1
    STRONG = 2
    CERTAIN = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sentence for (or against) a kind, and the rule it comes from."""

    kind: str
    rule: str
    text: str
    is_for: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Opinion:
    """What one rule says of a case: a kind that fits, or one that was considered and does not.

    Attributes:
        root: the breach that the kind rests on; the earlier it is, the closer to the cause.
        rank: order among kinds that rest on the same breach, or on none.
        slots: the damaged slots if the rule knows better than the case, None otherwise.
        victim, writer: request names if the rule knows better.
    """

    kind: str
    strength: Strength
    evidence: tuple[Evidence, ...]
    root: Breach | None = None
    rank: int = 50
    slots: tuple[int, ...] | None = None
    victim: str | None = None
    writer: str | None = None


@dataclass(kw_only=True, slots=True)
class Incident:
    """One cause and everything it did.

    Attributes:
        kind: code, see `kinds.py`.
        group: buffer group of the slots.
        slots: damaged slots, ascending; for a cause without damage the slots it concerns.
        is_damaged: whether KV of these slots is (or was) wrong.
        other_slots: damaged slots of the other group of a hybrid pool: the same damage once more.
        shadows: good slots whose chain refers to a damaged one.
        breaches: ledger breaches of this cause, earliest first.
        stories: violations of this cause by slot, earliest first; shadows included.
        damaged: first and last step between which the damage happened; None when there is none.
        seen: the first violation; None when no check ever failed.
        victims: requests (or the cache) that hold the slots.
        writer: last writer of the damaged bytes or stamps, None when nobody wrote but their owner.
        example: slot that the full view shows, with its facts.
    """

    kind: str
    strength: Strength
    evidence: tuple[Evidence, ...]
    group: str
    slots: list[int]
    is_damaged: bool
    shadows: list[int]
    other_slots: list[int]
    breaches: list[Breach]
    stories: list[SlotStory]
    damaged: tuple[int | None, int] | None
    seen: SlotStory | None
    victims: list[str]
    writer: Writer | None
    facts: SlotFacts | None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return KINDS[self.kind]

    @property
    def first_step(self) -> int:
        """The earliest of breach, damage and first failed check: incidents are ordered by it."""
        steps = [self.breaches[0].step] if self.breaches else []
        if self.damaged is not None:
            steps.append(self.damaged[0] if self.damaged[0] is not None else self.damaged[1])
        if self.seen is not None:
            steps.append(self.seen.first.step)
        return min(steps, default=0)

    @property
    def readers(self) -> dict[str, tuple[int, int, int]]:
        """Requests that read a damaged slot while a check failed: (first step, last step, forwards)."""
        merged: dict[str, tuple[int, int, int]] = {}
        shadows = set(self.shadows)
        for story in self.stories:
            if story.slot in shadows:
                continue
            for rid, (first, last, forwards) in story.readers.items():
                known = merged.get(rid)
                merged[rid] = (
                    (first, last, forwards)
                    if known is None
                    else (min(first, known[0]), max(last, known[1]), max(forwards, known[2]))
                )
        return dict(sorted(merged.items()))
