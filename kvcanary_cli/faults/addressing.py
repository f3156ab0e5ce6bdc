"""Faults of the page table and of addresses: K10 to K13."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
from msgspec.structs import replace

from kvcanary_cli.faults.guests import Guest, array
from kvcanary_cli.faults.ownership import Lane, Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.scenes import Scene, find_scene
from kvcanary_cli.faults.stream import Fault, NotApplicable, Stream
from kvcanary_cli.faults.victims import next_read, private_victim
from kvcanary_cli.trace import events as ev


def table_changed_midflight(stream: Stream) -> Generator[None, None, Fault]:
    """K10: for one forward a row holds the entries of another request's row, afterwards its own again.

    Found by: `row-changed-by-other` at the change; `verify_token` on the other request's slots where tokens
    differ; one `chain_hash` later, on the slot that was written from the foreign seed.

    Silent: every check in the other request's row: no slot is damaged where it is its owner's.
    """
    step, (lane, other, foreign, own, written) = stream.pick(
        stream.middle(), partial(_row_pairs, stream), "no two requests are as long at the same time"
    )
    yield
    cell = stream.cell(step)
    (change,) = stream.before(cell, ev.Map(row=lane.row, at=0, slots=array(foreign), by=other))
    stream.after(cell, ev.Map(row=lane.row, at=0, slots=array(own)))
    differing = [slot for slot, mine in zip(foreign, own, strict=True) if slot != mine]
    return Fault(
        slots=differing,
        at=change,
        rid=lane.rid,
        writer=other,
        found=change,
        is_damaged=False,
        side=[*own, *written],
    )


def _row_pairs(
    stream: Stream, step: Step, state: Ownership
) -> list[tuple[Lane, str, list[int], list[int], list[int]]]:
    """A lane, a request at least as long, that one's slots as far as the lane reads, its own, and those it writes."""
    found = []
    event = stream.cell(step).event
    for lane in step.lanes:
        if lane.prefix < 2 or next_read(stream, lane, step) is None:
            continue
        own = state.slots_of(lane.rid, 0, lane.prefix)
        for rid in sorted(state.row_of):
            if rid == lane.rid or stream.is_used(rid) or state.length[rid] < lane.prefix:
                continue
            foreign = state.slots_of(rid, 0, lane.prefix)
            if _is_whole(stream, state, foreign) and _tells(state, lane, rid, own, foreign):
                written = state.lane_slots(event, lane).tolist()
                found.append((lane, rid, foreign.tolist(), own.tolist(), written))
    return found


def _is_whole(stream: Stream, state: Ownership, slots: np.ndarray) -> bool:
    """Whether every slot is written, unused by faults, and mapped as far as window layers read."""
    window = stream.header.group("swa").window if stream.has_window else 0  # type: ignore[union-attr]
    read = slots[-window:].tolist() if window else []
    return all(slot in state.content and slot not in stream.used for slot in slots.tolist()) and all(
        slot in state.swa_of for slot in read
    )


def _tells(state: Ownership, lane: Lane, rid: str, own: np.ndarray, foreign: np.ndarray) -> bool:
    """Whether the two rows differ in slots that hold different tokens."""
    mine, theirs = state.tokens(lane.rid, 0, lane.prefix), state.tokens(rid, 0, lane.prefix)
    return any(a != b and s != t for a, b, s, t in zip(mine, theirs, own, foreign, strict=True))


def leftover_tail(stream: Stream) -> Generator[None, None, Fault]:
    """K11: a reused row keeps a column of its former occupant, and its new request writes there.

    The slots in question belong to somebody else by then.

    Found by: `leftover` (or `write-foreign`) at the forward; `real_kv_hash` on them at its TAIL if their
    owner is in it; then as K01.

    Silent: the writer's own slots; the slot after those that were hit is a shadow.
    """
    scene = find_scene(stream, 6)
    unit = stream.unit
    former = scene.guest("former", 3)
    former.enter(scene.before)
    former.forward(scene.before, 2 * unit + 1)
    former.leave(scene.before)
    stale = former.own[2 * unit :]
    victim = scene.guest("owner", own=[*scene.take(1), *stale, *scene.take(1)])
    victim.enter(scene.before)
    victim.forward(scene.before, 2 * unit)
    writer = scene.guest("successor", own=[*former.own[: 2 * unit], *scene.take(1)], row=former.row)
    writer.enter(scene.before)
    writer.forward(scene.before, 2 * unit)
    first = victim.decode(scene.cells[0])
    written = writer.decode(first, max(1, unit - 2))
    writer.leave(partial(stream.after, written))
    for cell in scene.cells[1:]:
        victim.decode(cell)
    victim.leave(scene.after)
    yield
    fresh = writer.own[2 * unit :]
    slots = stale[: max(1, unit - 2)]
    writer.redirect(written, slots)
    _unallocate(stream, writer, fresh)
    return Fault(
        slots=slots, at=written, rid=victim.rid, writer=writer.rid, found=written, involved=[former.rid]
    )


def _unallocate(stream: Stream, guest: Guest, slots: list[int]) -> None:
    """A guest that never got these slots: they are neither allocated nor mapped nor given up."""
    for name in ("alloc", "map", "free"):
        cell = guest.cells[name]
        kept = [slot for slot in cell.event.slots.tolist() if slot not in slots]
        cell.event = replace(cell.event, slots=array(kept))
    for name in ("windows", "close"):
        if name in guest.cells:
            cell = guest.cells[name]
            stays = ~np.isin(cell.event.full, array(slots))
            cell.event = replace(cell.event, full=cell.event.full[stays], swa=cell.event.swa[stays])


def address_mixup(stream: Stream) -> Generator[None, None, Fault]:
    """K12: a forward writes at a fixed distance from the slots that the row names.

    Found by: `write-outside-row`; `real_kv_hash` on the slots that were hit, at TAIL if their owner is in the
    forward, then `verify_token`, `position`, `chain_hash`; the skipped slots look never stamped, or old.

    Silent: everything else; the slots after both runs are shadows (`chain_hash`, `write_position`).
    """
    unit = stream.unit
    victim = private_victim(stream, spare=2)
    writer = victim.scene.guest("stray", 2)
    writer.enter(partial(stream.before, victim.first))
    start = unit + unit // 2
    writer.forward(partial(stream.before, victim.first), start)
    count = same_distance(writer.own[start:], victim.slots[unit // 2 : unit - 1])
    written = writer.decode(victim.first, count)
    writer.leave(partial(stream.after, writer.decode(victim.then)))
    yield
    skipped, hit = writer.own[start : start + count], victim.slots[unit // 2 : unit // 2 + count]
    writer.redirect(written, hit)
    return Fault(slots=[*hit, *skipped], at=written, rid=victim.rid, writer=writer.rid, found=written)


def same_distance(right: list[int], wrong: list[int]) -> int:
    """How many leading slots of two lists are equally far from each other; at least 1."""
    distances = [a - b for a, b in zip(right, wrong, strict=False)]
    return next((at for at, distance in enumerate(distances) if distance != distances[0]), len(distances))


def boundary_arithmetic(stream: Stream) -> Generator[None, None, Fault]:
    """K13: the first token of a new page goes one slot too low, or to the page beside.

    Found by: `write-outside-row`; `real_kv_hash` on the slot that was hit, at TAIL if its owner is in the
    forward, then `verify_token`, `position`, `chain_hash`; the skipped slot looks never stamped, or old.

    Silent: everything else; the slots after both are shadows (`chain_hash`, `write_position`).
    """
    size, unit = stream.header.pool.page_size, stream.unit
    if size == 1:
        raise NotApplicable("its pages have one slot, so that there are no page edges")
    scene = find_scene(
        stream, 5, fits=lambda scene, state: bool(_neighbours(scene)), lack="no two free pages are neighbours"
    )
    low, high = stream.rng.choice(_neighbours(scene))
    scene.units.remove(low)
    scene.units.remove(high)
    owner = scene.guest("owner", own=[*low, *scene.take(2)])
    writer = scene.guest("stray", own=[*scene.take(1), *high])
    owner.enter(scene.before)
    owner.forward(scene.before, 2 * unit)
    writer.enter(scene.before)
    writer.forward(scene.before, unit)
    first = owner.decode(scene.cells[0])
    written = writer.decode(first)
    for cell in scene.cells[1:]:
        owner.decode(cell)
    writer.leave(partial(stream.after, writer.decode(scene.cells[1])))
    owner.leave(scene.after)
    yield
    is_low = stream.rng.random() < 0.5
    hit = high[0] - (1 if is_low else size)
    writer.redirect(written, [hit])
    return Fault(
        slots=[hit, high[0]],
        at=written,
        rid=owner.rid,
        writer=writer.rid,
        found=written,
        variant="slot" if is_low else "page",
    )


def _neighbours(scene: Scene) -> list[tuple[list[int], list[int]]]:
    """Free units one of which begins where the other ends."""
    by_end = {unit[-1]: unit for unit in scene.units}
    return sorted((by_end[unit[0] - 1], unit) for unit in scene.units if unit[0] - 1 in by_end)
