"""Rows, addresses and reports that overflow: C5 to C7."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
from msgspec.structs import replace

from kvcanary_cli.faults.guests import array
from kvcanary_cli.faults.lanes import with_slots
from kvcanary_cli.faults.ownership import Lane, Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.scenes import Scene, room
from kvcanary_cli.faults.sources import need_bytes
from kvcanary_cli.faults.stream import Fault, Stream
from kvcanary_cli.faults.victims import next_read
from kvcanary_cli.trace import events as ev

MAX_BEYOND = 1000
OVERFLOW = 3  # times as many violations as the log has rows
MIN_SLOTS = 12


def row_width(stream: Stream) -> Generator[None, None, Fault]:
    """C5: a request maps reserved slots past the end of its row, over the first columns of the next row.

    After two forwards of the next row's request, that row is written anew.

    Found by: `spill` at the mapping; then, for the request of the next row, the never-stamped look or a
    foreign chain in these columns.

    Silent: the slots of both requests, which are intact; the first one after the spilled columns is a shadow.
    """
    step, (lane, neighbour, own, then, scene) = stream.pick(
        stream.middle(),
        partial(_rows_in_a_row, stream),
        "no two requests are in neighbouring rows for two forwards",
    )
    (reserved,) = scene.units[:1]
    row = lane.row - 1
    cell, last = stream.cell(step), stream.cell(then)
    stream.before(cell, ev.Alloc(to=neighbour, slots=array(reserved)))
    if stream.has_window:
        windows = array(scene.take_windows(len(reserved)))
        stream.before(cell, ev.SwaMap(full=array(reserved), swa=windows))
    at = stream.header.pool.row_width - len(reserved)
    (mapped,) = stream.before(cell, ev.Map(row=row, at=at, slots=array(reserved), by=neighbour))
    if stream.has_window:
        stream.after(last, ev.SwaMap(full=array(reserved), swa=np.zeros(len(reserved), np.int64)))
    (freed,) = stream.after(last, ev.Free(by=neighbour, slots=array(reserved)))
    yield
    count = stream.rng.randint(1, len(reserved) - 1)
    mapped.event = replace(mapped.event, at=at + count)
    stream.before(freed, ev.Map(row=lane.row, at=0, slots=array(own)))
    return Fault(
        slots=reserved[len(reserved) - count :],
        at=mapped,
        rid=lane.rid,
        writer=neighbour,
        found=mapped,
        is_damaged=False,
        side=[*own[:count], *reserved],
    )


def _rows_in_a_row(
    stream: Stream, step: Step, state: Ownership
) -> list[tuple[Lane, str, list[int], Step, Scene]]:
    """A lane, the request of the row before it, the lane's slots, its next forward, and room for a unit till then."""
    survey, found = stream.survey, []
    for lane in step.lanes:
        then, neighbour = next_read(stream, lane, step), state.rows.get(lane.row - 1)
        if then is None or neighbour is None or stream.is_used(neighbour) or lane.prefix <= stream.unit:
            continue
        reach = max(state.length[neighbour] + stream.unit, lane.prefix)
        stays = any(s.begin < step.index and s.end > then.index for s in survey.by_rid.get(neighbour, ()))
        scene = room(stream, state, survey.steps[step.number : then.number + 1], 1)
        if scene is not None and stays and reach + 2 * stream.unit <= stream.header.pool.row_width:
            own = state.slots_of(lane.rid, 0, lane.prefix).tolist()
            found.append((lane, neighbour, own, then, scene))
    return found


def address_range(stream: Stream) -> Generator[None, None, Fault]:
    """C6: the address of a written token overflows, so that the forward writes past the pool.

    Found by: `slot-out-of-range` and bit 64 at the write; then the skipped slot looks never stamped, or old.

    Silent: everything else; the slot after it is a shadow (`write_position`).
    """
    step, (lane, slots, kept) = stream.pick(
        stream.middle(), partial(_lanes_read_again, stream), "no request is read again after a forward"
    )
    cell = stream.cell(step)
    (state,) = [state for _, state in stream.visit([step])]
    stream.before(cell, ev.Map(row=lane.row, at=lane.prefix, slots=array(slots)))
    cell.event = with_slots(cell.event, state)
    yield
    written = cell.event.slots.copy()
    written[lane.first + kept - 1] = stream.header.pool.slots + stream.rng.randrange(MAX_BEYOND)
    cell.event = replace(cell.event, slots=written)
    return Fault(
        slots=[slots[kept - 1]],
        at=cell,
        rid=lane.rid,
        writer=lane.rid,
        found=cell,
        side=[int(written[lane.first + kept - 1])],
    )


def _lanes_read_again(stream: Stream, step: Step, state: Ownership) -> list[tuple[Lane, list[int], int]]:
    """Lanes with the slots that they write, and how many of their tokens stay."""
    event, found = stream.cell(step).event, []
    for lane in step.lanes:
        kept = event.accepted[lane.index] if event.accepted is not None else lane.count
        if kept < 1 or next_read(stream, lane, step) is None:
            continue
        slots = state.lane_slots(event, lane).tolist()
        if all(slot > 0 and slot not in stream.used for slot in slots):
            found.append((lane, slots, kept))
    return found


def report_saturation(stream: Stream) -> Generator[None, None, Fault]:
    """C7: one cause damages more slots at once than the violation log has rows.

    The header gets a log of a few rows; an unlogged writer replaces the bytes of a stretch of slots.

    Found by: the count of the log, which exceeds its rows; `real_kv_hash` alone on the slots, at TAIL.

    Silent: the ledger, and every structural check.
    """
    need_bytes(stream)
    step, (rid, slots) = stream.pick(
        stream.middle(), partial(_stretches, stream), f"no request reads {MIN_SLOTS} slots twice"
    )
    stream.header = replace(stream.header, ring_capacity=len(slots) // OVERFLOW)
    yield
    (damage,) = stream.before(stream.cell(step), ev.Kv(op="write", slots=array(slots)))
    return Fault(slots=slots, at=damage, rid=rid, hits_window=False, also=["K21"])


def _stretches(stream: Stream, step: Step, state: Ownership) -> list[tuple[str, list[int]]]:
    """Requests that read a dozen slots here and once more, with those slots."""
    found = []
    for lane in step.lanes:
        if lane.prefix < MIN_SLOTS or next_read(stream, lane, step) is None:
            continue
        slots = state.slots_of(lane.rid, 0, lane.prefix).tolist()
        good = [slot for slot in slots if slot in state.content and slot not in stream.used]
        if len(good) >= MIN_SLOTS:
            found.append((lane.rid, good))
    return found
