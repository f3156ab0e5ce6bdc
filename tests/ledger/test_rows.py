"""Rows: who uses them, what they still name, and how long their requests are."""

from __future__ import annotations

import pytest

from kvcanary_cli.trace import events as ev
from tests.ledger.driver import breaches, header, only, rules
from tests.ledger.made import (
    alloc,
    bind,
    decode,
    evict,
    forward,
    free,
    leaves,
    publish,
    remap,
    s,
    served,
    share,
)


def test_row_that_keeps_what_its_request_gave_up():
    events = [*served("A", 1, range(4, 8)), free("A", 6, 7), alloc("A", 9), decode((1, 4, 9))]
    found = only(header(), events, "row-names-released")
    assert (found.step, found.line, found.row, found.slots.tolist()) == (1, 7, 1, [6, 7])
    assert (found.actor, found.positions, found.facts["reader"]) == ("A", (2, 3), "A")
    assert found.facts["released"] == {"step": 0, "line": 5, "by": "A", "why": "free"}


def test_it_is_judged_at_the_next_forward_and_not_at_the_release():
    events = [*served("A", 1, range(4, 8)), *leaves("A", 1, range(4, 8))]
    assert rules(header(), [*events, *served("B", 1, range(4, 8))]) == []


def test_it_is_counted_while_the_row_keeps_the_slots_and_not_longer():
    events = [*served("A", 1, range(4, 8)), free("A", 6), alloc("A", range(9, 14))]
    steps = [decode((1, 4 + i, 9 + i)) for i in range(3)]
    assert only(header(), [*events, *steps], "row-names-released").facts["repeats"] == 2
    repaired = [*events, *steps[:1], remap(1, 2, 13), *steps[1:]]
    assert only(header(), repaired, "row-names-released").facts["repeats"] == 0


def test_row_that_names_what_was_released_from_under_it():
    events = [*served("A", 1, range(4, 8)), free("C", 6), alloc("A", 9), decode((1, 4, 9))]
    forced, named = breaches(header(), events)
    assert (forced.rule, named.rule) == ("free-unheld", "row-names-released")
    assert (named.actor, named.victims) == ("C", ("A",))
    assert named.facts["released"] == {"step": 0, "line": 5, "by": "C", "why": "force"}


def test_row_that_names_what_was_evicted_and_handed_on():
    # A maps the cache's slots without becoming a holder of them
    events = [*served("B", 2, range(4, 6)), publish("B", 4, 5), *leaves("B", 2, 4, 5), evict(4, 5)]
    stream = [*events, bind("A", 1), remap(1, 0, 4, 5), alloc("A", 9), decode((1, 2, 9))]
    assert rules(header(), stream) == ["row-names-released", "length-jump"]


def test_reservations_may_be_given_back():
    events = [
        *served("A", 1, range(4, 6)),
        alloc("A", 6, 7),
        remap(1, 2, 6, 7),
        decode((1, 2, 6)),
        free("A", 7),
    ]
    assert rules(header(), [*events, alloc("A", 8), remap(1, 3, 8), decode((1, 3, 8))]) == []


def test_positions_that_a_rollback_drops_may_be_given_back():
    assert rules(header(), [*served("A", 1, range(4, 8)), free("A", 7), forward(1, 2, 6)]) == []


def test_a_slot_that_comes_back_to_its_request_is_fine():
    events = [*served("A", 1, range(4, 8)), free("A", 7), alloc("A", 7), forward(1, 3, 7)]
    assert rules(header(), events) == []


def test_row_re_pointed_before_the_old_slots_are_released():
    events = [*served("A", 1, range(4, 6)), publish("A", 4, 5), *served("B", 2, range(8, 10))]
    adopted = [share("B", 4, 5), free("B", 8, 9), alloc("B", 12), decode((2, 2, 12))]
    assert rules(header(), [*events, *adopted]) == []


def test_row_that_maps_what_only_others_hold():
    events = [*served("A", 1, range(4, 6)), bind("B", 2), alloc("B", 8), remap(2, 0, 4, 5), decode((2, 2, 8))]
    found = breaches(header(), events)
    assert [b.rule for b in found] == ["row-names-foreign", "length-jump"]
    assert (found[0].actor, found[0].victims, found[0].positions) == ("B", ("A",), (0, 1))


def test_row_written_by_somebody_else():
    events = [*served("A", 1, range(4, 6)), *served("B", 2, range(8, 10)), remap(1, 0, 8, 9, by="B")]
    found = only(header(), [*events, alloc("A", 6), decode((1, 2, 6))], "row-changed-by-other")
    assert (found.line, found.actor, found.victims, found.row) == (8, "B", ("A",), 1)
    assert found.facts["columns"] == [0, 1]


@pytest.mark.parametrize("by", [None, "A"])
def test_row_written_by_its_request(by):
    assert rules(header(), [*served("A", 1, range(4, 6)), alloc("A", 6), remap(1, 2, 6, by=by)]) == []


def test_binding_an_occupied_row():
    found = only(header(), [bind("A", 1), bind("B", 1)], "bind-occupied")
    assert (found.actor, found.victims, found.row) == ("B", ("A",), 1)


def test_binding_a_request_that_has_a_row():
    found = only(header(), [bind("A", 1), bind("A", 2)], "bind-occupied")
    assert (found.facts["occupant"], found.facts["old_row"]) == (None, 1)


def test_moving_onto_an_occupied_row():
    events = [*served("A", 1, range(4, 6)), bind("B", 2), ev.Move(rid="A", row=2)]
    assert only(header(), events, "bind-occupied").victims == ("B",)


def test_a_move_takes_length_and_columns_along():
    events = [*served("A", 1, range(4, 6)), ev.Move(rid="A", row=2), alloc("A", 6), decode((2, 2, 6))]
    assert rules(header(), events) == []
    released = [*served("A", 1, range(4, 6)), free("A", 5), ev.Move(rid="A", row=2), alloc("A", 6)]
    assert rules(header(), [*released, decode((2, 2, 6))]) == ["row-names-released"]


def test_a_row_twice_in_one_forward():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6, 7), decode((1, 2, 6), (1, 3, 7))]
    found = only(header(), events, "row-twice")
    assert (found.actor, found.row, found.slots.tolist()) == ("A", 1, [7])


def test_padding_lanes_share_row_0():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6), decode((1, 2, 6), (0, 0, 0), (0, 0, 0))]
    assert rules(header(), events) == []


def test_map_past_the_row_width():
    events = [bind("A", 1), bind("B", 2), alloc("A", 4, 5, 6), remap(1, 30, 4, 5, 6)]
    found = only(header(), events, "spill")
    assert (found.slots.tolist(), found.victims, found.positions) == ([6], ("B",), (32, 32))
    assert (found.facts["width"], found.facts["spilled_into"]) == (32, 2)


def test_share_past_the_row_width():
    events = [*served("A", 1, range(4, 6)), bind("B", 2), share("B", 4, 5, at=31)]
    assert only(header(), events, "spill").facts["how"] == "share"


def test_forward_past_the_row_width():
    events = [*served("A", 1, range(4, 36)), alloc("A", 40), decode((1, 32, 40))]
    found = only(header(), events, "spill")
    assert (found.slots.tolist(), found.facts["how"]) == ([40], "forward")


SPEC = [*served("A", 1, range(4, 8)), alloc("A", range(8, 14)), forward(1, 4, 8, 9, 10, accepted=[2])]


def test_next_prefix_after_a_verify():
    assert rules(header(), [*SPEC, forward(1, 6, 10, 11, 12, accepted=[3])]) == []


@pytest.mark.parametrize(("prefix", "positions"), [(7, (6, 6)), (5, (5, 5))], ids=["too-long", "too-short"])
def test_next_prefix_after_a_verify_that_counts_wrong(prefix, positions):
    slots = s(*range(4 + prefix, 7 + prefix))
    events = [*SPEC, ev.Forward(rows=[1], prefix=[prefix], lens=[3], slots=slots, accepted=[1])]
    found = only(header(), events, "length-mismatch")
    assert found.positions == positions
    facts = {key: found.facts[key] for key in ("length", "prefix", "accepted", "lens")}
    assert facts == {"length": 6, "prefix": prefix, "accepted": 2, "lens": 3}


def test_a_share_after_a_verify_gives_the_length_anew():
    events = [*SPEC, *served("B", 2, range(20, 28)), share("A", 26, at=6), remap(1, 7, 13), alloc("A", 14)]
    assert rules(header(), [*events, forward(1, 7, 13)]) == []
    # all but the last token may have been computed again
    assert rules(header(), [*events, remap(1, 6, 14), forward(1, 6, 14, 13)]) == []


def test_going_back_without_named_tokens_is_a_rollback():
    assert rules(header(), [*served("A", 1, range(4, 8)), forward(1, 2, 6, 7)]) == []


def test_prefix_over_columns_that_nobody_wrote():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6, 7, 8), remap(1, 2, 6, 7, 8), decode((1, 4, 8))]
    found = only(header(), events, "length-jump")
    assert (found.slots.tolist(), found.positions) == ([6, 7], (2, 3))
    assert (found.facts["length"], found.facts["prefix"]) == (2, 4)


def test_a_retracted_request_starts_anew():
    events = [*served("A", 1, range(4, 8)), publish("A", 4, 5), *leaves("A", 1, range(4, 8), why="retract")]
    again = [bind("A", 2), share("A", 4, 5), alloc("A", 9, 10), forward(2, 2, 9, 10)]
    assert rules(header(), [*events, *again]) == []
    assert rules(header(), [*events, bind("A", 2), alloc("A", 9), decode((2, 4, 9))]) == ["length-jump"]


def test_positions_that_do_not_start_at_the_prefix():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6, 7), forward(1, 2, 6, 7, positions=[3, 4])]
    found = only(header(), events, "position-drift")
    assert (found.slots.tolist(), found.positions) == ([6, 7], (2, 3))
    assert (found.facts["delta"], found.facts["is_constant"]) == (1, True)


def test_positions_of_a_tree_need_not_follow_each_other():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6, 7)]
    assert rules(header(), [*events, forward(1, 2, 6, 7, positions=[2, 2], chain_positions=False)]) == []
