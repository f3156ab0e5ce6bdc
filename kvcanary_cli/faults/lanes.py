"""Lanes of a forward: one more, or what the trace leaves to defaults written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.trace import events as ev


def has_room(header: ev.Header, forward: ev.Forward, *, count: int, prefix: int) -> bool:
    """Whether one more lane with `count` tokens after `prefix` keeps a forward inside its capacities."""
    if forward.mode in ("idle", "draft") or not any(forward.rows):
        return False
    stated = header.capacities or ev.Capacities()
    lens = _lens(forward)
    lanes = len(forward.rows) + 1
    entries = prefix + sum(p for row, p in zip(forward.rows, forward.prefix, strict=True) if row)
    needs = (
        (max(lanes, forward.width or 0), stated.write_req_capacity),
        (sum(lens) + count, stated.write_entry_capacity),
        (entries, stated.verify_capacity),
    )
    return all(limit is None or need <= limit for need, limit in needs)


def with_lane(
    forward: ev.Forward, *, row: int, prefix: int, tokens: Sequence[int], slots: Sequence[int]
) -> ev.Forward:
    """The forward with one more lane, before its padded lanes."""
    lens, count = _lens(forward), len(tokens)
    at = next((index for index, other in enumerate(forward.rows) if not other), len(forward.rows))
    first = sum(lens[:at])

    def flat(values: list[int] | None, more: Sequence[int]) -> list[int] | None:
        return None if values is None else [*values[:first], *more, *values[first:]]

    def lane(values: list[int], value: int) -> list[int]:
        return [*values[:at], value, *values[at:]]

    changes: dict[str, object] = {
        "rows": lane(forward.rows, row),
        "prefix": lane(forward.prefix, prefix),
        "tokens": flat(forward.tokens, tokens),
        "positions": flat(forward.positions, range(prefix, prefix + count)),
        "expect": flat(forward.expect, tokens),
    }
    if forward.lens is not None or count != 1:
        changes["lens"] = lane(lens, count)
    if forward.slots is not None:
        changes["slots"] = np.insert(forward.slots, first, np.array(slots, np.int64))
    if forward.accepted is not None:
        changes["accepted"] = lane(forward.accepted, count)
    if forward.width is not None:
        changes["width"] = max(forward.width, len(forward.rows) + 1)
    if forward.pad_lanes is not None:
        changes["pad_lanes"] = [number + (number >= at) for number in forward.pad_lanes]
    return replace(forward, **changes)


def with_slots(
    forward: ev.Forward, state: Ownership, others: Mapping[int, Sequence[int]] | None = None
) -> ev.Forward:
    """The forward with its slots written out; padded lanes write slot 0.

    Args:
        state: right before it.
        others: slots by column of rows that the state does not know.
    """
    if forward.slots is not None:
        return forward
    slots = np.zeros(sum(_lens(forward)), np.int64)
    for lane in state.lanes(forward):
        named = (others or {}).get(lane.row)
        own = state.lane_slots(forward, lane) if named is None else named[lane.prefix :][: lane.count]
        slots[lane.first : lane.first + lane.count] = own
    return replace(forward, slots=slots)


def tokens_of(forward: ev.Forward, state: Ownership, offset: int) -> list[int]:
    """Input ids of a forward, flat; `offset` is the header's token_position_offset."""
    if forward.tokens is not None:
        return list(forward.tokens)
    tokens = [0] * sum(_lens(forward))
    for lane in state.lanes(forward):
        start = lane.prefix + offset
        tokens[lane.first : lane.first + lane.count] = state.tokens(lane.rid, start, start + lane.count)
    return tokens


def positions_of(forward: ev.Forward) -> list[int]:
    """Positions of a forward, flat."""
    if forward.positions is not None:
        return list(forward.positions)
    starts = zip(forward.prefix, _lens(forward), strict=True)
    return [position for prefix, count in starts for position in range(prefix, prefix + count)]


def _lens(forward: ev.Forward) -> list[int]:
    return forward.lens if forward.lens is not None else [1] * len(forward.rows)
