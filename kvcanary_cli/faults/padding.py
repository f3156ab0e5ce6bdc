"""Padded lanes that touch real slots: K15."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from msgspec.structs import replace

from kvcanary_cli.faults.guests import array
from kvcanary_cli.faults.lanes import has_room
from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.sources import need_bytes
from kvcanary_cli.faults.stream import Fault, Stream
from kvcanary_cli.faults.victims import next_read
from kvcanary_cli.trace import events as ev

MAX_SLOTS = 2


def pad_lane_write(stream: Stream) -> Generator[None, None, Fault]:
    """K15: in one or two forwards the padded part of a graph writes bytes over slots that a request reads.

    Found by: `pad-write` at each of them; `real_kv_hash` alone on these slots, at TAIL of the same forward
    and of all that follow.

    Silent: every structural check.
    """
    need_bytes(stream)
    lack = "no forward has room for a padded lane while a request is read twice"
    step, (rid, slots, then) = stream.pick(stream.middle(), partial(_read_slots, stream), lack)
    yield
    cells = [stream.cell(padded) for padded in (step, then) if _can_pad(stream, padded)]
    for cell in cells:
        cell.event = _padded(cell.event, slots)
    return Fault(slots=slots, at=cells[0], rid=rid, found=cells[0])


def _read_slots(stream: Stream, step: Step, state: Ownership) -> list[tuple[str, list[int], Step]]:
    """A request of a forward with room for a padded lane, up to two slots that it reads, and its next forward."""
    found: list[tuple[str, list[int], Step]] = []
    if not _can_pad(stream, step):
        return found
    for lane in step.lanes:
        then = next_read(stream, lane, step)
        if then is None:
            continue
        slots = state.slots_of(lane.rid, 0, lane.prefix).tolist()
        good = [slot for slot in slots if slot in state.content and slot not in stream.used]
        if good:
            at = stream.rng.randrange(len(good))
            found.append((lane.rid, good[at : at + stream.rng.randint(1, MAX_SLOTS)], then))
    return found


def _can_pad(stream: Stream, step: Step) -> bool:
    event = stream.cell(step).event
    return event.pad_writes is None and has_room(stream.header, event, count=0, prefix=0)


def _padded(forward: ev.Forward, slots: list[int]) -> ev.Forward:
    """The forward in a graph with a padded lane, whose kernel writes these slots."""
    lanes = len(forward.rows)
    width = max(forward.width or 0, lanes + 1)
    return replace(forward, width=width, pad_writes=array(slots), pad_lanes=[lanes] * len(slots))
