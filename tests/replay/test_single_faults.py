"""One fault at a time: a violation at the right slot with the right bits, and nothing else before it."""

from __future__ import annotations

import pytest

from kvcanary_cli.trace import events as ev
from tests.replay.driving import DEVICES, insert, one_request, replay_events, slots, small_header

# A's prompt is 5 tokens at slots 8-12, decode goes on at 13, 14, 15, 16; forward 0 is the prompt
VICTIM, POSITION = 10, 2
HEAD, TAIL = "HEAD_K_FULL", "TAIL_K_FULL"


@pytest.fixture(params=DEVICES)
def run(request):
    def replay(*added, at=2, events=None):
        stream = insert(one_request(), at, *added) if events is None else events
        return replay_events(small_header(), stream, request.param)

    return replay


def test_clean(run):
    found = run()
    assert found.signature() == []
    # prompt reads nothing; decode steps read 5, 6, 7, 8 slots, in HEAD and TAIL
    assert found.result.totals.entries == 2 * (5 + 6 + 7 + 8)


def test_byte_flip(run):
    found = run(ev.Kv(op="flip", slots=slots(VICTIM), byte=7, xor=16))
    assert found.signature() == [(step, TAIL, VICTIM, ("real_kv_hash",)) for step in (2, 3, 4)]
    assert (found.violations[0].rid, found.violations[0].row, found.violations[0].position) == (
        "A",
        1,
        POSITION,
    )


def test_token_flip(run):
    found = run(ev.Stamp(slot=VICTIM, field="token", xor=1))
    first = [row for row in found.signature() if row[0] == 2]
    assert first == [
        (2, HEAD, VICTIM, ("verify_token",)),
        (2, HEAD, VICTIM + 1, ("chain_hash",)),
        (2, TAIL, VICTIM, ("verify_token",)),
        (2, TAIL, VICTIM + 1, ("chain_hash",)),
    ]


def test_position_flip(run):
    found = run(ev.Stamp(slot=VICTIM, field="position", xor=8, buffer="tail"))
    assert [row for row in found.signature() if row[0] == 2] == [
        (2, TAIL, VICTIM, ("position",)),
        (2, TAIL, VICTIM + 1, ("chain_hash",)),
    ]
    assert found.violations[0].stored["position"] == POSITION ^ 8
    assert found.violations[0].expected["position"] == POSITION


def test_prev_hash_flip(run):
    found = run(ev.Stamp(slot=VICTIM, field="prev_hash", xor=1 << 40, buffer="head"))
    assert [row for row in found.signature() if row[0] == 2] == [
        (2, HEAD, VICTIM, ("chain_hash",)),
        (2, HEAD, VICTIM + 1, ("chain_hash",)),
    ]


def test_kv_hash_flip(run):
    found = run(ev.Stamp(slot=VICTIM, field="kv_hash", xor=1))
    assert found.signature() == [(step, TAIL, VICTIM, ("real_kv_hash",)) for step in (2, 3, 4)]


def test_page_table_entry_redirected(run):
    found = run(ev.Map(row=1, at=POSITION, slots=slots(40)))
    never_stamped = ("chain_hash", "position", "verify_token")
    assert [row for row in found.signature() if row[0] == 2 and row[1] == HEAD] == [
        (2, HEAD, VICTIM + 1, ("chain_hash",)),
        (2, HEAD, 40, never_stamped),
    ]


def test_wrong_position_written(run):
    events = one_request()
    last = events[-2]
    last.positions = [last.prefix[0] + 3]
    found = run(events=events)
    assert found.signature()[:2] == [
        (3, HEAD, 15, ("write_position",)),
        (3, TAIL, 15, ("write_position",)),
    ]
    assert [row for row in found.signature() if row[0] == 4] == [
        (4, HEAD, 15, ("position",)),
        (4, HEAD, 16, ("write_position",)),
        (4, TAIL, 15, ("position",)),
        (4, TAIL, 16, ("write_position",)),
    ]


def test_wrong_input_token(run):
    events = one_request()
    last = events[-2]
    last.tokens, last.expect = [7], [107]
    found = run(events=events)
    assert found.signature()[:2] == [(3, HEAD, 15, ("write_token",)), (3, TAIL, 15, ("write_token",))]
    assert (4, HEAD, 15, ("verify_token",)) in found.signature()
    assert found.violations[0].stored["token"] == 7
    assert found.violations[0].expected["token"] == 107


def test_slot_out_of_range(run):
    events = one_request()
    events[-2].slots = slots(64)
    found = run(events=events)
    out = ("slot_out_of_range",)
    assert found.signature()[:2] == [(3, HEAD, 64, out), (3, TAIL, 64, out)]
    # the next forward reads the slot that the table has now, and its own chain goes on from there
    assert {row[2] for row in found.signature() if row[0] == 4} == {64}


def test_negative_slot_is_skipped(run):
    events = one_request()
    events[-1].slots = slots(-1)
    found = run(events=events)
    assert found.signature() == []
