"""Rules about the map from full slots to window slots (hybrid models)."""

from __future__ import annotations

from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import IntArray
from kvcanary_cli.ledger.rules.holders import as_fact
from kvcanary_cli.ledger.state import LedgerState, listed


def window_unmapped(
    state: LedgerState, where: Where, row: int, rid: str | None, slots: list[int], positions: list[int]
) -> None:
    """A forward reads positions inside the window whose window slot is 0: the layer skips them silently.

    Proven by the map and the row; reported once a request, its later forwards are counted. `slots` are the full
    slots. Source: taxonomy K14.
    """
    window = state.header.group("swa")
    breach = state.log.add(
        "window-unmapped",
        where,
        state.full,
        slots,
        actor=rid,
        row=row,
        positions=(min(positions), max(positions)),
        facts={
            "positions": listed(sorted(positions)),
            "count": len(positions),
            "window": window.window if window is not None else 0,
        },
        once_for=rid if rid is not None else row,
    )
    if breach is not None and isinstance(breach.facts["count"], int):
        breach.facts["count"] = max(breach.facts["count"], len(positions))


def window_reused(
    state: LedgerState, where: Where, slots: IntArray, full: IntArray, others: IntArray, *, how: str
) -> None:
    """A window slot is reached through two full slots, or through the map although it was released.

    Proven by the map's entries (`how` "two-full-slots", "written-through-old-map") or by the release ("released").
    Source: trace format, "Ownership"; taxonomy K14.
    """
    window = state.window
    if window is None:
        return
    new = state.holder_names(state.full, full.tolist())
    old = state.holder_names(state.full, others.tolist())
    state.log.add(
        "window-reused",
        where,
        window,
        slots,
        actor=new[0] if new else None,
        victims=old,
        facts={
            "how": how,
            "full": listed(full),
            "other_full": listed(others),
            "released": as_fact(window.released(int(slots[0]))),
        },
    )
