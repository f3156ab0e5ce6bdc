"""What is left of an event when only some requests are kept: its lanes and slots that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace_tools.owners import CACHE, NOBODY, Owners


def pick(header: ev.Header, events: Iterable[ev.Event], keep: Collection[str]) -> Iterator[ev.Event]:
    """The events of the kept actors; those of nobody, gaps and sweeps stay."""
    owners = Owners(header)
    kept = frozenset((*keep, CACHE, NOBODY))
    for event in events:
        left = pick_event(event, owners, kept)
        if left is not None:
            yield left
        owners.apply(event)


def pick_event(event: Any, owners: Owners, keep: Collection[str]) -> Any | None:
    """What is left of one event; None for nothing.

    Args:
        owners: as they are right before the event.
        keep: actors that stay; holds "" and `cache`.
    """
    rule = _RULES.get(type(event))
    return event if rule is None else rule(event, owners, keep)


def _by_rid(event: Any, owners: Owners, keep: Collection[str]) -> Any | None:
    return event if event.rid in keep else None


def _unbind(event: ev.Unbind, owners: Owners, keep: Collection[str]) -> Any | None:
    return event if owners.rid_of(event.row) in keep else None


def _by_holder(event: ev.Alloc | ev.Hold, owners: Owners, keep: Collection[str]) -> Any | None:
    return event if event.to in keep else None


def _map(event: ev.Map, owners: Owners, keep: Collection[str]) -> Any | None:
    return event if owners.rid_of(event.row) in keep and (event.by or NOBODY) in keep else None


def _publish(event: ev.Publish, owners: Owners, keep: Collection[str]) -> Any | None:
    if event.rid is not None:
        return event if event.rid in keep else None
    # positions count up along the list: it can be kept up to the first slot that goes
    mine = _owned(event.slots, "full", owners, keep)
    count = int(mine.size if mine.all() else np.argmin(mine))
    if not count:
        return None
    tokens = event.tokens[:count] if event.tokens is not None else None
    return replace(event, slots=event.slots[:count], tokens=tokens)


def _free(event: ev.Free, owners: Owners, keep: Collection[str]) -> Any | None:
    if event.by not in keep:
        return None
    return event if event.by != CACHE else _some(event, owners, keep)


def _some(event: Any, owners: Owners, keep: Collection[str]) -> Any | None:
    """The slots of kept owners."""
    mine = _owned(event.slots, event.group, owners, keep)
    if mine.all():
        return event
    return replace(event, slots=event.slots[mine]) if mine.any() else None


def _swa_map(event: ev.SwaMap, owners: Owners, keep: Collection[str]) -> Any | None:
    mine = _owned(event.full, "full", owners, keep)
    return replace(event, full=event.full[mine], swa=event.swa[mine]) if mine.any() else None


def _kv(event: ev.Kv, owners: Owners, keep: Collection[str]) -> Any | None:
    if event.by is not None:
        return event if event.by in keep else None
    mine = _owned(event.slots, event.group, owners, keep)
    if not mine.any():
        return None
    return replace(
        event, slots=event.slots[mine], from_=event.from_[mine] if event.from_ is not None else None
    )


def _stamp(event: ev.Stamp, owners: Owners, keep: Collection[str]) -> Any | None:
    return event if owners.owner_of(event.slot, event.group) in keep else None


def _whole(event: ev.Offload | ev.Reload, owners: Owners, keep: Collection[str]) -> Any | None:
    """Elements of a copy belong to those of its other side, so that it stays whole or goes."""
    return event if _owned(event.slots, event.group, owners, keep).any() else None


def _xfer(event: ev.Xfer, owners: Owners, keep: Collection[str]) -> Any | None:
    return event if owners.transfer_of(event) in keep else None


def _digest(event: ev.Digest, owners: Owners, keep: Collection[str]) -> Any | None:
    mine = _owned(event.slots, event.group, owners, keep)
    if not mine.any():
        return None
    hashes = [text for text, is_mine in zip(event.hash, mine.tolist(), strict=True) if is_mine]
    return replace(event, slots=event.slots[mine], hash=hashes)


def _forward(event: ev.Forward, owners: Owners, keep: Collection[str]) -> Any | None:
    lens = event.lens if event.lens is not None else [1] * len(event.rows)
    lanes, first = [], 0
    for row, length in zip(event.rows, lens, strict=True):
        slots = event.slots[first : first + length] if event.slots is not None else _NONE
        first += length
        is_padding = row == 0
        lanes.append(
            bool(_owned(slots, "full", owners, keep).all()) if is_padding else owners.rid_of(row) in keep
        )
    left = take_lanes(event, lanes)
    if left.pad_writes is not None:
        mine = _owned(left.pad_writes, "full", owners, keep)
        left = take_pad_writes(left, mine)
    has_work = any(row for row in left.rows) or left.pad_writes is not None
    had_work = any(row for row in event.rows)
    return left if has_work or not had_work else None


def take_lanes(event: ev.Forward, lanes: list[bool]) -> ev.Forward:
    """The forward with some of its lanes; pad writes of the others go with them."""
    if all(lanes):
        return event
    lens = event.lens if event.lens is not None else [1] * len(event.rows)
    chosen = [index for index, is_kept in enumerate(lanes) if is_kept]
    flat = np.repeat(np.array(lanes, np.bool_), lens)

    def by_lane(values: list[int] | None) -> list[int] | None:
        return None if values is None else [values[index] for index in chosen]

    def by_token(values: list[int] | None) -> list[int] | None:
        return None if values is None else [v for v, kept in zip(values, flat.tolist(), strict=True) if kept]

    slots = event.slots[flat] if event.slots is not None and flat.any() else None
    left = replace(
        event,
        rows=by_lane(event.rows),
        prefix=by_lane(event.prefix),
        lens=by_lane(event.lens),
        accepted=by_lane(event.accepted),
        tokens=by_token(event.tokens),
        positions=by_token(event.positions),
        expect=by_token(event.expect),
        slots=slots,
    )
    if event.pad_writes is None or event.pad_lanes is None:
        return left
    numbers = {old: new for new, old in enumerate(chosen)}
    left = take_pad_writes(left, np.array([lane in numbers for lane in event.pad_lanes], np.bool_))
    return replace(left, pad_lanes=[numbers[lane] for lane in left.pad_lanes] if left.pad_lanes else None)


def take_pad_writes(event: ev.Forward, kept: npt.NDArray[np.bool_]) -> ev.Forward:
    """The forward with some of its pad writes."""
    if event.pad_writes is None or kept.all():
        return event
    if not kept.any():
        return replace(event, pad_writes=None, pad_lanes=None)
    lanes = event.pad_lanes
    if lanes is not None:
        lanes = [lane for lane, is_kept in zip(lanes, kept.tolist(), strict=True) if is_kept]
    return replace(event, pad_writes=event.pad_writes[kept], pad_lanes=lanes)


def _owned(
    slots: npt.NDArray[np.int64], group: str, owners: Owners, keep: Collection[str]
) -> npt.NDArray[np.bool_]:
    return np.array([owners.owner_of(slot, group) in keep for slot in slots.tolist()], np.bool_)


_NONE = np.zeros(0, np.int64)
_RULES: dict[type, Callable[[Any, Owners, Collection[str]], Any | None]] = {
    ev.Bind: _by_rid,
    ev.Unbind: _unbind,
    ev.Move: _by_rid,
    ev.End: _by_rid,
    ev.Truth: _by_rid,
    ev.Alloc: _by_holder,
    ev.Hold: _by_holder,
    ev.Share: _by_rid,
    ev.Publish: _publish,
    ev.Free: _free,
    ev.Evict: _some,
    ev.Map: _map,
    ev.SwaMap: _swa_map,
    ev.Forward: _forward,
    ev.Kv: _kv,
    ev.Stamp: _stamp,
    ev.Offload: _whole,
    ev.Reload: _whole,
    ev.Xfer: _xfer,
    ev.Digest: _digest,
}
