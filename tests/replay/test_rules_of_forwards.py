"""Rules of trace format 1 about rows, columns, padding, window maps, gaps and limits."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.replay import rows
from kvcanary_cli.replay.state import new_state
from kvcanary_cli.runtime.layout import layout_of
from kvcanary_cli.trace import events as ev
from tests.replay.driving import DEVICES, insert, one_request, replay_events, slots, small_header

HEAD, TAIL = "HEAD_K_FULL", "TAIL_K_FULL"


@pytest.fixture(params=DEVICES)
def run(request):
    def replay(events, header=None, **options):
        return replay_events(header or small_header(), events, request.param, **options)

    return replay


def test_slots_default_to_the_rows_entries(run):
    events = one_request()
    for event in events:
        if isinstance(event, ev.Forward):
            event.slots = None
    mapped = [*events[:3], ev.Map(row=1, at=0, slots=np.arange(8, 17)), *events[3:]]
    assert run(mapped).signature() == []


def test_a_lane_without_slots_is_an_input_error():
    events = [ev.Bind(row=1, rid="A"), ev.Forward(rows=[1], prefix=[0], lens=[2])]
    with pytest.raises(InputError) as caught:
        replay_events(small_header(), events)
    assert str(caught.value) == (
        "test.jsonl:3: $.slots: lane 0 writes column 0 of row 1, which names no slot, and the forward gives none"
    )


def test_leftovers_of_the_rows_former_request_are_replaced(run):
    again = [
        ev.Unbind(row=1),
        ev.Bind(row=1, rid="B"),
        ev.Truth(rid="B", at=0, tokens=[500, 501, 502]),
        ev.Forward(rows=[1], prefix=[0], lens=[2], slots=slots(40, 41)),
        ev.Forward(rows=[1], prefix=[2], slots=slots(42)),
    ]
    assert run([*one_request(), *again]).signature() == []


def test_a_mapped_column_stays_when_the_forward_writes_elsewhere(run):
    events = one_request()
    moved = [*events[:3], ev.Map(row=1, at=6, slots=slots(14)), *events[3:]]
    moved[-3].slots = slots(50)  # position 6
    found = run(moved)
    # the table still says 14, which nobody stamped
    assert (3, HEAD, 14, ("chain_hash", "position", "verify_token")) in found.signature()
    assert 50 not in {slot for _, _, slot, _ in found.signature()}


def test_a_row_may_move(run):
    assert run(_moved_at(2)).signature() == []


def _moved_at(forward: int) -> list[ev.Event]:
    out, count = [], 0
    for event in one_request():
        if isinstance(event, ev.Forward):
            if count == forward:
                out.append(ev.Move(rid="A", row=3))
            if count >= forward:
                event.rows = [3]
            count += 1
        out.append(event)
    return out


def test_a_prefix_can_be_shared_before_the_request_has_a_row(run):
    tokens = [100 + position for position in range(4)] + [700]
    events = [
        *one_request(),
        ev.Truth(rid="B", at=0, tokens=tokens),
        ev.Share(rid="B", at=0, slots=np.arange(8, 12)),
        ev.Bind(row=2, rid="B"),
        ev.Forward(rows=[2], prefix=[4], slots=slots(40)),
        ev.Forward(rows=[2], prefix=[5], tokens=[701], slots=slots(41)),
    ]
    assert run(events).signature() == []


def test_a_shared_slot_is_seen_by_each_reader(run):
    tokens = [100 + position for position in range(4)] + [700]
    events = [
        *one_request(),
        ev.Bind(row=2, rid="B"),
        ev.Truth(rid="B", at=0, tokens=tokens),
        ev.Share(rid="B", at=0, slots=np.arange(8, 12)),
        ev.Kv(op="zero", slots=slots(9)),
        ev.Forward(rows=[1, 2], prefix=[9, 4], slots=slots(17, 40)),
    ]
    found = run(events)
    assert sorted((v.launch, v.slot, v.rid) for v in found.violations) == [(TAIL, 9, "A"), (TAIL, 9, "B")]


def test_padded_lanes_write_bytes_and_no_stamps(run):
    events = one_request()
    events[-2].rows, events[-2].prefix, events[-2].lens = [1, 0], [7, 0], [1, 1]
    events[-2].slots = slots(15, 9)
    found = run(events)
    assert {(step, slot, reasons) for step, _, slot, reasons in found.signature()} == {
        (3, 9, ("real_kv_hash",)),
        (4, 9, ("real_kv_hash",)),
    }


def test_padded_writes_change_bytes_each_time(run):
    events = one_request()
    events[-2].pad_writes = slots(8, 8)
    found = run(events)
    assert [row[2] for row in found.signature()] == [8, 8]


def test_byte_salt_makes_other_bytes_for_the_same_chain(run):
    events = one_request()
    rewrite = ev.Forward(rows=[1], prefix=[2], lens=[3], slots=slots(10, 11, 12), byte_salt=5)
    assert run(insert(events, 2, rewrite)).signature() == []


def test_two_entries_of_one_slot_behave_as_lanes_in_order(run):
    """Seeds are read first: B's chain goes on from slot 12 as it was, though A rewrites 12 in that forward."""
    events = [
        *one_request(0),
        ev.Bind(row=2, rid="B"),
        ev.Truth(rid="B", at=0, tokens=[100, 101, 102, 103, 104, 900]),
        ev.Share(rid="B", at=0, slots=np.arange(8, 13)),
        ev.Forward(rows=[1, 2], prefix=[4, 5], lens=[1, 1], tokens=[777, 900], slots=slots(12, 40)),
        ev.Forward(rows=[2], prefix=[6], tokens=[901], slots=slots(41)),
    ]
    found = run(events)
    after = [row for row in found.signature() if row[0] == 2]
    assert (2, HEAD, 12, ("verify_token",)) in after
    assert (2, HEAD, 40, ("chain_hash",)) in after


def test_window_group_checks_the_window_alone(run):
    header = small_header(
        groups=[ev.Group(kind="full"), ev.Group(kind="swa", window=3, slots=32)],
        sources=[ev.Source(name="k", bytes_per_slot=32, hashed_bytes=32, group="swa")],
    )
    full = np.arange(8, 17)
    events = one_request()
    events.insert(3, ev.SwaMap(full=full, swa=full - 7))
    clean = run(events, header)
    assert clean.signature() == []
    assert clean.result.totals.entries == 2 * (5 + 6 + 7 + 8) + 2 * (3 * 4)
    outside = run(insert(events, 2, ev.Kv(op="zero", slots=slots(2), group="swa")), header)
    assert outside.signature() == []  # position 1 is outside of the window by then
    inside = run(insert(events, 2, ev.Kv(op="zero", slots=slots(6), group="swa")), header)
    assert {(launch, slot) for _, launch, slot, _ in inside.signature()} == {("TAIL_K_SWA", 6)}


def test_window_entries_mapped_to_zero_are_skipped(run):
    header = small_header(
        groups=[ev.Group(kind="full"), ev.Group(kind="swa", window=3, slots=32)],
        sources=[ev.Source(name="k", bytes_per_slot=32, hashed_bytes=32, group="swa")],
    )
    full = np.arange(8, 17)
    events = [*one_request()[:3], ev.SwaMap(full=full, swa=full - 7), *one_request()[3:]]
    evicted = insert(events, 3, ev.SwaMap(full=slots(8, 9, 10), swa=slots(0, 0, 0)))
    assert run(evicted, header).signature() == []


def test_token_offset_of_a_draft_pool(run):
    """With offset 1 the slot at position p holds the KV of the token at p + 1."""
    events = one_request()
    events[1].tokens = [99, *events[1].tokens]
    assert run(events, small_header(token_position_offset=1)).signature() == []


class TestSweeps:
    def published(self, *after: ev.Event) -> list[ev.Event]:
        return [*one_request(), ev.Publish(rid="A", at=0, slots=np.arange(8, 16)), *after]

    def test_clean(self, run):
        found = run([*self.published(), ev.Sweep()])
        assert found.signature() == []
        assert found.result.totals.sweeps == 1
        assert found.result.totals.entries == 2 * (5 + 6 + 7 + 8) + 8

    def test_idle_damage_is_found(self, run):
        found = run([*self.published(ev.Kv(op="flip", slots=slots(9), byte=0, xor=1)), ev.Sweep()])
        assert found.signature() == [(4, "SWEEP_K_FULL", 9, ("real_kv_hash",))]

    def test_evicted_slots_are_not_checked(self, run):
        events = self.published(ev.Evict(slots=np.arange(8, 12)), ev.Kv(op="zero", slots=np.arange(8, 12)))
        found = run([*events, ev.Sweep()])
        assert found.signature() == []
        assert found.result.totals.entries == 2 * (5 + 6 + 7 + 8) + 4

    def test_interval(self, run):
        events = insert(one_request(), 1, ev.Publish(rid="A", at=0, slots=np.arange(8, 12)))
        assert run(events, sweep_interval=2).result.totals.sweeps == 2

    def test_predecessor_is_the_slot_before_the_first(self, run):
        second = ev.Publish(rid="A", at=4, slots=np.arange(12, 16), after=9)
        events = [*one_request(), ev.Publish(rid="A", at=0, slots=np.arange(8, 12)), second, ev.Sweep()]
        assert run(events).signature() == [(4, "SWEEP_K_FULL", 12, ("chain_hash",))]

    def test_predecessor_comes_from_the_publishers_row(self, run):
        second = ev.Publish(rid="A", at=4, slots=np.arange(12, 16))
        events = [*one_request(), second, ev.Stamp(slot=11, field="token", xor=1), ev.Sweep()]
        assert run(events).signature() == [(4, "SWEEP_K_FULL", 12, ("chain_hash",))]

    def test_without_a_row_the_first_chain_is_not_checked(self, run):
        second = ev.Publish(at=4, slots=np.arange(12, 16))
        events = [*one_request(), second, ev.Stamp(slot=11, field="token", xor=1), ev.Sweep()]
        assert run(events).signature() == []


class TestGaps:
    def test_what_was_there_before_is_not_judged(self, run):
        damage = ev.Kv(op="zero", slots=slots(9))
        found = run(insert(one_request(), 3, damage, ev.Gap(forwards=2, why="queue full")))
        assert found.signature() == []
        totals = found.result.totals
        # forward 3 reads 7 old slots, forward 4 reads 8 of which one was written since
        assert totals.unjudged == 2 * (7 + 7)
        assert totals.gaps == [(2, 2, "queue full")]

    def test_what_is_written_later_is_judged(self, run):
        gap = ev.Gap(forwards=None)
        damage = ev.Kv(op="zero", slots=slots(15))
        events = insert(insert(one_request(), 3, gap), 4, damage)
        assert run(events).signature() == [(4, TAIL, 15, ("real_kv_hash",))]

    def test_an_old_column_is_not_judged_by_what_its_slot_holds_now(self, run):
        """Slot 9 went to B in the gap; whether A's row still names it is unknown."""
        events = one_request()
        new_owner = [
            ev.Gap(forwards=1),
            ev.Bind(row=2, rid="B"),
            ev.Forward(rows=[2], prefix=[0], tokens=[7], slots=slots(9)),
        ]
        assert run(insert(events, 3, *new_owner)).signature() == []

    def test_expected_ids_are_not_held_against_ids_that_were_lost(self, run):
        """B's truth fell into the gap, so what it is given stands for nothing that was expected of it."""
        lost = [
            ev.Gap(forwards=1),
            ev.Bind(row=2, rid="B"),
            ev.Forward(rows=[2], prefix=[0], expect=[7], slots=slots(40)),
        ]
        assert run([*one_request(), *lost]).signature() == []
        told = ev.Truth(rid="B", at=0, tokens=[8])
        events = [*one_request(), *lost[:2], told, lost[2]]
        assert [bits for *_, bits in run(events).signature()] == [("write_token",), ("write_token",)]

    def test_truth_is_not_held_against_who_may_have_taken_the_row(self, run):
        """Row 1 was A's before the gap; who writes it from its beginning now is not known."""
        unseen = [
            ev.Gap(forwards=None),
            ev.Forward(rows=[1], prefix=[0], lens=[2], tokens=[7, 8], slots=slots(40, 41)),
            ev.Forward(rows=[1], prefix=[2], tokens=[9], slots=slots(42)),
        ]
        assert run([*one_request(), *unseen]).signature() == []
        bound = [*one_request(), unseen[0], ev.Bind(row=1, rid="A"), *unseen[1:]]
        assert {bits for *_, bits in run(bound).signature()} == {("verify_token",)}

    def test_a_recorder_attached_to_a_running_engine(self, run):
        header = small_header(state="unknown")
        events = [ev.Bind(row=1, rid="A"), ev.Map(row=1, at=0, slots=np.arange(8, 14))]
        events.append(ev.Forward(rows=[1], prefix=[5], tokens=[7], slots=slots(13)))
        found = run(events, header)
        assert found.signature() == []
        assert found.result.totals.unjudged == 2 * 5


class TestCapacities:
    def test_each_limit(self):
        header = small_header(
            capacities=ev.Capacities(write_req_capacity=1, write_entry_capacity=4, verify_capacity=6)
        )
        events = one_request()
        events[-1].width = 2
        found = replay_events(header, events).result.capacity_violations
        assert [(v.step, v.capacity, v.need, v.limit, v.kind) for v in found] == [
            (0, "write_entry_capacity", 5, 4, "C2"),
            (3, "verify_capacity", 7, 6, "C4"),
            (4, "write_req_capacity", 2, 1, "C1"),
            (4, "verify_capacity", 8, 6, "C4"),
        ]
        assert found[0].server_message == (
            "kv-canary: forward_batch token count=5 exceeds pre-allocated write_entry_capacity=4; "
            "raise --chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args"
        )

    def test_nothing_is_checked_when_nothing_is_known(self):
        assert replay_events(small_header(), one_request()).result.capacity_violations == []


def test_limits_end_the_run(run):
    assert run(one_request(), limit_steps=2).result.totals.steps == 2
    second = [ev.Bind(row=2, rid="B"), ev.Forward(rows=[2], prefix=[0], slots=slots(40))]
    found = run([*one_request(), *second], limit_requests=1)
    assert (found.result.totals.steps, found.result.limited) == (5, {"requests": 1})


def test_stop_on_violation(run):
    found = run(insert(one_request(), 2, ev.Kv(op="zero", slots=slots(9))), stop_on_violation=True)
    assert (found.result.totals.steps, found.result.stopped) == (3, "violation")


def test_truth_before_a_rebind_belongs_to_the_new_request(run):
    """A ended; its name is used again, and what the new A has was told before its bind."""
    again = [
        ev.Free(by="A", slots=np.arange(8, 20)),
        ev.Unbind(row=1),
        ev.End(rid="A", why="done"),
        ev.Truth(rid="A", at=0, tokens=[500, 501]),
        ev.Bind(row=2, rid="A"),
        ev.Alloc(to="A", slots=np.arange(40, 44)),
        ev.Forward(rows=[2], prefix=[0], lens=[2], tokens=[500, 777], slots=slots(40, 41)),
        # position 2 is not known of the new request, whatever the old one had there
        ev.Forward(rows=[2], prefix=[2], tokens=[9], slots=slots(42)),
        ev.Forward(rows=[2], prefix=[3], tokens=[9], slots=slots(43)),
    ]
    found = run([*one_request(), *again])
    assert {(slot, reasons) for _, _, slot, reasons in found.signature()} == {(41, ("verify_token",))}


@pytest.mark.parametrize("ends_first", [True, False])
def test_what_an_ended_request_held_is_forgotten_with_its_row(ends_first):
    """A long run must not keep the tokens of every request that ever was."""
    ending = [ev.End(rid="A", why="done"), ev.Unbind(row=1)]
    header = small_header()
    layout = layout_of(header)
    state = new_state(layout, track_changes=False)
    rows.bind(state, ev.Bind(row=1, rid="A"))
    rows.truth(state, ev.Truth(rid="A", at=0, tokens=[1, 2, 3]))
    for event in ending if ends_first else reversed(ending):
        rows.end(state, event) if isinstance(event, ev.End) else rows.unbind(state, event)
    assert (state.expected.length("A"), state.ended) == (0, set())
