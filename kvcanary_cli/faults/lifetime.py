"""Faults of ownership and lifetime: K01 to K05."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from msgspec.structs import replace

from kvcanary_cli.faults.guests import Guest, array
from kvcanary_cli.faults.ownership import CACHE, Ownership
from kvcanary_cli.faults.prefixes import prefix_scene, quiet_units
from kvcanary_cli.faults.scenes import Scene, find_scene
from kvcanary_cli.faults.stream import Cell, Fault, NotApplicable, Stream
from kvcanary_cli.faults.victims import private_victim
from kvcanary_cli.trace import events as ev


def dual_owner(stream: Stream) -> Generator[None, None, Fault]:
    """K01: the allocator hands a unit that a live request holds to a newcomer too, which writes it.

    Found by: `alloc-held` at the allocation; `real_kv_hash` on the unit at TAIL of the newcomer's forward if
    the victim is in it; then `verify_token`, `position` where the two positions differ, `chain_hash` unless
    the unit starts both chains.

    Silent: everything else; the slot after the unit is a shadow.
    """
    victim = private_victim(stream, spare=1)
    newcomer = victim.scene.guest("newcomer", 1)
    newcomer.enter(partial(stream.before, victim.first))
    written = newcomer.decode(victim.first, stream.unit)
    newcomer.leave(partial(stream.after, written))
    yield
    newcomer.swap_slots(newcomer.own, victim.slots)
    return Fault(
        slots=victim.slots, at=written, rid=victim.rid, writer=newcomer.rid, found=newcomer.cells["alloc"]
    )


def double_free(stream: Stream) -> Generator[None, None, Fault]:
    """K02: a request that gave its slots up gives some of them up again, or names them twice in one list.

    Found by: `free-unheld` or `free-twice-in-list` at that event.

    Silent: every check; no slot is damaged.
    """
    cell, rid, slots = _released(stream)
    yield
    if stream.rng.random() < 0.5:
        (again,) = stream.after(cell, ev.Free(by=rid, slots=array(slots)))
        return Fault(
            slots=slots, at=again, rid=rid, writer=rid, found=again, is_damaged=False, variant="again"
        )
    event = cell.event
    cell.event = replace(event, slots=array([*event.slots.tolist(), *slots]))
    return Fault(slots=slots, at=cell, rid=rid, writer=rid, found=cell, is_damaged=False, variant="list")


def _released(stream: Stream) -> tuple[Cell, str, list[int]]:
    """A release that leaves whole units free: its cell, who does it, and one of the units.

    A trace without one gets a guest that comes and goes.
    """
    middle = stream.middle()
    last = middle[-1].index if middle else 0
    state, found = Ownership(stream.header), []
    for cell in stream.cells[:last]:
        event = cell.event
        state.apply(event)
        if not isinstance(event, ev.Free) or event.group != "full" or stream.is_used(event.by):
            continue
        free = [slot for slot in event.slots.tolist() if slot in state.free and slot not in stream.used]
        if len(free) >= stream.unit and len(free) == len(event.slots):
            found.append((cell, event.by, free))
    if not found:
        scene = find_scene(stream, 2, steps=1)
        guest = scene.guest("visitor", 2)
        guest.enter(scene.before)
        guest.forward(scene.before, stream.unit + 1)
        guest.leave(scene.after, "done")
        return guest.cells["free"], guest.rid, guest.own[: stream.unit]
    cell, rid, free = stream.rng.choice(found)
    at = stream.rng.randrange(len(free) // stream.unit) * stream.unit
    return cell, rid, free[at : at + stream.unit]


def stale_mapping(stream: Stream) -> Generator[None, None, Fault]:
    """K03: a live row, or the prefix cache, goes on naming a unit that was released and has a new owner.

    Found by: `row-names-released` at the first forward after the release, `tree-names-released` for the
    cache; once the new owner has written, `verify_token`, `position` and `chain_hash` on the unit, as in K01;
    a sweep shows `position` and `chain_hash` only.

    Silent: the new owner's allocation, which is legal; the slot after the unit is a shadow.
    """
    quiet: dict[int, list[list[int]]] = {}

    def fits(scene: Scene, state: Ownership) -> bool:
        begin = scene.steps[0].index
        quiet[begin] = quiet_units(stream, state, begin)
        return bool(quiet[begin])

    if stream.rng.random() < 0.5:
        try:
            scene = find_scene(stream, 1, steps=1, fits=fits)
        except NotApplicable:
            return (yield from _stale_row(stream))
        return (yield from _stale_entry(stream, scene, stream.rng.choice(quiet[scene.steps[0].index])))
    return (yield from _stale_row(stream))


def _stale_row(stream: Stream) -> Generator[None, None, Fault]:
    """K03 in a live row."""
    scene = find_scene(stream, 4)
    holder, heir = scene.guest("holder", 3), scene.guest("heir", 1)
    holder.enter(scene.before)
    holder.forward(scene.before, 2 * stream.unit + 1)
    heir.enter(scene.before)
    first = holder.decode(scene.cells[0])
    written = heir.forward(partial(stream.after, first), stream.unit)
    heir.leave(partial(stream.after, written))
    for cell in scene.cells[1:]:
        holder.decode(cell)
    holder.leave(scene.after)
    yield
    at = stream.rng.choice((0, stream.unit))
    slots = holder.own[at : at + stream.unit]
    kept = [slot for slot in holder.own if slot not in slots]
    stream.before(heir.cells["bind"], ev.Free(by=holder.rid, slots=array(slots)))
    heir.swap_slots(heir.own, slots)
    free = holder.cells["free"]
    free.event = replace(free.event, slots=array(kept))
    return Fault(slots=slots, at=written, rid=holder.rid, writer=heir.rid, found=first, variant="row")


def _stale_entry(stream: Stream, scene: Scene, slots: list[int]) -> Generator[None, None, Fault]:
    """K03 in the prefix cache: its hold is gone, its entry is not."""
    heir = scene.guest("heir", 1)
    heir.enter(scene.before)
    written = heir.forward(scene.before, stream.unit)
    heir.leave(scene.before)
    yield
    stream.before(heir.cells["bind"], ev.Free(by=CACHE, slots=array(slots)))
    heir.swap_slots(heir.own, slots)
    return Fault(
        slots=slots,
        at=written,
        writer=heir.rid,
        found=heir.cells["alloc"],
        involved=[CACHE],
        variant="tree",
    )


def early_shared_release(stream: Stream) -> Generator[None, None, Fault]:
    """K04: a request that shares a cached prefix is cancelled, and its exit also releases the others' hold.

    Found by: `free-unheld` at the second release (others hold the slots), `alloc-held` when they are handed
    out again; then, in every reader and in sweeps, as K01.

    Silent: the leaver's own release; the slots after the unit are shadows.
    """
    scene, prefix = prefix_scene(stream, 3, prefix_units=2)
    tokens = prefix.tokens
    leaver = scene.guest("leaver", 1, shared=prefix.slots, tokens=tokens)
    reader = scene.guest("reader", 1, shared=prefix.slots, tokens=tokens)
    heir = scene.guest("heir", 1)
    for guest in (leaver, reader):
        guest.enter(scene.before)
        guest.forward(scene.before, 1)
    leaver.leave(scene.before)
    heir.enter(scene.before)
    written = heir.forward(scene.before, stream.unit)
    heir.leave(scene.before)
    for cell in scene.cells:
        reader.decode(cell)
    reader.leave(scene.after)
    yield
    at = stream.rng.choice((0, stream.unit))
    slots = prefix.slots[at : at + stream.unit]
    (again,) = stream.after(leaver.cells["free"], ev.Free(by=leaver.rid, slots=array(slots)))
    heir.swap_slots(heir.own, slots)
    return Fault(
        slots=slots,
        at=written,
        rid=reader.rid,
        writer=heir.rid,
        found=again,
        involved=[leaver.rid, CACHE, *prefix.holders],
    )


def write_to_shared(stream: Stream) -> Generator[None, None, Fault]:
    """K05: a fork goes on in the partly filled last unit of its parent instead of in a copy.

    Found by: `write-shared` at the fork's forward; `verify_token` at the parent's next one, on the two slots
    that were written.

    Silent: `position`; the slot after them is a shadow (`chain_hash`).
    """
    unit = stream.unit
    scene = find_scene(stream, 5)
    parent = scene.guest("parent", 3)
    parent.enter(scene.before)
    parent.forward(scene.before, unit + 4)
    fork = scene.guest("fork", 2, shared=parent.own[:unit], tokens=parent.tokens[: unit + 1])
    fork.enter(scene.before)
    written = fork.forward(scene.before, 3)
    fork.leave(scene.before)
    for cell in scene.cells:
        parent.decode(cell)
    parent.leave(scene.after)
    yield
    tail = parent.own[unit : 2 * unit]
    _hold_instead(stream, fork, tail)
    offset = stream.header.token_position_offset
    slots = tail[1:3]
    written.event = replace(
        written.event,
        prefix=[unit + 1],
        lens=[2],
        slots=array(slots),
        tokens=fork.tokens[unit + 1 + offset : unit + 3 + offset],
    )
    return Fault(slots=slots, at=written, rid=parent.rid, writer=fork.rid, found=written)


def _hold_instead(stream: Stream, fork: Guest, tail: list[int]) -> None:
    """Let a fork hold its parent's last unit in place of units of its own."""
    fork.cells["alloc"].event = ev.Hold(to=fork.rid, slots=array(tail))
    fork.cells["map"].event = replace(fork.cells["map"].event, slots=array(tail))
    fork.cells["free"].event = replace(fork.cells["free"].event, slots=array([*fork.shared, *tail]))
    if fork.windows:
        stream.drop(fork.cells["windows"], fork.cells["close"])
