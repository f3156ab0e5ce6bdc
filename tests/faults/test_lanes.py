"""One more lane in a forward, and what a trace leaves to defaults written out."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.faults.lanes import has_room, positions_of, tokens_of, with_lane, with_slots
from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.sim.tokens import own_tokens
from kvcanary_cli.trace import events as ev


def slots(*numbers):
    return np.array(numbers, np.int64)


def header(**capacities):
    pool = ev.Pool(slots=64, rows=9, row_width=16)
    return ev.Header(
        format="kvcanary-trace",
        version=1,
        pool=pool,
        capacities=ev.Capacities(**capacities) if capacities else None,
    )


FULL = ev.Forward(
    mode="mixed",
    rows=[3, 4, 0],
    prefix=[2, 0, 0],
    lens=[1, 2, 1],
    tokens=[10, 20, 21, 0],
    positions=[2, 0, 1, 0],
    slots=slots(5, 6, 7, 0),
    expect=[10, -1, 21, 0],
    accepted=[1, 2, 1],
    width=4,
    pad_writes=slots(9, 9),
    pad_lanes=[2, 3],
)


def test_a_lane_goes_before_padded_ones():
    more = with_lane(FULL, row=5, prefix=7, tokens=[30, 31], slots=[40, 41])
    assert (more.rows, more.prefix, more.lens) == ([3, 4, 5, 0], [2, 0, 7, 0], [1, 2, 2, 1])
    assert more.tokens == [10, 20, 21, 30, 31, 0]
    assert more.positions == [2, 0, 1, 7, 8, 0]
    assert more.slots.tolist() == [5, 6, 7, 40, 41, 0]
    assert more.expect == [10, -1, 21, 30, 31, 0]
    assert more.accepted == [1, 2, 2, 1]
    assert (more.width, more.pad_lanes) == (4, [3, 4])
    assert FULL.rows == [3, 4, 0]


def test_what_is_absent_stays_absent():
    more = with_lane(ev.Forward(rows=[3], prefix=[2]), row=5, prefix=7, tokens=[30], slots=[40])
    assert more.rows == [3, 5]
    left = ("lens", "tokens", "positions", "slots", "expect", "accepted", "width", "pad_lanes")
    assert all(getattr(more, name) is None for name in left)


def test_several_tokens_need_lens_and_a_wider_graph():
    more = with_lane(
        ev.Forward(rows=[3], prefix=[2], width=1), row=5, prefix=7, tokens=[30, 31], slots=[40, 41]
    )
    assert (more.lens, more.width) == ([1, 2], 2)


@pytest.mark.parametrize(
    ("capacities", "room"),
    [
        ({}, True),
        ({"write_req_capacity": 4}, True),
        ({"write_req_capacity": 3}, False),
        ({"write_entry_capacity": 6}, True),
        ({"write_entry_capacity": 5}, False),
        ({"verify_capacity": 9}, True),
        ({"verify_capacity": 8}, False),
    ],
)
def test_room(capacities, room):
    assert has_room(header(**capacities), FULL, count=2, prefix=7) is room


def test_width_counts_as_lanes():
    narrow = ev.Forward(rows=[3], prefix=[2], width=8)
    assert not has_room(header(write_req_capacity=7), narrow, count=1, prefix=0)


@pytest.mark.parametrize("mode", ["idle", "draft"])
def test_no_room_in_forwards_of_other_models(mode):
    assert not has_room(header(), ev.Forward(rows=[3], prefix=[2], mode=mode), count=1, prefix=0)
    assert not has_room(header(), ev.Forward(rows=[0], prefix=[0]), count=1, prefix=0)


def bound():
    state = Ownership(header())
    for event in (
        ev.Bind(row=3, rid="A"),
        ev.Truth(rid="A", at=0, tokens=[70, 71, 72, 73]),
        ev.Map(row=3, at=0, slots=slots(5, 6, 7)),
    ):
        state.apply(event)
    return state


def test_defaults_written_out():
    forward = ev.Forward(rows=[3, 4, 0], prefix=[1, 0, 0], lens=[2, 1, 1])
    state = bound()
    assert with_slots(forward, state, {4: [8]}).slots.tolist() == [6, 7, 8, 0]
    assert with_slots(forward, state).slots.tolist() == [6, 7, 0, 0]
    assert positions_of(forward) == [1, 2, 0, 0]
    assert tokens_of(forward, state, 0)[:2] == [71, 72]
    assert tokens_of(forward, state, 1)[:2] == [72, 73]
    unnamed = own_tokens("", 0, 1, seed=0).tolist()
    assert tokens_of(forward, state, 0)[2:] == [*unnamed, 0]


def test_what_is_written_out_already_is_kept():
    state = bound()
    assert with_slots(FULL, state) is FULL
    assert tokens_of(FULL, state, 0) == FULL.tokens
    assert positions_of(FULL) == FULL.positions
