"""Offloads, reloads and remote deliveries."""

from __future__ import annotations

from typing import Any

import pytest

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
    remap,
    s,
    served,
    share,
)

K = ev.Source(name="k", bytes_per_slot=64, hashed_bytes=64, dtype="bf16", item_bytes=2, scale="v1")
V = ev.Source(name="v", bytes_per_slot=64, hashed_bytes=64, half="v")


def start(*slots: int, rid: str | None = "A", **more: Any) -> ev.Xfer:
    return ev.Xfer(id="t1", op="start", rid=rid, slots=s(*slots), **more)


def done(**more: Any) -> ev.Xfer:
    return ev.Xfer(id="t1", op="done", **more)


ADDRESSED = [bind("A", 1), alloc("A", 4, 5), remap(1, 0, 4, 5), start(4, 5)]


def test_delivery_into_its_own_slots():
    driver = Driver(header()).feed([*ADDRESSED, done(tokens=[7, 8])])
    assert driver.ledger.breaches == []
    writer = driver.ledger.slot("full", 5).stamp_writer
    assert writer is not None
    assert (writer.name, writer.how, writer.id, writer.position) == ("A", "xfer", "t1", 1)
    assert (writer.in_row, writer.held, driver.ledger.slot("full", 5).token) == (True, True, 8)
    # it gave A its length
    driver.feed([alloc("A", 6), decode((1, 2, 6))])
    assert driver.ledger.breaches == []


def test_a_delivery_that_continues_names_the_tokens_before_it_too():
    driver = Driver(header()).feed([*ADDRESSED, done(at=1, tokens=[7, 8, 9])])
    assert [driver.ledger.slot("full", slot).token for slot in (4, 5)] == [8, 9]
    part = Driver(header()).feed([*ADDRESSED, done(at=1, tokens=[7, 8], count=1)])
    assert part.ledger.slot("full", 4).token == 7


def test_delivery_into_slots_that_changed_hands():
    events = [*ADDRESSED, *leaves("A", 1, 4, 5, why="cancel"), alloc("B", 4, 5), done()]
    found = only(header(), events, "xfer-to-old-epoch")
    assert (found.actor, found.victims, found.slots.tolist(), found.line) == ("A", ("B",), [4, 5], 10)
    assert (found.facts["addressed_epoch"], found.facts["epoch_now"]) == (1, 2)
    assert found.facts["released"] == {"step": 0, "line": 6, "by": "A", "why": "free"}


def test_delivery_into_slots_that_were_released():
    found = only(header(), [*ADDRESSED, free("A", 4, 5), done()], "xfer-to-old-epoch")
    assert (found.victims, found.facts["addressed_epoch"], found.facts["epoch_now"]) == ((), 1, 1)


def test_delivery_that_lands_although_it_was_called_off():
    late = [*ADDRESSED, ev.Xfer(id="t1", op="cancel"), *leaves("A", 1, 4, 5), alloc("B", 4), done(slots=s(4))]
    assert only(header(), late, "xfer-to-old-epoch").victims == ("B",)


def test_delivery_into_the_next_epoch_of_the_same_request_is_late_too():
    events = [*ADDRESSED, free("A", 4, 5), alloc("A", 4, 5), done()]
    assert rules(header(), events) == ["xfer-to-old-epoch"]


def test_slots_handed_out_after_the_start_are_fine():
    assert rules(header(), [bind("A", 1), start(4, 5), alloc("A", 4, 5), done()]) == []


def test_delivery_held_by_the_transfer_itself():
    events = [
        bind("A", 1),
        alloc("xfer:t1", 4, 5),
        start(4, 5),
        done(),
        share("A", 4, 5),
        free("xfer:t1", 4, 5),
    ]
    assert rules(header(), [*events, alloc("A", 6), decode((1, 2, 6))]) == []


def test_delivery_without_a_start_is_judged_by_holders():
    assert rules(header(), [alloc("B", 4), done(rid="A", slots=s(4))]) == ["write-foreign"]
    assert rules(header(), [done(rid="A", slots=s(4))]) == ["write-unheld"]
    assert rules(header(), [alloc("B", 4), done(slots=s(4))]) == []


def test_a_gap_between_start_and_end_leaves_nothing_to_compare():
    assert rules(header(), [*ADDRESSED, ev.Gap(), alloc("B", 4, 5), done()]) == ["write-foreign"]


def test_part_of_a_delivery():
    found = only(header(), [*ADDRESSED, done(count=1)], "xfer-partial")
    assert (found.slots.tolist(), found.facts["count"], found.facts["of"]) == ([5], 1, 2)


STORED = [*served("A", 1, range(4, 6)), ev.Offload(key="k1", slots=s(4, 5)), alloc("A", 8, 9)]


def test_part_of_a_reload():
    found = only(header(), [*STORED, ev.Reload(key="k1", slots=s(8, 9), count=1)], "reload-partial")
    assert (found.slots.tolist(), found.facts["id"]) == ([9], "k1")


def test_all_of_a_reload():
    driver = Driver(header(sources=[K])).feed(
        [*STORED, ev.Reload(key="k1", slots=s(8, 9), count=2, sources=["k"])]
    )
    assert driver.ledger.breaches == []
    facts = driver.ledger.slot("full", 8)
    assert facts.byte_writer is not None
    assert (facts.byte_writer.name, facts.byte_writer.how, facts.byte_writer.id) == (None, "reload", "k1")
    assert facts.is_written


def test_a_reload_of_bytes_alone_leaves_the_stamps_writer():
    driver = Driver(header()).feed([*STORED, ev.Reload(key="k1", slots=s(4, 5), stamps=False)])
    facts = driver.ledger.slot("full", 4)
    assert facts.byte_writer is not None
    assert facts.stamp_writer is not None
    assert (facts.byte_writer.how, facts.stamp_writer.how) == ("reload", "forward")


def test_tokens_travel_with_a_reload():
    wrote = [bind("A", 1), alloc("A", 4, 5), forward(1, 0, 4, 5, tokens=[21, 22])]
    events = [*wrote, ev.Offload(key="k", slots=s(4, 5)), alloc("C", 8, 9), ev.Reload(key="k", slots=s(8, 9))]
    truth = ev.Truth(rid="B", at=0, tokens=[21, 99])
    found = only(header(), [*events, truth, share("B", 8, 9)], "share-token-mismatch")
    assert (found.slots.tolist(), found.facts["have"]) == ([9], 22)


@pytest.mark.parametrize("what", ["xfer", "reload"])
def test_sources_that_did_not_come_along(what):
    head = header(sources=[K, V])
    events = {
        "xfer": [*ADDRESSED, done(sources=["k"])],
        "reload": [*STORED, ev.Reload(key="k1", slots=s(8, 9), sources=["k"])],
    }
    assert only(head, events[what], f"{what}-missing-sources").facts["missing"] == ["v"]


@pytest.mark.parametrize(
    ("declared", "differs"),
    [
        ({"dtype": "fp8"}, {"dtype": ["fp8", "bf16"]}),
        ({"item_bytes": 1}, {"item_bytes": [1, 2]}),
        ({"scale": "v2"}, {"scale": ["v2", "v1"]}),
    ],
    ids=["dtype", "item-bytes", "scale"],
)
def test_bytes_that_the_other_side_means_otherwise(declared, differs):
    head = header(sources=[K, V])
    found = only(head, [*ADDRESSED, done(**declared)], "dtype-mismatch")
    ((field, (theirs, ours)),) = differs.items()
    assert found.facts["differs"] == differs
    assert (found.facts["field"], found.facts["declared"], found.facts["pool"]) == (field, theirs, ours)
    offload = ev.Offload(key="k1", slots=s(4, 5), **declared)
    assert rules(head, [*served("A", 1, range(4, 6)), offload]) == ["dtype-mismatch"]


def test_bytes_that_were_stored_otherwise_than_they_are_loaded():
    head = header(sources=[V])
    stored = [
        *served("A", 1, range(4, 6)),
        ev.Offload(key="k", slots=s(4, 5), dtype="bf16"),
        alloc("A", 8, 9),
    ]
    found = only(head, [*stored, ev.Reload(key="k", slots=s(8, 9), dtype="fp8")], "dtype-mismatch")
    assert found.facts["differs"] == {"dtype": ["fp8", "bf16"]}
    assert rules(head, [*stored, ev.Reload(key="k", slots=s(8, 9), dtype="bf16")]) == []


def test_declarations_that_agree():
    same = {"dtype": "bf16", "item_bytes": 2, "scale": "v1", "page_size": 1}
    assert rules(header(sources=[K, V]), [*ADDRESSED[:3], start(4, 5, **same), done(**same)]) == []


def test_pages_of_another_size():
    found = only(header(), [*ADDRESSED, done(page_size=4)], "geometry-mismatch")
    assert (found.facts["page_size"], found.facts["expected"]) == (4, 1)


def test_reload_over_what_is_published_and_in_use():
    events = [*STORED, publish("A", 4, 5), bind("B", 2), share("B", 4)]
    found = only(header(), [*events, ev.Reload(key="k1", slots=s(4, 5))], "reload-over-published")
    assert (found.slots.tolist(), found.facts["readers"]) == ([4, 5], ["A", "B"])


def test_reload_into_fresh_or_unused_slots():
    unused = [*STORED, publish("A", 4, 5), free("A", 4, 5), ev.Reload(key="k1", slots=s(4, 5))]
    assert rules(header(), unused) == []
    early = [*STORED, publish("A", 8, 9), ev.Reload(key="k1", slots=s(8, 9))]
    assert rules(header(), early) == []


def test_offload_of_what_was_not_written():
    events = [*served("A", 1, range(4, 6)), alloc("A", 6), ev.Offload(key="k", slots=s(5, 6))]
    found = only(header(), events, "offload-unwritten")
    assert (found.slots.tolist(), found.facts["state"], found.facts["key"]) == ([6], "unwritten", "k")


def test_offload_of_what_nobody_holds():
    events = [*served("A", 1, range(4, 6)), *leaves("A", 1, 4, 5), ev.Offload(key="k", slots=s(4, 5))]
    found = only(header(), events, "offload-unwritten")
    assert (found.facts["state"], found.facts["released"]) == (
        "free",
        {"step": 0, "line": 5, "by": "A", "why": "free"},
    )


def test_offload_after_the_writer_has_left():
    events = [*served("A", 1, range(4, 6)), publish("A", 4, 5), *leaves("A", 1, 4, 5)]
    assert rules(header(), [*events, ev.Offload(key="k", slots=s(4, 5))]) == []


def test_offload_of_what_somebody_else_wrote():
    events = [*served("A", 1, range(4, 6)), ev.Kv(op="write", slots=s(5), by="B")]
    foreign, stored = breaches(header(), [*events, ev.Offload(key="k", slots=s(4, 5))])
    assert (foreign.rule, stored.rule, stored.slots.tolist()) == ("kv-foreign", "offload-foreign", [5])
    assert (stored.actor, stored.facts["written_by"]) == ("B", "B")


def test_offload_of_a_published_slot_that_was_handed_to_somebody_else():
    events = [
        *served("A", 1, range(4, 6)),
        publish("A", 4, 5),
        *leaves("A", 1, 4, 5),
        alloc("B", 4),
        bind("B", 2),
    ]
    found = rules(header(), [*events, forward(2, 0, 4), ev.Offload(key="k", slots=s(4))])
    assert found[-1] == "offload-foreign"


def test_forward_that_reads_while_its_delivery_is_under_way():
    events = [*ADDRESSED, alloc("A", 6), decode((1, 2, 6))]
    found = breaches(header(), events)
    assert [b.rule for b in found] == ["read-in-transfer", "length-jump"]
    assert (found[0].slots.tolist(), found[0].facts["id"], found[0].positions) == ([4, 5], "t1", (0, 1))


def test_forward_below_or_after_the_delivery():
    below = [bind("A", 1), alloc("A", 4, 5, 6), remap(1, 1, 5, 6), start(5, 6), forward(1, 0, 4)]
    assert rules(header(), below) == []
    assert rules(header(), [*ADDRESSED, done(), alloc("A", 6), decode((1, 2, 6))]) == []


def test_an_id_that_is_used_again_means_the_later_delivery():
    other = [*ADDRESSED, bind("B", 2), alloc("B", 8), start(8, rid="B"), done(rid="B"), alloc("A", 6)]
    assert rules(header(), [*other, decode((1, 2, 6))]) == ["length-jump"]


def test_a_slow_delivery_is_counted_and_not_listed_again():
    events = [*ADDRESSED, alloc("A", 6, 7, 8)]
    reads = [decode((1, 2 + i, 6 + i)) for i in range(3)]
    found = [b for b in breaches(header(), [*events, *reads]) if b.rule == "read-in-transfer"]
    assert [b.facts["repeats"] for b in found] == [2]


def test_a_read_of_unwritten_slots_that_a_later_reload_fills():
    events = [
        *STORED,
        remap(1, 2, 8, 9),
        alloc("A", 10),
        decode((1, 4, 10)),
        ev.Reload(key="k1", slots=s(8, 9)),
    ]
    jump, read = breaches(header(), events)
    assert (jump.rule, read.rule, read.slots.tolist()) == ("length-jump", "read-in-transfer", [8, 9])
    assert (read.facts["how"], read.facts["read_step"], read.actor) == ("reload", 1, "A")


def test_a_reload_before_the_read_gives_the_length():
    events = [
        *STORED,
        remap(1, 2, 8, 9),
        ev.Reload(key="k1", slots=s(8, 9)),
        alloc("A", 10),
        decode((1, 4, 10)),
    ]
    assert rules(header(), events) == []


def test_a_transfer_that_holds_keeps_slots_from_being_free():
    events = [*ADDRESSED[:3], hold("xfer:t1", 4, 5), start(4, 5), free("A", 4, 5)]
    driver = Driver(header()).feed([*events, done()])
    assert driver.ledger.breaches == []
    driver.feed([free("xfer:t1", 4, 5), evict(4)])
    assert [b.rule for b in driver.ledger.breaches] == ["free-unheld"]
