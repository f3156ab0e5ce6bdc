"""Odd but possible streams on which a replay once differed from the format's words; each in its smallest form."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.kernels.consts import BIT_CHAIN_HASH, BIT_KV_HASH, BIT_OUT_OF_RANGE, BIT_POSITION
from kvcanary_cli.trace import events as ev
from tests.replay.driving import Found, replay_events, slots, small_header

WIDTH = 16


def both_ways(events: list[ev.Event], header: ev.Header | None = None) -> list[tuple[int, int, int]]:
    """(step, slot, bits) of every violation row, found the same with and without incremental verification."""
    head = small_header() if header is None else header
    full, incremental = (replay_events(head, events, incremental=way) for way in (False, True))
    assert rows_of(incremental) == rows_of(full)
    return rows_of(full)


def rows_of(found: Found) -> list[tuple[int, int, int]]:
    return sorted((b.step, int(r[1]), int(r[7])) for b in found.batches for r in b.rows)


def test_columns_past_a_row_are_verified_each_time():
    first_row = [ev.Forward(rows=[2], prefix=[0], lens=[1], slots=slots(9))]
    # row 1 reads its columns 15 (unmapped) and 16, which is row 2's first: position 16 is not what stands there
    reads = [ev.Forward(rows=[1], prefix=[WIDTH + 1], lens=[0])] * 2
    assert both_ways(first_row + reads) == [(step, 9, BIT_POSITION) for step in (1, 1, 2, 2)]


def test_columns_past_the_table_are_out_of_range_each_time():
    rows = both_ways([ev.Forward(rows=[3], prefix=[WIDTH + 1], lens=[0])] * 2)
    assert rows == [(step, -1, BIT_OUT_OF_RANGE) for step in (0, 0, 1, 1)]


def test_a_good_read_past_a_row_proves_nothing_about_the_next_row():
    spilled = [
        ev.Forward(rows=[1], prefix=[0], lens=[WIDTH + 1], slots=slots(*range(8, 9 + WIDTH))),
        ev.Forward(rows=[1], prefix=[WIDTH + 1], lens=[0]),
    ]
    own = [ev.Forward(rows=[2], prefix=[1], lens=[0])]
    assert both_ways(spilled + own) == [(2, 8 + WIDTH, BIT_CHAIN_HASH | BIT_POSITION)] * 2


def test_one_row_in_two_lanes_maps_slot_0_and_then_another():
    twice = ev.Forward(rows=[1, 1], prefix=[0, 0], lens=[1, 1], slots=slots(0, 9))
    assert both_ways([twice, ev.Forward(rows=[1], prefix=[1], slots=slots(10))]) == []


def test_two_full_slots_of_one_map_event_share_a_window_slot():
    header = small_header(
        groups=[ev.Group(kind="full"), ev.Group(kind="swa", window=4, slots=16)],
        sources=[ev.Source(name="w", bytes_per_slot=16, hashed_bytes=16, group="swa")],
    )
    events: list[ev.Event] = [
        ev.SwaMap(full=slots(8, 12), swa=slots(5, 5)),
        ev.Forward(rows=[1], prefix=[0], slots=slots(8)),
        ev.Forward(rows=[1], prefix=[1], lens=[0]),
        ev.Kv(op="zero", slots=slots(5), group="swa"),
        ev.Forward(rows=[1], prefix=[1], lens=[0]),
    ]
    assert both_ways(events, header) == [(2, 5, BIT_KV_HASH)]


def test_full_slot_0_mapped_to_a_window_slot_is_read_by_every_unmapped_column():
    header = small_header(
        groups=[ev.Group(kind="full"), ev.Group(kind="swa", window=4, slots=16)],
        sources=[ev.Source(name="w", bytes_per_slot=16, hashed_bytes=16, group="swa")],
    )
    # column 0 reads slot 5: zeros, good but for their chain until bytes are written there
    reads = ev.Forward(rows=[1], prefix=[1], lens=[0])
    events = [
        ev.SwaMap(full=slots(0), swa=slots(5)),
        reads,
        ev.Kv(op="write", slots=slots(5), group="swa"),
        reads,
    ]
    assert [bits for _, slot, bits in both_ways(events, header) if slot == 5] == [1, 1, 1, 5]


@pytest.mark.parametrize(("named", "bits"), [((8, 8), []), ((8, 8, 8), [(1, 8, BIT_KV_HASH)])])
def test_every_element_of_a_flip_flips(named, bits):
    events: list[ev.Event] = [
        ev.Forward(rows=[1], prefix=[0], slots=slots(8)),
        ev.Kv(op="flip", slots=slots(*named), byte=3, xor=4),
        ev.Forward(rows=[1], prefix=[1], lens=[0]),
    ]
    assert both_ways(events) == bits


def test_a_delivery_continues_the_row_though_the_tokens_before_it_are_given():
    def landed(*before: ev.Event) -> list[tuple[int, int, int]]:
        return both_ways(
            [
                ev.Bind(row=1, rid="A"),
                *before,
                ev.Xfer(id="t", op="done", rid="A", at=1, tokens=[4, 5], slots=slots(9)),
                ev.Map(row=1, at=1, slots=slots(9)),
                ev.Forward(rows=[1], prefix=[2], lens=[0]),
            ]
        )

    assert landed(ev.Forward(rows=[1], prefix=[0], tokens=[7], slots=slots(8))) == []
    # without a previous slot there are only the tokens; slot 0 there leaves the chain unchecked
    assert landed() == []


def test_a_delivery_does_not_land_in_another_group_than_it_was_addressed_to():
    header = small_header(
        groups=[ev.Group(kind="full"), ev.Group(kind="swa", window=4, slots=16)], sources=[]
    )
    events = [
        ev.Xfer(id="t", op="start", rid="A", slots=slots(40)),
        ev.Xfer(id="t", op="done", tokens=[1], group="swa"),
    ]
    with pytest.raises(InputError, match='lands in group "swa", its start addresses slots of group "full"'):
        replay_events(header, events)


def test_truth_of_an_ended_request_lasts_until_its_name_is_used_again():
    header = small_header(token_position_offset=1)
    before = [ev.Bind(row=1, rid="A"), ev.Truth(rid="A", at=0, tokens=list(range(WIDTH + 1)))]
    writes = [ev.Forward(rows=[1], prefix=[0], lens=[WIDTH], slots=slots(*range(8, 8 + WIDTH)))]
    reads = [ev.Forward(rows=[1], prefix=[WIDTH], lens=[0])]
    assert both_ways([*before, ev.End(rid="A", why="done"), *writes, *reads], header) == []
