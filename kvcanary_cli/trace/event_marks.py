"""How a line of a KV event stream is told from one of a trace."""

from __future__ import annotations

from typing import Any

EVENT_NAMES = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
MARKERS = ("gap", "restart", "malformed")
"""Lines of a recording that are no batch."""


def looks_like_events(row: dict[str, Any]) -> bool:
    """Whether an object is a line of a KV event stream."""
    if isinstance(row.get("events"), list) and not {"ev", "requests", "messages"} & row.keys():
        return True
    event = row.get("event")
    if isinstance(event, dict) and isinstance(event.get("event"), dict) and "data" in event["event"]:
        return True
    return row.get("type", row.get("event_type")) in EVENT_NAMES or any(
        isinstance(row.get(marker), dict) and "seq" in row[marker] for marker in MARKERS
    )
