"""Slots that are handed out and given up: rules of holders, epochs, and what a release leaves behind."""

from __future__ import annotations

from kvcanary_cli.trace import events as ev
from tests.ledger.driver import Driver, breaches, header, only, rules
from tests.ledger.made import (
    alloc,
    bind,
    decode,
    evict,
    forward,
    free,
    hold,
    leaves,
    publish,
    s,
    served,
    share,
)


def test_alloc_of_a_held_slot_names_both_and_blames_the_allocator():
    found = only(header(), [*served("A", 1, range(4, 8)), alloc("B", 6, 7, 8)], "alloc-held")
    assert (found.step, found.line, found.group) == (0, 5, "full")
    assert found.slots.tolist() == [6, 7]
    assert (found.actor, found.victims) == ("B", ("A",))
    assert found.facts["released_before"] is None


def test_alloc_after_a_release_by_force_carries_the_release():
    events = [*served("A", 1, range(4, 8)), free("C", 6), alloc("B", 6)]
    driver = Driver(header()).feed(events)
    forced, held = driver.ledger.breaches
    assert (forced.rule, forced.actor, forced.victims) == ("free-unheld", "C", ("A",))
    assert forced.facts["state"] == "held-by-others"
    assert (held.rule, held.victims) == ("alloc-held", ("A",))
    assert held.facts["released_before"] == {"step": 0, "line": 5, "by": "C", "why": "force"}


def test_alloc_after_a_double_release_carries_the_second_one():
    # the free list has the slot twice: the first alloc is clean, the second hands it out again
    events = [alloc("A", 5), free("A", 5), free("A", 5), alloc("B", 5), alloc("C", 5)]
    double, held = breaches(header(), events)
    assert (double.rule, double.line) == ("free-unheld", 4)
    assert (held.rule, held.line, held.victims) == ("alloc-held", 6, ("B",))
    assert held.facts["released_before"] == {"step": 0, "line": 4, "by": "A", "why": "free"}


def test_one_release_too_many_explains_one_alloc_only():
    events = [alloc("A", 5), free("C", 5), alloc("B", 5), alloc("D", 5)]
    found = [b.facts["released_before"] for b in breaches(header(), events) if b.rule == "alloc-held"]
    assert found[0] is not None
    assert found[1] is None


def test_after_a_double_alloc_both_are_holders_and_may_release_once_each():
    events = [alloc("A", 5), alloc("B", 5), free("A", 5), free("B", 5)]
    assert rules(header(), events) == ["alloc-held"]
    assert rules(header(), [*events, free("A", 5)]) == ["alloc-held", "free-unheld"]


def test_stale_holders_are_kept_and_told_apart_by_their_epoch():
    driver = Driver(header()).feed([alloc("A", 5), alloc("B", 5)])
    facts = driver.ledger.slot("full", 5)
    assert facts.epoch == 2
    assert [(h.name, h.epoch) for h in facts.holders] == [("A", 1), ("B", 2)]


def test_a_release_by_the_new_owner_lets_the_allocator_hand_it_out_over_the_stale_one():
    found = breaches(header(), [alloc("A", 5), alloc("B", 5), free("B", 5), alloc("C", 5)])
    assert [b.rule for b in found] == ["alloc-held", "alloc-held"]
    assert found[1].victims == ("A",)
    assert found[1].facts["released_before"] == {"step": 0, "line": 4, "by": "B", "why": "free"}


def test_alloc_that_lists_a_slot_twice():
    found = only(header(), [alloc("A", 5, 6, 5)], "alloc-held")
    assert (found.slots.tolist(), found.facts["listed_twice"]) == ([5], True)


def test_page_0_is_handed_to_nobody():
    assert only(header(page_size=4), [alloc("A", range(3, 8))], "alloc-reserved").slots.tolist() == [3]
    assert only(header(), [publish(None, 0)], "alloc-reserved").facts["how"] == "publish"
    assert only(header(), [share("B", 0)], "alloc-reserved").facts["how"] == "share"


def test_part_of_a_page_from_an_allocator_of_whole_pages():
    head = header(page_size=4)
    whole = [bind("A", 1), alloc("A", range(4, 8)), forward(1, 0, 4, 5)]
    found = only(head, [*whole, alloc("B", 8, 9)], "alloc-partial-page")
    assert (found.slots.tolist(), found.facts["pages"]) == ([8, 9], [2])
    assert rules(head, [*whole, alloc("B", range(8, 16))]) == []


def test_part_of_a_page_from_an_allocator_of_tokens():
    head = header(page_size=4)
    tokens = [bind("A", 1), alloc("A", 4, 5), forward(1, 0, 4, 5)]
    assert rules(head, [*tokens, alloc("B", 8), alloc("A", 6), decode((1, 2, 6))]) == []


def test_one_part_of_a_page_before_it_is_known_makes_it_an_allocator_of_tokens():
    events = [
        bind("A", 1),
        alloc("A", range(4, 8)),
        alloc("B", 8, 9),
        forward(1, 0, 4, 5),
        alloc("B", 12, 13),
    ]
    assert rules(header(page_size=4), events) == []


def test_release_of_a_free_slot_names_the_release_before_it():
    found = only(header(), [alloc("A", 5, 6), free("A", 5, 6), free("A", 5)], "free-unheld")
    assert (found.actor, found.victims, found.slots.tolist()) == ("A", (), [5])
    assert found.facts["state"] == "free"
    assert found.facts["previous_release"] == {"step": 0, "line": 3, "by": "A", "why": "free"}


def test_release_of_a_slot_that_was_never_handed_out():
    assert only(header(), [free("A", 5)], "free-unheld").facts["previous_release"] is None


def test_release_of_what_others_hold_is_parted_by_holders():
    events = [alloc("A", 5), alloc("B", 6), free("C", 5, 6)]
    found = breaches(header(), events)
    assert [(b.rule, b.victims, b.slots.tolist()) for b in found] == [
        ("free-unheld", ("A",), [5]),
        ("free-unheld", ("B",), [6]),
    ]


def test_eviction_of_what_the_cache_does_not_have():
    found = only(header(), [alloc("A", 5), evict(5)], "free-unheld")
    assert (found.actor, found.victims) == ("cache", ("A",))


def test_one_list_that_releases_a_slot_twice():
    found = only(header(), [alloc("A", 5, 6), free("A", 5, 6, 5)], "free-twice-in-list")
    assert (found.actor, found.slots.tolist()) == ("A", [5])


def test_a_list_may_name_a_slot_twice_when_the_holder_has_it_twice():
    assert rules(header(), [alloc("A", 5), alloc("A", 5), free("A", 5, 5)]) == ["alloc-held"]


def test_tree_names_a_slot_that_the_cache_gave_up():
    events = [*served("A", 1, range(4, 6)), publish("A", 4, 5), free("cache", 4, 5)]
    assert rules(header(), events) == []
    found = only(header(), [*events, alloc("A", 9), decode((1, 2, 9))], "tree-names-released")
    assert (found.slots.tolist(), found.victims) == ([4, 5], ("cache",))
    assert found.facts["now_held_by"] == ["A"]
    assert rules(header(), [*events, ev.Sweep()]) == ["tree-names-released"]


def test_tree_that_lets_go_before_the_next_forward_is_fine():
    events = [*served("A", 1, range(4, 6)), publish("A", 4, 5), free("cache", 4, 5), evict(4, 5)]
    assert rules(header(), [*events, alloc("A", 9), decode((1, 2, 9))]) == []


def test_tree_names_a_slot_that_was_handed_to_somebody_else():
    events = [*served("A", 1, range(4, 6)), publish("A", 4, 5), *leaves("A", 1, 4, 5), alloc("B", 4)]
    found = breaches(header(), [*events, ev.Sweep()])
    assert [b.rule for b in found] == ["alloc-held", "tree-names-released"]
    assert found[1].facts["now_held_by"] == ["B"]
    assert rules(header(), [*events, evict(4), ev.Sweep()]) == ["alloc-held"]


def test_cache_keeps_a_slot_until_every_entry_is_evicted():
    events = [*served("A", 1, range(4, 6)), publish("A", 4, at=0), publish(None, 4, at=7), free("A", 4)]
    driver = Driver(header()).feed([*events, evict(4)])
    assert driver.ledger.holder_names("full", s(4)) == [("cache",)]
    driver.feed([evict(4)])
    assert driver.ledger.holder_names("full", s(4)) == [()]
    assert driver.ledger.breaches == []


def test_cache_that_prefetched_into_a_slot_holds_it_once():
    prefetched = [alloc("cache", 4, 5), publish(None, 4)]
    assert rules(header(), [*prefetched, evict(4), alloc("A", 4)]) == []
    assert rules(header(), [*prefetched, evict(4, 4)]) == ["free-twice-in-list"]
    # what was never filed leaves no entry behind
    assert rules(header(), [*prefetched, free("cache", 5), ev.Sweep()]) == []


def test_publishing_an_entry_again_adds_nothing():
    events = [*served("A", 1, range(4, 6)), publish("A", 4, 5), publish("A", 4, 5), free("A", 4, 5)]
    assert rules(header(), [*events, evict(4, 5)]) == []
    assert rules(header(), [*events, evict(4, 5), evict(4)]) == ["free-unheld"]


def test_a_breach_that_repeats_is_counted_and_not_listed_again():
    found = only(header(), [alloc("A", 5), free("C", 5), free("C", 5), free("C", 5)], "free-unheld")
    assert found.facts["repeats"] == 2


def test_a_new_epoch_makes_it_a_breach_of_its_own():
    events = [alloc("A", 5), free("C", 5), free("A", 5), alloc("B", 5), free("C", 5)]
    assert rules(header(), events) == ["free-unheld", "free-unheld"]


def test_epochs_count_departures_from_the_free_state():
    events = [alloc("A", 5), hold("xfer:t1", 5), free("A", 5), free("xfer:t1", 5), alloc("B", 5)]
    driver = Driver(header()).feed(events)
    facts = driver.ledger.slot("full", 5)
    assert (facts.epoch, [h.name for h in facts.holders]) == (2, ["B"])
    assert facts.previous is not None
    assert (facts.previous.epoch, facts.previous.holder) == (1, "A")
    assert facts.released is not None
    assert (facts.released.by, facts.released.line) == ("xfer:t1", 5)
