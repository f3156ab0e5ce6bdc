"""The light ownership model and the survey, on small streams by hand and against the strict ledger."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.faults.places import survey
from kvcanary_cli.sim.tokens import own_tokens
from kvcanary_cli.trace import events as ev
from tests.faults.streams import made
from tests.sim.strict_ledger import Ledger


def header(*, page_size=1, width=16, state="empty", window=0):
    groups = [ev.Group(kind="full")] + ([ev.Group(kind="swa", window=window, slots=12)] if window else [])
    pool = ev.Pool(slots=24, page_size=page_size, rows=5, row_width=width)
    return ev.Header(format="kvcanary-trace", version=1, pool=pool, groups=groups, state=state)


def slots(*numbers):
    return np.array(numbers, np.int64)


def after(*events, **options):
    state = Ownership(header(**options))
    for event in events:
        state.apply(event)
    return state


def test_slots_are_free_until_handed_out_and_after_the_last_holder():
    state = after(page_size=4)
    assert state.free == set(range(4, 24))
    for event in (
        ev.Alloc(to="A", slots=slots(4, 5, 6, 7)),
        ev.Publish(rid="A", at=0, slots=slots(4, 5, 6, 7)),
        ev.Free(by="A", slots=slots(4, 5, 6, 7)),
    ):
        state.apply(event)
        assert not state.free & {4, 5, 6, 7}
    state.apply(ev.Evict(slots=slots(4, 5)))
    assert state.free & {4, 5, 6, 7} == {4, 5}
    assert state.holders_of(6) == {"cache"}
    assert state.cached == {6: (2, 5), 7: (3, 6)}


def test_nothing_is_free_where_the_state_is_unknown_or_lost():
    assert after(state="unknown").free == set()
    state = after(ev.Alloc(to="A", slots=slots(3)), ev.Gap(forwards=1))
    assert (state.free, state.holders_of(3)) == (set(), set())
    state.apply(ev.Free(by="A", slots=slots(3)))
    assert state.free == {3}


def test_rows_forget_at_bind_and_follow_moves():
    state = after(
        ev.Bind(row=1, rid="A"),
        ev.Map(row=1, at=0, slots=slots(3, 4)),
        ev.Forward(rows=[1], prefix=[0], lens=[2]),
        ev.Move(rid="A", row=2),
    )
    assert state.rows == {2: "A"}
    assert state.slots_of("A").tolist() == [3, 4]
    assert state.length["A"] == 2
    state.apply(ev.Bind(row=2, rid="B"))
    assert state.row_of == {"B": 2}
    assert state.row(2, 0, 3).tolist() == [0, 0, 0]


def test_forwards_fill_unmapped_columns_and_leave_mapped_ones():
    state = after(
        ev.Bind(row=1, rid="A"),
        ev.Map(row=1, at=1, slots=slots(9)),
        ev.Forward(rows=[1, 0], prefix=[0, 0], lens=[3, 1], slots=slots(5, 6, 7, 0), accepted=[2, 0]),
    )
    assert state.row(1, 0, 3).tolist() == [5, 9, 7]
    assert state.content == {5: ("A", 0), 6: ("A", 1), 7: ("A", 2)}
    assert state.length["A"] == 2


def test_skipped_tokens_map_nothing():
    state = after(ev.Bind(row=1, rid="A"), ev.Forward(rows=[1], prefix=[0], lens=[2], slots=slots(5, -1)))
    assert state.row(1, 0, 2).tolist() == [5, 0]


def test_columns_past_the_row_spill_into_the_next():
    state = after(ev.Bind(row=1, rid="A"), ev.Bind(row=2, rid="B"), width=4)
    state.apply(ev.Map(row=1, at=2, slots=slots(3, 4, 5, 6, 7)))
    assert state.row(1).tolist() == [0, 0, 3, 4]
    assert state.row(2).tolist() == [5, 6, 7, 0]


def test_window_slots_are_free_when_nothing_maps_to_them():
    state = after(ev.SwaMap(full=slots(3, 4), swa=slots(7, 7)), window=4)
    assert 7 not in state.window_free
    state.apply(ev.SwaMap(full=slots(3), swa=slots(0)))
    assert 7 not in state.window_free
    state.apply(ev.SwaMap(full=slots(4), swa=slots(8)))
    assert state.window_free == set(range(1, 12)) - {8}
    assert state.swa_of == {4: 8}


def test_tokens_are_the_truth_or_follow_the_rule():
    state = after(ev.Truth(rid="A", at=1, tokens=[70, 71]))
    made_up = own_tokens("A", 0, 5, seed=0).tolist()
    assert state.tokens("A", 0, 5) == [made_up[0], 70, 71, made_up[3], made_up[4]]
    assert state.tokens("B", 2, 3) == own_tokens("B", 2, 3, seed=0).tolist()


def test_lanes_of_a_forward():
    state = after(ev.Bind(row=1, rid="A"), ev.Bind(row=3, rid="B"))
    forward = ev.Forward(rows=[3, 1, 0], prefix=[4, 0, 0], lens=[2, 1, 1])
    found = [(lane.rid, lane.prefix, lane.count, lane.first, lane.index) for lane in state.lanes(forward)]
    assert found == [("B", 4, 2, 0, 0), ("A", 0, 1, 2, 1)]


def test_survey():
    events = [
        ev.Bind(row=1, rid="A"),
        ev.Alloc(to="A", slots=slots(3)),
        ev.Forward(rows=[1], prefix=[0], slots=slots(3)),
        ev.Bind(row=2, rid="B"),
        ev.Alloc(to="B", slots=slots(4)),
        ev.Forward(rows=[2], prefix=[0], slots=slots(4)),
        ev.Unbind(row=1),
        ev.Free(by="A", slots=slots(3)),
        ev.Bind(row=1, rid="A"),
        ev.Alloc(to="A", slots=slots(3)),
        ev.Forward(rows=[1, 2], prefix=[0, 1], slots=slots(3, 5)),
    ]
    found = survey(header(), events)
    stays = [(s.rid, s.row, s.begin, s.end, s.steps) for s in found.sessions]
    assert stays == [("A", 1, 0, 6, [0]), ("B", 2, 3, 11, [1, 2]), ("A", 1, 8, 11, [2])]
    assert [(step.number, step.index) for step in found.steps] == [(0, 2), (1, 5), (2, 10)]
    assert found.allocated == {3: [1, 9], 4: [4]}
    assert found.session("A", 0) is found.sessions[0]
    assert found.session("A", 1) is found.sessions[0]  # it stays, though it has no lane
    assert found.session("B", 0) is None
    assert found.session("A", 2) is found.sessions[2]
    assert found.names == {"A", "B"}


@pytest.mark.parametrize("name", ["decode", "mixed", "shared-prefix", "swa", "spec"])
def test_agrees_with_the_strict_ledger(name):
    head, events = made(name)
    state, ledger = Ownership(head), Ledger(head)
    for number, event in enumerate(events):
        state.apply(event)
        ledger.feed(event)
        if number % 7:
            continue
        held = {slot: names for slot, names in ledger.holders.items() if names}
        assert {slot: names for slot, names in state.holders.items() if names} == held
        assert state.free == set(range(head.pool.page_size, head.pool.slots)) - set(held)
        assert state.rows == ledger.row_rid
        assert set(state.cached) == set(ledger.cached)
        assert state.swa_of == ledger.swa_of
        for rid, row in state.row_of.items():
            columns = ledger.table[row]
            assert state.slots_of(rid).tolist() == [columns[at] for at in range(state.length[rid])]
