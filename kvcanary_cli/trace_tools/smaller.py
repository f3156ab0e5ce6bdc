"""Smaller forms of a trace: requests cut short, pages left out, a pool without spare room, fewer keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace_tools.owners import Owners
from kvcanary_cli.trace_tools.pick import take_lanes

OPTIONAL: tuple[tuple[type, tuple[str, ...]], ...] = (
    (ev.Forward, ("tokens",)),
    (ev.Forward, ("expect",)),
    (ev.Forward, ("width",)),
    (ev.Forward, ("pad_writes", "pad_lanes")),
    (ev.Forward, ("accepted",)),
    (ev.Forward, ("mode",)),
    (ev.Publish, ("tokens",)),
    (ev.Publish, ("key",)),
)
"""Keys that a trace can do without, in the order in which leaving them out is tried."""


def without(events: Iterable[ev.Event], kind: type, keys: Sequence[str]) -> list[ev.Event]:
    """The events, those of one kind without these optional keys."""
    nothing = dict.fromkeys(keys)
    return [replace(event, **nothing) if type(event) is kind else event for event in events]  # type: ignore[type-var, call-arg]


def without_times(events: Iterable[ev.Event]) -> list[ev.Event]:
    """The events without their times."""
    return [replace(event, t=None) if event.t is not None else event for event in events]  # type: ignore[union-attr, type-var, call-arg]


def shortened(header: ev.Header, events: Sequence[ev.Event], rid: str, length: int) -> list[ev.Event]:
    """The events as if `rid` had no positions from `length` on; what it was given stays allocated."""
    owners, kept = Owners(header), []
    for event in events:
        left = _short(event, owners, rid, length)
        if left is not None:
            kept.append(left)
        owners.apply(event)
    return kept


def longest(header: ev.Header, events: Sequence[ev.Event]) -> dict[str, int]:
    """How many positions each request has at most, by its forwards."""
    owners = Owners(header)
    found: dict[str, int] = {}
    for event in events:
        if isinstance(event, ev.Forward):
            lens = event.lens if event.lens is not None else [1] * len(event.rows)
            for row, prefix, count in zip(event.rows, event.prefix, lens, strict=True):
                if row:
                    rid = owners.rid_of(row)
                    found[rid] = max(found.get(rid, 0), prefix + count)
        owners.apply(event)
    return found


def pages_of(events: Iterable[ev.Event], page_size: int) -> list[int]:
    """Pages of the full pool that are handed out or given back, ascending."""
    pages: set[int] = set()
    for event in events:
        if isinstance(event, _LISTS) and getattr(event, "group", "full") == "full":
            pages.update(np.unique(event.slots // page_size).tolist())
    return sorted(pages)


def with_pages(events: Iterable[ev.Event], pages: Iterable[int], page_size: int) -> list[ev.Event]:
    """The events with only these pages in the lists of `alloc`, `hold`, `free` and `evict`."""
    wanted = np.array(sorted(pages), np.int64)
    kept: list[ev.Event] = []
    for event in events:
        if isinstance(event, _LISTS) and getattr(event, "group", "full") == "full":
            stays = np.isin(event.slots // page_size, wanted)
            if not stays.any():
                continue
            if not stays.all():
                event = replace(event, slots=event.slots[stays])
        kept.append(event)
    return kept


def fitted(header: ev.Header, events: Iterable[ev.Event]) -> ev.Header:
    """The header with a pool and a page table just large enough; every slot and row keeps its number."""
    slot, row, column, window = 0, 1, 0, 0
    for event in events:
        for key in ("slots", "full", "from_", "pad_writes"):
            found = getattr(event, key, None)
            if found is not None and found.size:
                if getattr(event, "group", "full") == "swa":
                    window = max(window, int(found.max()))
                else:
                    slot = max(slot, int(found.max()))
        if isinstance(event, ev.SwaMap):
            window = max(window, int(event.swa.max()))
        if isinstance(event, ev.Stamp):
            slot, window = max(slot, event.slot), max(window, event.slot)
        if isinstance(event, ev.Forward):
            lens = event.lens if event.lens is not None else [1] * len(event.rows)
            row = max(row, *event.rows) if event.rows else row
            column = max([column, *(p + n for p, n in zip(event.prefix, lens, strict=True))])
        else:
            row = max(row, getattr(event, "row", 0))
        if isinstance(event, ev.Map | ev.Share):
            column = max(column, event.at + event.slots.size)
    size = header.pool.page_size

    def pages(last: int, most: int) -> int:
        return min(most, max(2, last // size + 1) * size)

    pool = replace(
        header.pool,
        slots=pages(slot, header.pool.slots),
        rows=min(header.pool.rows, row + 1),
        row_width=min(header.pool.row_width, max(1, column)),
    )
    groups = [
        replace(group, slots=pages(window if group.kind == "swa" else slot, group.slots))
        if group.slots is not None
        else group
        for group in header.groups
    ]
    return replace(header, pool=pool, groups=groups)


def _short(event: Any, owners: Owners, rid: str, length: int) -> Any | None:
    if isinstance(event, ev.Forward):
        return _short_forward(event, owners, rid, length)
    is_own = getattr(event, "rid", None) == rid
    if isinstance(event, ev.Map):
        is_own = owners.rid_of(event.row) == rid
    if not is_own or not isinstance(event, ev.Map | ev.Share | ev.Publish | ev.Truth):
        return event
    count = max(0, length - event.at)
    if not count:
        return None
    if isinstance(event, ev.Truth):
        return replace(event, tokens=event.tokens[:count])
    if isinstance(event, ev.Publish) and event.tokens is not None:
        event = replace(event, tokens=event.tokens[:count])
    return replace(event, slots=event.slots[:count])


def _short_forward(event: ev.Forward, owners: Owners, rid: str, length: int) -> ev.Forward | None:
    lens = event.lens if event.lens is not None else [1] * len(event.rows)
    is_mine = [bool(row) and owners.rid_of(row) == rid for row in event.rows]
    stays = [
        not mine or (p < length or (not n and p <= length))
        for mine, p, n in zip(is_mine, event.prefix, lens, strict=True)
    ]
    if not all(stays):
        left = take_lanes(event, stays)
        return left if any(left.rows) else None
    new = [min(n, length - p) if mine else n for mine, p, n in zip(is_mine, event.prefix, lens, strict=True)]
    if new == list(lens):
        return event
    flat = np.concatenate([np.arange(old) < kept for old, kept in zip(lens, new, strict=True)])
    return replace(event, lens=new, **_flat_parts(event, flat), **_kept_counts(event, new))


def _flat_parts(event: ev.Forward, flat: np.ndarray) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for key in ("tokens", "positions", "expect"):
        values = getattr(event, key)
        if values is not None:
            parts[key] = [value for value, stays in zip(values, flat.tolist(), strict=True) if stays]
    if event.slots is not None:
        parts["slots"] = event.slots[flat] if flat.any() else None
    return parts


def _kept_counts(event: ev.Forward, lens: list[int]) -> dict[str, Any]:
    if event.accepted is None:
        return {}
    return {"accepted": [min(a, n) for a, n in zip(event.accepted, lens, strict=True)]}


_LISTS = (ev.Alloc, ev.Hold, ev.Free, ev.Evict)
