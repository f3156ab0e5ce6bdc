"""Lines of a log, counted by what they say: one group a message and room, one a launch and set of failed checks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvcanary_cli.explain.families import Match
from kvcanary_cli.explain.log_scan import Hit
from kvcanary_cli.explain.violations import Violation

MAX_GROUPS = 200
"""Groups of one sort; lines that would begin one more are counted and nothing else."""

MAX_SLOTS = 10_000
"""Slots that a group of violations remembers."""

# What a message needs; where its room is the same, the largest need decides what to change
_NEEDS = ("batch_size", "tokens", "bs", "rows", "need", "sources")


@dataclass(slots=True)
class MessageGroup:
    """Messages that differ in nothing but how much they need; `match` is the one that needs most."""

    match: Match
    first: int
    last: int
    count: int = 1

    def add(self, hit: Match, line: int) -> None:
        """Count one more."""
        self.count += 1
        self.last = line
        if _need(hit) > _need(self.match):
            self.match = hit


@dataclass(slots=True)
class ViolationGroup:
    """Violations of one launch with the same failed checks; `example` is the first."""

    example: Violation
    first: int
    last: int
    count: int = 1
    slots: set[int] = field(default_factory=set)

    def add(self, violation: Violation, line: int) -> None:
        """Count one more."""
        self.count += 1
        self.last = line
        self.add_slot(violation.slot)

    def add_slot(self, slot: int | None) -> None:
        """Remember a slot while there is room."""
        if slot is not None and len(self.slots) < MAX_SLOTS:
            self.slots.add(slot)


@dataclass(slots=True)
class TextGroup:
    """Lines with the canary's prefix whose text is not known, alike but for their numbers."""

    text: str
    first: int
    last: int
    count: int = 1


@dataclass(slots=True)
class Found:
    """What a log or a text holds, in the order of first appearance; `left_out` counts lines past `MAX_GROUPS`."""

    messages: list[MessageGroup] = field(default_factory=list)
    violations: list[ViolationGroup] = field(default_factory=list)
    unknown: list[TextGroup] = field(default_factory=list)
    left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recognised; texts that only have the prefix don't count."""
        return not self.messages and not self.violations


def collect(hits: Iterable[Hit]) -> Found:
    """Group lines as they come."""
    found = Found()
    messages: dict[object, MessageGroup] = {}
    violations: dict[object, ViolationGroup] = {}
    unknown: dict[str, TextGroup] = {}
    for hit in hits:
        if hit.message is not None:
            _add_message(messages, hit.message, hit.line, found)
        elif hit.violation is not None:
            _add_violation(violations, hit.violation, hit.line, found)
        else:
            _add_unknown(unknown, hit, found)
    found.messages, found.violations = list(messages.values()), list(violations.values())
    found.unknown = list(unknown.values())
    return found


def _add_message(groups: dict[object, MessageGroup], match: Match, line: int, found: Found) -> None:
    rooms = tuple((name, value) for name, value in match.numbers.items() if name not in _NEEDS)
    key = (match.family, rooms, tuple(match.words.items()))
    if key in groups:
        groups[key].add(match, line)
    elif len(groups) < MAX_GROUPS:
        groups[key] = MessageGroup(match, line, line)
    else:
        found.left_out += 1


def _add_violation(
    groups: dict[object, ViolationGroup], violation: Violation, line: int, found: Found
) -> None:
    key = (violation.launch, violation.reasons)
    if key in groups:
        groups[key].add(violation, line)
    elif len(groups) < MAX_GROUPS:
        groups[key] = ViolationGroup(violation, line, line)
        groups[key].add_slot(violation.slot)
    else:
        found.left_out += 1


def _add_unknown(groups: dict[str, TextGroup], hit: Hit, found: Found) -> None:
    key = re.sub(r"\d+", "0", hit.text)[:200]
    if key in groups:
        groups[key].count += 1
        groups[key].last = hit.line
    elif len(groups) < MAX_GROUPS:
        groups[key] = TextGroup(hit.text[:500], hit.line, hit.line)
    else:
        found.left_out += 1


def _need(match: Match) -> int:
    return max((abs(match.numbers[name]) for name in _NEEDS if name in match.numbers), default=0)
