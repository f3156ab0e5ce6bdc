"""What the ledger tells about one slot."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.trace import events as ev
from tests.ledger.driver import Driver, header
from tests.ledger.made import alloc, bind, decode, evict, forward, leaves, publish, remap, s, served, share


def test_a_slot_that_nobody_touched():
    facts = Driver(header()).ledger.slot("full", 9)
    assert (facts.epoch, facts.holders, facts.known) == (0, (), True)
    assert (facts.allocated, facts.released, facts.previous, facts.byte_writer) == (None, None, None, None)
    assert (facts.token, facts.last_checked_step, facts.is_written, facts.published) == (
        None,
        None,
        False,
        False,
    )


@pytest.mark.parametrize("slot", [-1, 64, 1 << 40])
def test_a_slot_outside_the_pool(slot):
    facts = Driver(header()).ledger.slot("full", slot)
    assert (facts.slot, facts.holders, facts.epoch) == (slot, (), 0)
    assert Driver(header()).ledger.holder_names("full", s(slot)) == [()]


def test_the_whole_life_of_a_slot():
    driver = Driver(header()).feed([*served("A", 1, range(4, 8)), publish("A", 4, 5)])
    facts = driver.ledger.slot("full", 5)
    assert [(h.name, h.how, h.since_line) for h in facts.holders] == [
        ("A", "alloc", 3),
        ("cache", "publish", 5),
    ]
    assert facts.allocated is not None
    assert (facts.allocated.by, facts.allocated.line, facts.allocated.why) == ("A", 3, "alloc")
    assert facts.byte_writer is not None
    assert (facts.byte_writer.name, facts.byte_writer.how, facts.byte_writer.position) == ("A", "forward", 1)
    assert facts.byte_writer == facts.stamp_writer
    assert (facts.is_written, facts.published, facts.released) == (True, True, None)
    driver.feed([*leaves("A", 1, range(4, 8), why="cancel"), evict(4, 5), alloc("B", 5)])
    facts = driver.ledger.slot("full", 5)
    assert (facts.epoch, facts.is_written, facts.published, facts.token) == (2, False, False, None)
    assert facts.previous is not None
    assert (facts.previous.epoch, facts.previous.holder) == (1, "A")
    assert (facts.previous.first_step, facts.previous.last_step) == (0, 0)
    assert facts.released is not None
    assert (facts.released.by, facts.released.why, facts.released.line) == ("cache", "evict", 9)
    # who wrote it last is a matter of the memory and outlives the epoch
    assert facts.byte_writer is not None
    assert facts.byte_writer.name == "A"


def test_a_release_at_the_end_of_a_request_says_so():
    driver = Driver(header()).feed([*served("A", 1, range(4, 8)), *leaves("A", 1, 4, why="cancel")])
    released = driver.ledger.slot("full", 4).released
    assert released is not None
    assert (released.why, released.by) == ("end", "A")
    end = driver.ledger.ending("A")
    assert end is not None
    assert (end.why, end.step) == ("cancel", 0)
    assert driver.ledger.ending("B") is None


def test_a_release_long_before_the_end_is_a_free():
    events = [*served("A", 1, range(4, 8)), alloc("A", 9, 10), *leaves("A", 1, 10)[:1], decode((1, 4, 9))]
    driver = Driver(header()).feed([*events, *leaves("A", 1, range(4, 8))])
    released = driver.ledger.slot("full", 10).released
    assert released is not None
    assert released.why == "free"


def test_the_token_written_last():
    driver = Driver(header()).feed([bind("A", 1), alloc("A", 4), forward(1, 0, 4, tokens=[2**31 - 1])])
    assert driver.ledger.slot("full", 4).token == 2**31 - 1


def checked(driver: Driver, *slots: int) -> list[int | None]:
    return [driver.ledger.slot("full", slot).last_checked_step for slot in slots]


def test_the_last_step_that_verified_a_slot():
    driver = Driver(header()).feed(served("A", 1, range(4, 6)))
    assert checked(driver, 4, 5) == [None, None]
    driver.feed([alloc("A", 6, 7), decode((1, 2, 6))])
    assert checked(driver, 4, 5, 6) == [1, 1, None]
    driver.feed([decode((1, 3, 7))])
    assert checked(driver, 4, 6, 7) == [2, 2, None]


def test_it_outlives_the_row():
    driver = Driver(header()).feed([*served("A", 1, range(4, 6)), alloc("A", 6), decode((1, 2, 6))])
    driver.feed(leaves("A", 1, range(4, 7)))
    assert checked(driver, 4, 5, 6) == [1, 1, None]
    driver.feed([*served("B", 1, range(10, 12)), alloc("B", 13), decode((1, 2, 13))])
    assert checked(driver, 4, 5, 6, 10) == [1, 1, None, 3]


def test_it_outlives_a_new_mapping():
    driver = Driver(header()).feed([*served("A", 1, range(4, 6)), alloc("A", 6), decode((1, 2, 6))])
    driver.feed([publish("A", 4, 5, 6), *served("B", 2, range(10, 12)), alloc("B", 12), decode((2, 2, 12))])
    driver.feed([share("B", 4, 5)])
    assert checked(driver, 10, 11, 4, 5) == [3, 3, 1, 1]


def test_sweeps_verify_what_the_cache_holds():
    driver = Driver(header()).feed([*served("A", 1, range(4, 8)), publish("A", 4, 5), alloc("A", 9)])
    driver.feed([decode((1, 4, 9)), ev.Sweep()])
    driver.feed([*leaves("A", 1, range(4, 8)), *served("B", 2, range(20, 22)), ev.Sweep()])
    assert checked(driver, 4, 6, 20) == [2, 1, None]


def test_a_move_keeps_what_was_verified():
    driver = Driver(header()).feed([*served("A", 1, range(4, 6)), alloc("A", 6), decode((1, 2, 6))])
    driver.feed([ev.Move(rid="A", row=3)])
    assert checked(driver, 4, 5) == [1, 1]


def test_window_slots_are_verified_inside_the_window_only():
    head = header(window=2)
    events = [bind("A", 1), alloc("A", range(4, 9)), ev.SwaMap(full=s(range(4, 9)), swa=s(range(14, 19)))]
    driver = Driver(head).feed([*events, forward(1, 0, range(4, 8)), decode((1, 4, 8))])
    assert [driver.ledger.slot("swa", slot).last_checked_step for slot in (15, 16, 17)] == [None, 1, 1]
    driver.feed([ev.Unbind(row=1)])
    assert [driver.ledger.slot("swa", slot).last_checked_step for slot in (15, 16, 17)] == [None, 1, 1]


def test_breaches_are_plain_values():
    events = [*served("A", 1, range(4, 8)), remap(1, 0, 9, by="B"), alloc("B", 4), decode((1, 4, 4))]
    driver = Driver(header()).feed(events)
    assert len(driver.ledger.breaches) >= 2
    for breach in driver.ledger.breaches:
        json.dumps(breach.facts)
        assert breach.slots.tolist() == sorted(set(breach.slots.tolist()))
    counts = driver.ledger.counts()
    assert (counts["events"], counts["breaches"]) == (len(events), len(driver.ledger.breaches))
