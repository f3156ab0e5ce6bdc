"""Several forwards as one: a request that decoded twenty tokens one by one may as well have prefilled them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcanary_cli.trace import events as ev

FLAT = ("tokens", "slots", "expect")
SAME = ("byte_salt", "chain_positions")


@dataclass(slots=True)
class _Lane:
    prefix: int
    length: int = 0
    flat: dict[str, list[int]] = field(default_factory=dict)


def places_of(events: Sequence[ev.Event]) -> list[int]:
    """Places of the forwards."""
    return [index for index, event in enumerate(events) if isinstance(event, ev.Forward)]


def fused(events: Sequence[ev.Event], places: Sequence[int], ends: Collection[int]) -> list[ev.Event] | None:
    """The events with runs of forwards made into one, which stands where the last of them stood.

    Args:
        places: of the forwards.
        ends: those of them that end a run; the last one always does.

    Returns None where two forwards of a run can't be one.
    """
    runs: list[list[int]] = [[]]
    for place in places:
        runs[-1].append(place)
        if place in ends:
            runs.append([])
    changed = list(events)
    gone: set[int] = set()
    for run in runs:
        if len(run) > 1:
            one = fuse([events[place] for place in run])
            if one is None:
                return None
            changed[run[-1]] = one
            gone.update(run[:-1])
    return [event for index, event in enumerate(changed) if index not in gone]


def fuse(forwards: Sequence[Any]) -> ev.Forward | None:
    """One forward that writes what these wrote, row by row; None where they don't follow on each other."""
    first = forwards[0]
    has = {key: getattr(first, key) is not None for key in FLAT}
    lanes: dict[int, _Lane] = {}
    for forward in forwards:
        if not _is_plain(forward, first, has) or not _append(forward, lanes):
            return None
    if not lanes:
        return None
    parts: dict[str, Any] = {
        key: [value for lane in lanes.values() for value in lane.flat[key]] for key in FLAT if has[key]
    }
    if has["slots"]:
        parts["slots"] = np.array(parts["slots"], np.int64)
    return ev.Forward(
        rows=list(lanes),
        prefix=[lane.prefix for lane in lanes.values()],
        lens=[lane.length for lane in lanes.values()],
        byte_salt=first.byte_salt,
        chain_positions=first.chain_positions,
        t=forwards[-1].t,
        **parts,
    )


def _is_plain(forward: ev.Forward, first: ev.Forward, has: dict[str, bool]) -> bool:
    """Whether a forward has nothing that belongs to one launch alone."""
    is_alike = all(getattr(forward, key) == getattr(first, key) for key in SAME)
    is_like = all((getattr(forward, key) is not None) == there for key, there in has.items())
    return is_alike and is_like and forward.positions is None and forward.pad_writes is None


def _append(forward: ev.Forward, lanes: dict[int, _Lane]) -> bool:
    lens = forward.lens if forward.lens is not None else [1] * len(forward.rows)
    start = 0
    for index, (row, prefix, length) in enumerate(zip(forward.rows, forward.prefix, lens, strict=True)):
        kept = length if forward.accepted is None else forward.accepted[index]
        if row:
            lane = lanes.setdefault(row, _Lane(prefix))
            if prefix != lane.prefix + lane.length or kept != length:
                return False
            lane.length += length
            for key in FLAT:
                values = getattr(forward, key)
                if values is not None:
                    part = values[start : start + length]
                    lane.flat.setdefault(key, []).extend(part if isinstance(part, list) else part.tolist())
        start += length
    return True
