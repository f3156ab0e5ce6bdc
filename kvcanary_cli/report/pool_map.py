"""Where in the pool an incident lies: pages around it, and the whole pool in four rows of 64 cells."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcanary_cli.ledger.records import SlotFacts
from kvcanary_cli.replay.incidents import Incident
from kvcanary_cli.replay.run import ReplayResult
from kvcanary_cli.report.text import ranges

PAGES_AROUND = 2
MAX_CELLS = 64  # slots of a page that are drawn; the rest is a number
ROWS, CELLS = 4, 64


def neighbourhood(result: ReplayResult, incident: Incident) -> list[dict[str, Any]]:
    """Pages around the first damaged slot, one cell a slot, as they stand at the end of the run."""
    group = result.layout.group(incident.group)
    size = result.layout.page_size
    width = size if size > 1 else 16  # single slots are drawn in rows, which says more than one cell a line
    if not incident.slots or not 0 <= incident.slots[0] < group.num_slots:
        return []
    middle = incident.slots[0] // width
    damaged, shadows = set(incident.slots), set(incident.shadows)
    rows = []
    for page in range(
        max(0, middle - PAGES_AROUND), min(-(-group.num_slots // width), middle + PAGES_AROUND + 1)
    ):
        slots = range(page * width, min((page + 1) * width, group.num_slots))
        facts = [result.ledger.slot(incident.group, slot) for slot in slots]
        cells = "".join(_cell(f, damaged if incident.is_damaged else set(), shadows) for f in facts)
        rows.append(
            {
                "page": page * width // size,
                "first_slot": slots.start,
                "cells": cells[:MAX_CELLS],
                "is_damaged": bool(damaged & set(slots)),
                "text": _page_text(facts),
            }
        )
    return rows


def _cell(facts: SlotFacts, damaged: set[int], shadows: set[int]) -> str:
    if facts.slot in damaged:
        return "X"
    if facts.slot in shadows:
        return "s"
    if not facts.holders:
        return "."
    return "o" if facts.last_checked_step is not None else "?"


def _page_text(facts: list[SlotFacts]) -> str:
    """Who holds a page, and which positions it was written for."""
    holders = list(dict.fromkeys(holder.name for f in facts for holder in f.holders))
    if not holders:
        return "free"
    positions = [
        f.stamp_writer.position for f in facts if f.stamp_writer and f.stamp_writer.position is not None
    ]
    named = " ".join(holders[:3]) + (f" and {len(holders) - 3} more" if len(holders) > 3 else "")
    if not positions:
        return named
    return f"{named} position {ranges([[min(positions), max(positions)]])}"


def heatmap(result: ReplayResult) -> dict[str, Any]:
    """The full pool in `ROWS` x `CELLS` cells; the worst state in a cell wins."""
    group = result.layout.groups[0]
    per_cell = max(1, -(-group.num_slots // (ROWS * CELLS)))
    used, checked = result.ledger.overview(group.kind)
    damaged = np.zeros(group.num_slots, np.bool_)
    for incident in result.incidents:
        if incident.is_damaged and incident.group == group.kind:
            damaged[[slot for slot in incident.slots if 0 <= slot < group.num_slots]] = True
    cells = "".join(
        _summary(used[at : at + per_cell], checked[at : at + per_cell], damaged[at : at + per_cell])
        for at in range(0, group.num_slots, per_cell)
    )
    rows = [
        {"first_slot": start * per_cell, "cells": cells[start : start + CELLS]}
        for start in range(0, len(cells), CELLS)
    ]
    return {"slots_per_cell": per_cell, "rows": rows}


def _summary(used: np.ndarray, checked: np.ndarray, damaged: np.ndarray) -> str:
    bad = int(damaged.sum())
    if bad:
        return str(bad) if bad < 10 else "#"
    if not used.any():
        return "."
    return "o" if checked[used].all() else "?"
