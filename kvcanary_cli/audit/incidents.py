"""Damages that have one story become one incident."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.audit.blame import Damage


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """Damages of one kind at neighbouring positions of the same holders, with stamps of one origin."""

    group: str
    damages: tuple[Damage, ...]

    @property
    def kind(self) -> str:
        """What is wrong."""
        return self.damages[0].kind

    @property
    def holders(self) -> list[int]:
        """Rows, and `CACHE`, that hold the slots wrongly."""
        return self.damages[0].holders

    @property
    def slots(self) -> list[int]:
        """Damaged slots in the order of their positions."""
        return [damage.slot for damage in self.damages]

    @property
    def shadows(self) -> list[int]:
        """Good slots whose chain refers to damaged ones."""
        return sorted({slot for damage in self.damages for slot in damage.shadows})

    @property
    def displacement(self) -> int | None:
        """What the stamps' positions are off by; None where they say nothing, or not all the same."""
        found = {d.origin.position - d.position for d in self.damages if d.origin is not None}
        return found.pop() if len(found) == 1 else None


def joined(group: str, damages: list[Damage]) -> list[Incident]:
    """Incidents of a group, by the lowest row that holds them and the first position."""
    runs: list[list[Damage]] = []
    for damage in sorted(damages, key=lambda d: (_story(d), d.position)):
        last = runs[-1][-1] if runs else None
        if last is not None and _story(last) == _story(damage) and damage.position - last.position <= 1:
            runs[-1].append(damage)
        else:
            runs.append([damage])
    found = [Incident(group=group, damages=tuple(run)) for run in runs]
    return sorted(found, key=lambda incident: (incident.holders, incident.damages[0].position, incident.kind))


def _story(damage: Damage) -> tuple[object, ...]:
    origin = damage.origin
    source: tuple[object, ...] = ("", (), -1)
    if origin is not None and origin.state in ("held", "unheld"):
        # a chain that nobody holds is told from others by the slot with which it begins
        source = (origin.state, origin.holders, -1 if origin.holders else origin.start or 0)
    return (damage.kind, tuple(damage.holders), tuple(damage.also), source)
