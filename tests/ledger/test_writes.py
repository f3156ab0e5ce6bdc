"""Writes: whose slot, in whose row, how often, and by whom outside of forwards."""

from __future__ import annotations

import pytest

from kvcanary_cli.trace import events as ev
from tests.ledger.driver import Driver, breaches, header, only, rules
from tests.ledger.made import (
    alloc,
    bind,
    decode,
    forward,
    free,
    hold,
    leaves,
    publish,
    remap,
    s,
    served,
    share,
)


def test_write_to_a_slot_that_nobody_holds():
    found = only(header(), [bind("A", 1), forward(1, 0, 4, 5)], "write-unheld")
    assert (found.step, found.line, found.slots.tolist(), found.row) == (0, 3, [4, 5], 1)
    assert (found.actor, found.positions, found.facts["released"]) == ("A", (0, 1), None)


def test_write_to_what_the_writer_gave_up():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6), remap(1, 2, 6), free("A", 6), decode((1, 2, 6))]
    found = only(header(), events, "write-unheld")
    assert found.facts["held_before"] is True
    assert found.facts["released"] == {"step": 0, "line": 7, "by": "A", "why": "free"}


def test_write_to_what_others_hold():
    events = [*served("A", 1, range(4, 6)), bind("B", 2), alloc("B", 8), forward(2, 0, 8, 5)]
    found = only(header(), events, "write-foreign")
    assert (found.slots.tolist(), found.actor, found.victims) == ([5], "B", ("A",))
    assert found.positions == (1, 1)


def test_write_outside_the_row_says_what_the_row_has():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6), remap(1, 2, 6), alloc("A", 7), decode((1, 2, 7))]
    found = only(header(), events, "write-outside-row")
    assert (found.slots.tolist(), found.facts["row_entry"], found.facts["delta"]) == ([7], [6], 1)


def test_write_outside_the_row_into_what_others_hold():
    events = [*served("A", 1, range(4, 6)), *served("B", 2, range(8, 10)), alloc("A", 6), remap(1, 2, 6)]
    outside, foreign = breaches(header(), [*events, decode((1, 2, 8))])
    assert (outside.rule, foreign.rule) == ("write-outside-row", "write-foreign")
    assert foreign.victims == outside.victims == ("B",)
    assert (foreign.facts["row_entry"], foreign.facts["delta"]) == ([6], 2)


def test_write_to_a_shared_slot():
    events = [*served("A", 1, range(4, 8)), bind("B", 2), share("B", 4, 5, 6)]
    found = only(header(), [*events, decode((2, 2, 6))], "write-shared")
    assert (found.actor, found.victims, found.slots.tolist()) == ("B", ("A",), [6])


def test_after_a_double_alloc_the_owners_writes_add_nothing():
    events = [*served("A", 1, range(4, 6)), bind("B", 2), alloc("B", 5), forward(2, 0, 5), forward(1, 1, 5)]
    assert rules(header(), events) == ["alloc-held"]


def test_write_to_a_published_slot():
    events = [*served("A", 1, range(4, 8)), publish("A", 4, 5), forward(1, 1, 5)]
    assert only(header(), events, "write-shared").victims == ("cache",)


def test_write_to_the_unwritten_end_of_a_shared_page():
    # the tail page of A is lent to B, and both go on in it
    head = header(page_size=4)
    events = [bind("A", 1), alloc("A", range(4, 8)), forward(1, 0, 4, 5), bind("B", 2), share("B", 4, 5)]
    lent = [*events, hold("B", 6, 7), remap(2, 2, 6, 7)]
    found = breaches(head, [*lent, decode((2, 2, 6)), decode((1, 2, 6))])
    assert [(b.rule, b.actor) for b in found] == [("write-shared", "B"), ("write-shared", "A")]


def test_rewriting_unpublished_positions_is_a_rollback():
    events = [*served("A", 1, range(4, 8)), publish("A", 4, 5), forward(1, 2, 6, 7)]
    assert rules(header(), events) == []


def test_write_to_what_the_former_request_left_in_the_row():
    head = header()
    left = [*served("A", 1, range(4, 8)), *leaves("A", 1, range(4, 8)), alloc("C", 6)]
    events = [*left, bind("B", 1), alloc("B", 10, 11), forward(1, 0, 10, 11)]
    leftover, foreign = breaches(head, [*events, decode((1, 2, 6))])
    assert (leftover.rule, leftover.victims, leftover.facts["left_by"]) == ("leftover", ("C",), "A")
    assert foreign.rule == "write-foreign"
    # a slot that was never there is somebody else's, but no leftover
    assert rules(head, [*events, alloc("C", 20), decode((1, 2, 20))]) == ["write-foreign"]


def test_leftovers_end_where_the_row_was_mapped():
    left = [*served("A", 1, range(4, 8)), *leaves("A", 1, range(4, 8)), alloc("C", 6)]
    events = [*left, bind("B", 1), remap(1, 2, 6), alloc("B", 10, 11), forward(1, 0, 10, 11)]
    assert rules(header(), [*events, decode((1, 2, 6))]) == ["write-foreign"]


def test_leftovers_end_where_a_forward_or_a_move_mapped_the_column():
    left = [*served("A", 1, range(4, 8)), *leaves("A", 1, range(4, 8)), alloc("C", 6)]
    written = [*left, bind("B", 1), alloc("B", range(10, 14)), forward(1, 0, range(10, 14)), forward(1, 2, 6)]
    assert rules(header(), written) == ["write-outside-row", "write-foreign"]
    moved = [*left, *served("B", 2, range(10, 14)), ev.Move(rid="B", row=1), forward(1, 2, 6)]
    assert rules(header(), moved) == ["write-outside-row", "write-foreign"]


def test_two_writers_of_one_slot_in_one_forward():
    events = [*served("A", 1, range(4, 6)), *served("B", 2, range(8, 10)), alloc("A", 12)]
    found = breaches(header(), [*events, decode((1, 2, 12), (2, 2, 12))])
    assert [b.rule for b in found] == ["write-foreign", "two-writers"]
    assert (found[1].slots.tolist(), found[1].facts["writers"]) == ([12], ["A", "B"])


def test_one_request_that_writes_a_slot_twice_in_one_forward():
    found = only(header(), [bind("A", 1), alloc("A", 4), forward(1, 0, 4, 4)], "two-writers")
    assert found.facts["positions"] == [0, 1]


@pytest.mark.parametrize("slot", [64, 70, -2])
def test_slot_outside_the_pool(slot):
    events = [*served("A", 1, range(4, 6)), decode((1, 2, slot))]
    found = only(header(), events, "slot-out-of-range")
    assert (found.slots.tolist(), found.facts["limit"]) == ([slot], 64)


def test_a_skipped_token_is_no_write():
    assert rules(header(), [*served("A", 1, range(4, 6)), alloc("A", 6), decode((1, 2, -1))]) == []


@pytest.mark.parametrize(
    "more",
    [
        {"rows": [1, 0], "prefix": [2, 0], "slots": s(6, 9)},
        {"rows": [1], "prefix": [2], "slots": s(6), "width": 4, "pad_writes": s(9)},
    ],
    ids=["lane", "kernel"],
)
def test_padding_that_writes_a_slot(more):
    events = [*served("A", 1, range(4, 6)), *served("B", 2, range(9, 10)), alloc("A", 6), ev.Forward(**more)]
    driver = Driver(header()).feed(events)
    (found,) = driver.ledger.breaches
    assert (found.rule, found.slots.tolist(), found.victims) == ("pad-write", [9], ("B",))
    writer = driver.ledger.slot("full", 9).byte_writer
    assert writer is not None
    assert (writer.how, writer.name) == ("pad", None)


def test_padding_that_writes_slot_0_is_what_slot_0_is_for():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6)]
    padded = ev.Forward(rows=[1, 0], prefix=[2, 0], slots=s(6, 0), width=4, pad_writes=s(0, 0))
    assert rules(header(), [*events, padded]) == []


def test_padding_again_and_again_is_one_breach():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6, 7, 8)]
    pads = [decode((1, 2 + i, 6 + i), pad_writes=s(20)) for i in range(3)]
    assert only(header(), [*events, *pads], "pad-write").facts["repeats"] == 2


def test_bytes_written_by_somebody_who_gave_the_slot_up():
    events = [
        *served("A", 1, range(4, 6)),
        free("A", 5),
        alloc("B", 5),
        ev.Kv(op="write", slots=s(5), by="A"),
    ]
    found = only(header(), events, "write-after-free")
    assert (found.actor, found.victims, found.line) == ("A", ("B",), 7)
    assert found.facts["released"] == {"step": 0, "line": 5, "by": "A", "why": "free"}


def test_bytes_written_by_somebody_who_shared_the_slot_once():
    events = [*served("A", 1, range(4, 6)), share("B", 4), free("B", 4)]
    assert rules(header(), [*events, ev.Kv(op="write", slots=s(4), by="B")]) == ["write-after-free"]


def test_forward_of_a_row_whose_request_has_left():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6), remap(1, 2, 6), *leaves("A", 1, range(4, 7))]
    found = only(header(), [*events, alloc("B", 6), decode((1, 2, 6))], "write-after-free")
    assert (found.actor, found.victims, found.row) == ("A", ("B",), 1)


def test_forward_of_a_row_that_nobody_ever_had():
    assert rules(header(), [alloc("B", 6), decode((1, 0, 6))]) == ["write-foreign"]


def test_bytes_written_by_somebody_who_never_held_the_slot():
    events = [*served("A", 1, range(4, 6)), ev.Kv(op="write", slots=s(5), by="B")]
    found = only(header(), events, "kv-foreign")
    assert (found.actor, found.victims) == ("B", ("A",))


def test_bytes_written_by_a_holder_or_by_nobody_are_no_breach():
    events = [
        *served("A", 1, range(4, 6)),
        ev.Kv(op="write", slots=s(5), by="A"),
        ev.Kv(op="zero", slots=s(4)),
    ]
    driver = Driver(header()).feed(events)
    assert driver.ledger.breaches == []
    by_kv, by_forward = (driver.ledger.slot("full", slot).byte_writer for slot in (5, 4))
    assert by_kv is not None
    assert by_forward is not None
    assert (by_kv.how, by_forward.how) == ("kv", "forward")


def test_writers_are_kept_with_what_was_true_when_they_wrote():
    events = [*served("A", 1, range(4, 6)), *served("B", 2, range(8, 10)), alloc("A", 6), remap(1, 2, 6)]
    driver = Driver(header()).feed([*events, decode((1, 2, 8), tokens=[77])])
    writer = driver.ledger.slot("full", 8).stamp_writer
    assert writer is not None
    assert (writer.name, writer.step, writer.line, writer.position) == ("A", 2, 10, 2)
    assert (writer.in_row, writer.held) == (False, False)
    assert driver.ledger.slot("full", 8).token == 77
