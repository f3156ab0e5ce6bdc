"""What a ledger may say when part of the story is missing: gaps, late recorders, kinds of event not recorded."""

from __future__ import annotations

import pytest

from kvcanary_cli.ledger.judged import NEEDS
from kvcanary_cli.trace import events as ev
from tests.ledger.driver import Driver, breaches, header, rules
from tests.ledger.made import alloc, bind, decode, evict, forward, free, publish, remap, s, served, share

ALL = ["alloc", "hold", "share", "publish", "free", "evict", "map", "swa_map", "end", "unbind"]


@pytest.mark.parametrize(
    "after",
    [
        [free("A", 4)],
        [evict(4)],
        [share("C", 4)],
        [publish("C", 4)],
        [alloc("C", 4)],
        [decode((2, 9, 30))],
        [ev.Kv(op="write", slots=s(4), by="C")],
        [ev.Offload(key="k", slots=s(4))],
        [ev.Xfer(id="t", op="done", rid="C", slots=s(4))],
        [bind("C", 2), share("C", 4, 5), alloc("C", 20), decode((2, 2, 20))],
        [bind("C", 2), remap(2, 0, 4, 5), alloc("C", 20), decode((2, 2, 20))],
    ],
    ids=lambda events: events[-1].__class__.__name__,
)
def test_nothing_follows_from_what_a_gap_hides(after):
    before = [alloc("B", 4), free("C", 30)]
    unknown = header(state="unknown")
    assert breaches(unknown, after) == []
    gap = Driver(header()).feed([*before, ev.Gap()])
    seen = len(gap.ledger.breaches)
    assert gap.feed(after).ledger.breaches[seen:] == []


def test_what_is_handed_out_after_a_gap_is_known_again():
    events = [ev.Gap(), alloc("A", 4), free("B", 4), alloc("B", 4)]
    assert rules(header(), events) == ["free-unheld", "alloc-held"]


def test_what_is_shared_after_a_gap_has_that_holder_and_maybe_others():
    driver = Driver(header()).feed([ev.Gap(), share("A", 4), free("B", 4)])
    assert driver.ledger.breaches == []
    facts = driver.ledger.slot("full", 4)
    assert (facts.known, [h.name for h in facts.holders]) == (False, ["A"])
    assert [b.rule for b in driver.feed([alloc("B", 4)]).ledger.breaches] == ["alloc-held"]


def test_others_may_hold_what_is_shared_after_a_gap():
    events = [ev.Gap(), share("A", 4), bind("B", 2), forward(2, 0, 4), ev.Kv(op="write", slots=s(4), by="C")]
    assert rules(header(), events) == []


def test_a_release_by_a_request_whose_row_a_gap_hides():
    # A may have another row by now; what this one names is from before the gap
    events = [*served("A", 1, range(4, 8)), ev.Gap(), alloc("A", 6), free("A", 6), decode((1, 4, 20))]
    assert rules(header(), events) == []


def test_a_gap_between_a_release_and_the_forward_leaves_the_row_unjudged():
    events = [*served("A", 1, range(4, 8)), free("A", 6), ev.Gap(), alloc("A", 9), decode((1, 4, 9))]
    assert rules(header(), events) == []


def test_rows_are_unknown_after_a_gap_until_they_are_bound_again():
    events = [*served("A", 1, range(4, 8)), ev.Gap(), alloc("B", 9), decode((1, 4, 9))]
    assert rules(header(), events) == []
    assert rules(header(), [*events, bind("A", 1), forward(1, 0, 9)]) == ["write-foreign"]


def test_a_write_to_a_slot_that_was_released_after_the_gap():
    events = [ev.Gap(), alloc("B", 9), free("B", 9), decode((1, 4, 9))]
    assert rules(header(), events) == ["write-unheld"]


def test_a_part_that_continues_another_one_knows_nothing_of_it():
    head = header(continues=ev.Continues(part=2, of="run"))
    assert rules(head, [free("A", 4), evict(5)]) == []


STREAMS: dict[str, list[ev.Event]] = {
    "alloc-held": [alloc("A", 4), alloc("B", 4)],
    "free-unheld": [free("A", 4)],
    "write-unheld": [bind("A", 1), forward(1, 0, 4)],
    "write-foreign": [alloc("B", 4), bind("A", 1), forward(1, 0, 4)],
    "share-unheld": [bind("A", 1), share("A", 4)],
    "share-unwritten": [alloc("B", 4), bind("A", 1), share("A", 4), alloc("A", 5), decode((1, 1, 5))],
    "row-names-released": [*served("A", 1, range(4, 8)), free("A", 6), alloc("A", 9), decode((1, 4, 9))],
    "length-jump": [bind("A", 1), alloc("A", 4, 5), remap(1, 0, 4, 5), decode((1, 1, 5))],
    "offload-unwritten": [alloc("A", 4), ev.Offload(key="k", slots=s(4))],
}


@pytest.mark.parametrize("rule", STREAMS)
def test_a_rule_needs_the_events_that_it_reads(rule):
    assert rules(header(records=ALL), STREAMS[rule]) == [rule]
    for missing in NEEDS[rule]:
        head = header(records=[kind for kind in ALL if kind != missing])
        driver = Driver(head).feed(STREAMS[rule])
        assert driver.ledger.breaches == [], missing
        unjudged = driver.ledger.counts()["unjudged"]
        assert isinstance(unjudged, dict)
        assert unjudged[rule] == [missing]


def test_a_trace_without_records_was_seen_whole():
    assert Driver(header()).ledger.counts()["unjudged"] == {}


def test_window_rules_are_not_missed_where_there_is_no_window():
    seen = [kind for kind in ALL if kind != "swa_map"]
    assert Driver(header(records=seen)).ledger.counts()["unjudged"] == {}
    assert Driver(header(records=seen, window=4)).ledger.counts()["unjudged"] == {
        "window-unmapped": ["swa_map"],
        "window-reused": ["swa_map"],
    }


@pytest.mark.parametrize(
    ("records", "expected"),
    [(None, ["bind-occupied"]), (["end"], []), ([], [])],
    ids=["all", "end-only", "nothing"],
)
def test_rows_given_up_unseen(records, expected):
    events = [bind("A", 1), ev.End(rid="A", why="done"), bind("B", 1)]
    assert rules(header(records=records), events) == expected


def test_an_occupant_that_did_not_end_is_seen_without_unbinds():
    assert rules(header(records=["end"]), [bind("A", 1), bind("B", 1)]) == ["bind-occupied"]
