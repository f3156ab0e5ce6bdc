"""Short ways to write the events of a trace, and a request that is served without a fault."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcanary_cli.trace import events as ev


def s(*numbers: int | range) -> np.ndarray:
    """A slot list; ranges are runs."""
    flat = [n for item in numbers for n in (item if isinstance(item, range) else (item,))]
    return np.array(flat, np.int64)


def alloc(to: str, *slots: int | range, **more: Any) -> ev.Alloc:
    return ev.Alloc(to=to, slots=s(*slots), **more)


def free(by: str, *slots: int | range, **more: Any) -> ev.Free:
    return ev.Free(by=by, slots=s(*slots), **more)


def evict(*slots: int | range, **more: Any) -> ev.Evict:
    return ev.Evict(slots=s(*slots), **more)


def hold(to: str, *slots: int | range) -> ev.Hold:
    return ev.Hold(to=to, slots=s(*slots))


def share(rid: str, *slots: int | range, at: int = 0) -> ev.Share:
    return ev.Share(rid=rid, at=at, slots=s(*slots))


def publish(rid: str | None, *slots: int | range, at: int = 0, **more: Any) -> ev.Publish:
    return ev.Publish(rid=rid, at=at, slots=s(*slots), **more)


def bind(rid: str, row: int) -> ev.Bind:
    return ev.Bind(rid=rid, row=row)


def remap(row: int, at: int, *slots: int | range, by: str | None = None) -> ev.Map:
    return ev.Map(row=row, at=at, slots=s(*slots), by=by)


def forward(row: int, prefix: int, *slots: int | range, **more: Any) -> ev.Forward:
    """One lane that writes these slots."""
    named = s(*slots)
    return ev.Forward(rows=[row], prefix=[prefix], lens=[named.size], slots=named, **more)


def decode(*lanes: tuple[int, int, int], **more: Any) -> ev.Forward:
    """Lanes of (row, prefix, slot)."""
    return ev.Forward(
        rows=[lane[0] for lane in lanes],
        prefix=[lane[1] for lane in lanes],
        slots=s(*(lane[2] for lane in lanes)),
        **more,
    )


def served(rid: str, row: int, slots: range) -> list[ev.Event]:
    """A request takes a row and writes its prompt."""
    return [bind(rid, row), alloc(rid, slots), forward(row, 0, slots)]


def leaves(rid: str, row: int, *slots: int | range, why: str = "done") -> list[ev.Event]:
    """A request gives up its slots, its row, and ends."""
    return [free(rid, *slots), ev.Unbind(row=row), ev.End(rid=rid, why=why)]  # type: ignore[arg-type]
