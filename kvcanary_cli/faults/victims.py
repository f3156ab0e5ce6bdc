"""Requests that are harmed: one of the trace where one fits, else a guest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcanary_cli.faults.ownership import Lane, Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.scenes import Scene, find_scene, room
from kvcanary_cli.faults.stream import Cell, NotApplicable, Stream

VICTIM_UNITS = (
    3  # a guest victim has two full units and a started one, so that a good slot follows each full one
)
VICTIM_STEPS = 3


@dataclass(kw_only=True, slots=True)
class Victim:
    """A request with a unit of written slots that only it holds, and that it reads twice more.

    Attributes:
        slots: the unit; `at` is the position of its first slot, and positions after it are written too.
        alloc: the event that handed them to it.
        first, then: forwards in which it reads them.
        scene: the stretch from `first` to `then`, with spare units for others.
    """

    rid: str
    slots: list[int]
    at: int
    alloc: Cell
    first: Cell
    then: Cell
    scene: Scene


def private_victim(stream: Stream, *, spare: int) -> Victim:
    """A victim with room for `spare` units of others beside it.

    Raises: NotApplicable when neither the trace's requests nor guests fit.
    """
    try:
        return _of_the_trace(stream, spare)
    except NotApplicable:
        return _guest_victim(stream, spare)


def _of_the_trace(stream: Stream, spare: int) -> Victim:
    survey = stream.survey

    def look(step: Step, state: Ownership) -> list[Victim]:
        found = []
        for lane in step.lanes:
            then = next_read(stream, lane, step)
            units = private_units(stream, state, lane.rid, lane.prefix) if then is not None else []
            if then is None or not units:
                continue
            scene = room(stream, state, survey.steps[step.number : then.number + 1], spare)
            if scene is None:
                continue
            at, slots = stream.rng.choice(units)
            alloc = allocation(stream, slots, step)
            if alloc is not None:
                first, last = stream.cell(step), stream.cell(then)
                found.append(
                    Victim(rid=lane.rid, slots=slots, at=at, alloc=alloc, first=first, then=last, scene=scene)
                )
        return found

    return stream.pick(stream.middle(), look, "no request has slots of its own")[1]


def allocation(stream: Stream, slots: Sequence[int], step: Step) -> Cell | None:
    """The event before a forward that handed out all these slots at once; None if there is no such event."""
    places = {
        max((at for at in stream.survey.allocated.get(slot, ()) if at < step.index), default=-1)
        for slot in slots
    }
    place = places.pop()
    return stream.cells[place] if not places and place >= 0 else None


def next_read(stream: Stream, lane: Lane, step: Step) -> Step | None:
    """The next forward of a lane's request; None if it has no further one, or belongs to another fault."""
    if not lane.rid or stream.is_used(lane.rid):
        return None
    session = stream.survey.session(lane.rid, step.number)
    later = session.later(step.number) if session is not None else []
    return stream.survey.steps[later[0]] if later else None


def private_units(stream: Stream, state: Ownership, rid: str, prefix: int) -> list[tuple[int, list[int]]]:
    """Whole units that only `rid` holds, with a written position after each: (first position, slots)."""
    unit = stream.unit
    slots = state.slots_of(rid, 0, prefix).tolist()
    return [
        (at, slots[at : at + unit])
        for at in range(0, prefix - unit, unit)
        if is_private(stream, state, rid, slots[at : at + unit])
    ]


def is_private(stream: Stream, state: Ownership, rid: str, slots: Sequence[int]) -> bool:
    """Whether only `rid` holds these slots, they are written, and no earlier fault has them."""
    return all(
        slot not in stream.used and slot in state.content and state.holders_of(slot) == {rid}
        for slot in slots
    )


def _guest_victim(stream: Stream, spare: int) -> Victim:
    scene = find_scene(stream, VICTIM_UNITS + spare, steps=VICTIM_STEPS)
    guest = scene.guest("lodger", VICTIM_UNITS)
    guest.enter(scene.before)
    guest.forward(scene.before, 2 * stream.unit + 1)
    first, then, *_ = [guest.decode(cell) for cell in scene.cells]
    guest.leave(scene.after)
    at = stream.rng.choice((0, stream.unit))
    return Victim(
        rid=guest.rid,
        slots=guest.slots[at : at + stream.unit],
        at=at,
        alloc=guest.cells["alloc"],
        first=first,
        then=then,
        scene=scene,
    )
