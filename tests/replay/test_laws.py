"""The laws of the fault taxonomy, each as a test of what checks show and of what the diagnosis makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.trace import events as ev
from tests.replay.driving import DEVICES, insert, one_request, replay_events, slots, small_header

HEAD, TAIL = "HEAD_K_FULL", "TAIL_K_FULL"


@pytest.fixture(params=DEVICES)
def run(request):
    return lambda events, **header: replay_events(small_header(**header), events, request.param)


def second_owner(first: int, prompt: int, *, truth: bool = True, row: int = 2) -> list[ev.Event]:
    """B is handed slots from `first` on, which A holds, and writes its prompt there."""
    tokens = [900 + position for position in range(prompt)]
    events: list[ev.Event] = [ev.Bind(row=row, rid="B"), ev.Alloc(to="B", slots=np.arange(first, first + 4))]
    if truth:
        events.insert(1, ev.Truth(rid="B", at=0, tokens=tokens))
    span = np.arange(first, first + prompt)
    return [*events, ev.Forward(rows=[row], prefix=[0], lens=[prompt], tokens=tokens, slots=span)]


def test_law_1_chain_damage_points_one_slot_too_far(run):
    """The run is consistent with itself, the chain breaks at the first good slot after it: a shadow."""
    found = run(insert(one_request(), 1, *second_owner(8, 4)))
    assert (2, HEAD, 12, ("chain_hash",)) in found.signature()
    (incident,) = found.result.incidents
    assert (incident.kind, incident.slots, incident.shadows) == ("K01", [8, 9, 10, 11], [12])


def test_law_2_alignment_hides_damage(run):
    """B's run starts at position 0 of both and swallows all that A had: no check without truth says a word."""
    events = [event for event in one_request(0, prompt=4) if not isinstance(event, ev.Truth)]
    events += second_owner(8, 4, truth=False)
    events.append(ev.Alloc(to="A", slots=np.arange(12, 16)))
    events.append(ev.Forward(rows=[1], prefix=[4], tokens=[1], slots=slots(12)))
    found = run(events)
    assert found.signature() == []
    (incident,) = found.result.incidents
    assert (incident.kind, incident.slots, incident.seen) == ("K01", [8, 9, 10, 11], None)


def test_law_3_the_byte_window_is_short(run):
    """A foreign write shows by its bytes at TAIL of that forward, to a victim in that batch; not one step later."""
    events = insert(one_request(), 1, ev.Bind(row=2, rid="B"), ev.Alloc(to="B", slots=np.arange(8, 12)))
    shared = [event for event in events if isinstance(event, ev.Forward)][1]
    shared.rows, shared.prefix, shared.lens = [1, 2], [5, 0], [1, 4]
    shared.tokens, shared.slots = [105, 900, 901, 902, 903], slots(13, 8, 9, 10, 11)
    found = run(events)
    at_write = [row for row in found.signature() if row[0] == 1]
    assert at_write == [(1, TAIL, slot, ("real_kv_hash",)) for slot in (8, 9, 10, 11)]
    later = {reason for row in found.signature() if row[0] > 1 for reason in row[3]}
    assert "real_kv_hash" not in later


def test_law_4_never_stamped_slots_have_a_recognisable_look(run):
    """Slots 9 and 10 were skipped: the first fails its chain, both their positions, none its bytes."""
    events = one_request()
    events[3].slots = slots(8, -1, -1, 11, 12)
    events[3].prefix, events[3].lens = [0], [5]
    mapped = [*events[:3], ev.Map(row=1, at=0, slots=np.arange(8, 13)), *events[3:]]
    found = run(mapped)
    first = {
        (slot, reasons) for step, launch, slot, reasons in found.signature() if (step, launch) == (1, HEAD)
    }
    assert first == {
        (9, ("chain_hash", "position", "verify_token")),
        (10, ("position", "verify_token")),
        (11, ("chain_hash",)),
    }


def test_law_5_stamps_that_travel_with_the_bytes_tell_by_position_alone(run):
    """What was at positions 4 to 7 lands at 0 to 3 with its stamps: positions are off by 4, bytes agree."""
    move = [ev.Offload(key="h", slots=np.arange(12, 16)), ev.Reload(key="h", slots=np.arange(8, 12))]
    found = run(insert(one_request(), 4, *move))
    moved = {
        (slot, reasons) for step, launch, slot, reasons in found.signature() if (step, launch) == (4, TAIL)
    }
    assert {slot for slot, _ in moved} == {8, 9, 10, 11, 12}
    assert all(
        "position" in reasons and "real_kv_hash" not in reasons for slot, reasons in moved if slot < 12
    )


def test_law_6_two_writers_of_one_slot_are_told_by_the_slot(run):
    events = [
        *one_request(0),
        ev.Bind(row=2, rid="B"),
        ev.Alloc(to="B", slots=np.arange(40, 44)),
        ev.Forward(rows=[1, 2], prefix=[5, 0], lens=[1, 1], tokens=[105, 900], slots=slots(40, 40)),
    ]
    assert "two-writers" in {breach.rule for breach in run(events).result.ledger.breaches}


def test_law_7_byte_damage_never_cascades(run):
    found = run(insert(one_request(), 2, ev.Kv(op="flip", slots=slots(9), byte=0, xor=1)))
    assert {slot for _, _, slot, _ in found.signature()} == {9}
    assert found.result.incidents[0].shadows == []


def test_law_7_stamp_damage_cascades_exactly_one_slot(run):
    found = run(insert(one_request(), 2, ev.Stamp(slot=9, field="position", xor=32)))
    assert {slot for _, _, slot, _ in found.signature()} == {9, 10}
    (incident,) = found.result.incidents
    assert (incident.kind, incident.slots, incident.shadows) == ("K21", [9], [10])


def test_law_8_a_shared_slot_is_one_incident(run):
    """Five readers of a damaged prefix slot are five affected requests of one fault."""
    tokens = [100 + position for position in range(4)]
    events: list[ev.Event] = [*one_request(0)]
    events.append(ev.Publish(rid="A", at=0, slots=np.arange(8, 12)))
    rows = list(range(2, 7))
    for row in rows:
        rid = f"R{row}"
        events += [ev.Bind(row=row, rid=rid), ev.Truth(rid=rid, at=0, tokens=[*tokens, 600 + row])]
        events += [ev.Share(rid=rid, at=0, slots=np.arange(8, 12))]
        events += [ev.Alloc(to=rid, slots=np.arange(12 + 4 * row, 16 + 4 * row))]
    events.append(ev.Kv(op="zero", slots=slots(9)))
    written = slots(*(12 + 4 * row for row in rows))
    events.append(ev.Forward(rows=rows, prefix=[4] * 5, slots=written))
    found = run(events, pool=ev.Pool(slots=64, page_size=4, rows=8, row_width=16))
    assert len(found.violations) == 5
    (incident,) = found.result.incidents
    assert (incident.kind, incident.slots) == ("K21", [9])
    assert sorted(incident.readers) == ["R2", "R3", "R4", "R5", "R6"]
