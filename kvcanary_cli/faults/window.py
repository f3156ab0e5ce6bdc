"""Faults of the sliding-window group: K14."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from msgspec.structs import replace

from kvcanary_cli.faults.guests import Guest, array
from kvcanary_cli.faults.scenes import find_scene
from kvcanary_cli.faults.stream import Fault, NotApplicable, Stream
from kvcanary_cli.trace import events as ev


def window_mismatch(stream: Stream) -> Generator[None, None, Fault]:
    """K14: window slots that a request still reads are mapped for somebody else too, or unmapped under it.

    Found by: `window-reused` at the mapping, and `verify_token`, `position`, `chain_hash` in the SWA group
    once the newcomer has written; or `window-unmapped` at the next forward.

    Silent: the full group; where they are unmapped, every check: no slot is damaged then.
    """
    if not stream.has_window:
        raise NotApplicable("it has no sliding-window group")
    unit = stream.unit
    scene = find_scene(stream, 4)
    holder, newcomer = scene.guest("holder", 3), scene.guest("newcomer", 1)
    holder.enter(scene.before)
    holder.forward(scene.before, 2 * unit + 1)
    newcomer.enter(scene.before)
    first = holder.decode(scene.cells[0])
    written = newcomer.decode(first, unit)
    newcomer.leave(lambda *events: stream.after(written, *events))
    for cell in scene.cells[1:]:
        holder.decode(cell)
    holder.leave(scene.after)
    yield
    window = stream.header.group("swa").window  # type: ignore[union-attr]
    # positions of the holder's second unit that its forward after `written` still reads
    start = max(unit, holder.length - len(scene.steps) + 2 - window)
    if stream.rng.random() < 0.5:
        return _reused(stream, holder, newcomer, start)
    return _unmapped(stream, holder, start)


def _reused(stream: Stream, holder: Guest, newcomer: Guest, start: int) -> Fault:
    """Map the newcomer's slots to window slots of the holder's second unit."""
    unit = stream.unit
    stolen = holder.windows[unit : 2 * unit]
    cell = newcomer.cells["windows"]
    cell.event = replace(cell.event, swa=array(stolen))
    return Fault(
        slots=stolen[start - unit :],
        side=stolen[: start - unit],
        at=newcomer.forwards[0],
        rid=holder.rid,
        writer=newcomer.rid,
        found=cell,
        group="swa",
        variant="reused",
    )


def _unmapped(stream: Stream, holder: Guest, start: int) -> Fault:
    """Take the mapping of the holder's second unit away for one forward."""
    unit = stream.unit
    full, windows = array(holder.own[unit : 2 * unit]), array(holder.windows[unit : 2 * unit])
    read = holder.forwards[1]
    (gone,) = stream.before(read, ev.SwaMap(full=full, swa=np.zeros_like(full)))
    stream.after(read, ev.SwaMap(full=full, swa=windows))
    return Fault(
        slots=holder.own[start : 2 * unit],
        side=holder.own[unit:start],
        at=gone,
        rid=holder.rid,
        writer=holder.rid,
        found=read,
        is_damaged=False,
        hits_window=False,
        variant="unmapped",
    )
