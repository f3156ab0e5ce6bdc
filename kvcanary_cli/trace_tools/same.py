"""When two replays give the same incident."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.replay.incidents import Incident
from kvcanary_cli.replay.run import ReplayResult
from kvcanary_cli.report.text import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What makes an incident, or an exceeded capacity, the one it is.

    Attributes:
        kind: its code.
        group: buffer group; of a capacity which one it is.
        slots: damaged slots, or those concerned.
        strength: how sure its cause is; -1 for a capacity.
        writer: who wrote last, if anybody did.
        is_seen: whether a check failed; False where only the ledger noticed.
        rules: the rule of ownership that was broken first, and the one that names the cause.
        victims: who held the slots.
    """

    kind: str
    group: str
    slots: frozenset[int] = frozenset()
    strength: int = -1
    is_damaged: bool = False
    writer: str | None = None
    is_seen: bool = False
    rules: tuple[str | None, ...] = ()
    victims: frozenset[str] = frozenset()

    def is_like(self, other: Finding) -> bool:
        """Whether it may be the same cause: kind and group, and slots in common."""
        alike = (self.kind, self.group) == (other.kind, other.group)
        return alike and (self.slots == other.slots or bool(self.slots & other.slots))

    def is_same(self, target: Finding) -> bool:
        """Whether it tells the same as `target`, of some of its slots."""
        return (
            self.is_like(target)
            and self.slots <= target.slots
            and self.strength >= target.strength
            and self._story() == target._story()
            and (not target.victims or bool(self.victims & target.victims))
        )

    def _story(self) -> tuple[object, ...]:
        return self.is_damaged, self.writer, self.is_seen, self.rules


def findings_of(result: ReplayResult) -> list[Finding]:
    """Incidents in their order, then exceeded capacities, one of each kind."""
    found = [_of_incident(incident) for incident in result.incidents]
    capacities = {(over.kind, over.capacity): None for over in result.capacity_violations}
    found += [Finding(kind=kind, group=capacity) for kind, capacity in capacities]
    return found + [
        Finding(kind="digest", group=m.source, slots=frozenset((m.slot,))) for m in result.digest_mismatches
    ]


def _of_incident(incident: Incident) -> Finding:
    return Finding(
        kind=incident.kind,
        group=incident.group,
        slots=frozenset(incident.slots),
        strength=int(incident.strength),
        is_damaged=incident.is_damaged,
        writer=incident.writer.name if incident.writer is not None else None,
        is_seen=incident.seen is not None,
        rules=(
            incident.breaches[0].rule if incident.breaches else None,
            next((evidence.rule for evidence in incident.evidence if evidence.is_for), None),
        ),
        victims=frozenset(incident.victims),
    )


def choose(findings: list[Finding], number: int, where: str) -> Finding:
    """The finding that is to be kept.

    Raises: InputError where a replay finds nothing, UsageError where it finds less than `number`.
    """
    if not findings:
        raise InputError("a replay finds nothing in this trace, so there is nothing to keep", where=where)
    if number > len(findings):
        raise UsageError(
            f"`--incident {number}` was asked for, a replay has {plural(len(findings), 'incident')}"
        )
    return findings[number - 1]


def keeps(result: ReplayResult, target: Finding, originals: list[Finding]) -> bool:
    """Whether a replay has the target, and nothing that the original trace did not have."""
    found = findings_of(result)
    return any(one.is_same(target) for one in found) and all(
        any(one.is_like(original) for original in originals) for one in found
    )
