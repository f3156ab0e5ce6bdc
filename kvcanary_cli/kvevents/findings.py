"""Findings of a stream, and what could not be judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvcanary_cli.kvevents.events import Source

MOST_KEPT = 10_000
"""Findings kept in full; the counts are of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in the file an event stands."""

    file: str
    line: int
    seq: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong; blocks of one event with the same fault are one.

    Attributes:
        hash: of the first block; None where it is about no block.
        blocks: how many.
        is_certain: False where it rests on the cache having been empty when the file begins.
    """

    code: str
    source: Source
    group: int | None
    medium: str | None
    hash: int | None
    blocks: int
    place: Place
    text: str
    is_certain: bool


class Log:
    """Collects findings.

    Attributes:
        unproven: by code, blocks that would be findings had no batch been lost before.
        passed: by reason, what looks wrong and is allowed or can't be told.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.blocks: Counter[str] = Counter()
        self.unproven: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Keep a finding, or only count it where there are too many."""
        self.counts[finding.code] += 1
        self.blocks[finding.code] += finding.blocks
        if len(self.findings) < MOST_KEPT:
            self.findings.append(finding)

    @property
    def total(self) -> int:
        """All findings, kept or not."""
        return self.counts.total()
