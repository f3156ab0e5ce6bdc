"""What rules share: the run's shape, and short ways to state an opinion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvcanary_cli.ledger.records import Breach
from kvcanary_cli.replay.cases import Case
from kvcanary_cli.replay.incidents import Evidence, Opinion, Strength


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Facts about the run that rules need.

    Attributes:
        page_size: slots a page.
        num_slots: slots of the full pool.
        has_transfers, has_offloads: whether the trace holds such events at all.
    """

    page_size: int
    num_slots: int
    has_transfers: bool = False
    has_offloads: bool = False


Rule = Callable[[Case, Context], Opinion | None]


def fits(
    kind: str,
    strength: Strength,
    *reasons: tuple[str, str],
    root: Breach | None = None,
    rank: int = 50,
    slots: tuple[int, ...] | None = None,
    victim: str | None = None,
    writer: str | None = None,
) -> Opinion:
    """The kind explains the case; reasons are (rule, sentence)."""
    evidence = tuple(Evidence(kind, rule, text) for rule, text in reasons)
    return Opinion(
        kind=kind,
        strength=strength,
        evidence=evidence,
        root=root,
        rank=rank,
        slots=slots,
        victim=victim,
        writer=writer,
    )


def rejected(kind: str, rule: str, text: str) -> Opinion:
    """The kind was considered, and this is why it is not the cause."""
    return Opinion(
        kind=kind, strength=Strength.UNKNOWN, evidence=(Evidence(kind, rule, text, is_for=False),), rank=99
    )


def names(values: tuple[str, ...] | list[str]) -> str:
    """Holders as a sentence names them."""
    return " and ".join(values) if values else "nobody"


def span(breach: Breach) -> str:
    """Slots of a breach in words."""
    slots = breach.slots.tolist()
    if len(slots) == 1:
        return f"slot {slots[0]}"
    if slots[-1] - slots[0] == len(slots) - 1:
        return f"slots {slots[0]}-{slots[-1]}"
    return f"{len(slots)} slots from {slots[0]} to {slots[-1]}"


def was(breach: Breach) -> str:
    """`slot 7 was`, `slots 8-15 were`."""
    return f"{span(breach)} {'was' if breach.slots.size == 1 else 'were'}"


def mark_text(mark: object) -> str:
    """A release or allocation, as facts of a breach hold it, in words."""
    if not isinstance(mark, dict):
        return "not recorded"
    by = mark.get("by") or "somebody"
    return f"step {mark.get('step')} by {by} ({mark.get('why')})"
