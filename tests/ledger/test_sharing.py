"""Shares and publishes: held, written, and what the sharer thinks they are."""

from __future__ import annotations

import pytest

from kvcanary_cli.trace import events as ev
from tests.ledger.driver import breaches, header, only, rules
from tests.ledger.made import alloc, bind, decode, evict, forward, hold, leaves, publish, s, share

TOKENS = [11, 12, 13, 14]
WRITTEN = [bind("A", 1), alloc("A", range(4, 8)), forward(1, 0, range(4, 8), tokens=TOKENS)]
B_READS = [alloc("B", 20), decode((2, 2, 20))]


def truth(rid: str, *tokens: int, at: int = 0) -> ev.Truth:
    return ev.Truth(rid=rid, at=at, tokens=list(tokens))


def test_share_of_what_nobody_holds():
    gone = [*WRITTEN, *leaves("A", 1, range(4, 8))]
    found = only(header(), [*gone, bind("B", 2), share("B", 4, 5)], "share-unheld")
    assert (found.actor, found.slots.tolist(), found.facts["how"]) == ("B", [4, 5], "share")
    assert found.facts["released"] == {"step": 0, "line": 5, "by": "A", "why": "free"}


@pytest.mark.parametrize(("event", "how"), [(hold("xfer:t", 4), "hold"), (publish("A", 4), "publish")])
def test_hold_and_publish_of_what_nobody_holds(event, how):
    gone = [*WRITTEN, *leaves("A", 1, range(4, 8))]
    assert only(header(), [*gone, event], "share-unheld").facts["how"] == how


def test_share_of_what_the_cache_still_holds():
    events = [
        *WRITTEN,
        publish("A", 4, 5),
        *leaves("A", 1, range(4, 8)),
        bind("B", 2),
        share("B", 4, 5),
        *B_READS,
    ]
    assert rules(header(), events) == []


def test_share_before_the_bind_is_judged_all_the_same():
    early = [*WRITTEN, truth("B", 11, 99), share("B", 4, 5), bind("B", 2), *B_READS]
    assert rules(header(), early) == ["share-token-mismatch"]
    unwritten = [alloc("A", 4, 5), share("B", 4, 5), bind("B", 2), *B_READS]
    assert rules(header(), unwritten) == ["share-unwritten"]


def test_share_of_what_was_never_written():
    events = [bind("A", 1), alloc("A", range(4, 8)), forward(1, 0, 4), bind("B", 2), share("B", range(4, 7))]
    found = only(header(), [*events, alloc("B", 20), decode((2, 3, 20))], "share-unwritten")
    assert (found.step, found.slots.tolist(), found.facts["positions"]) == (1, [5, 6], [1, 2])
    assert (found.actor, found.victims, found.row) == ("A", ("B",), 2)


def test_a_recycled_page_is_not_written_until_its_new_owner_writes_it():
    events = [
        *WRITTEN,
        *leaves("A", 1, range(4, 8)),
        alloc("C", 4, 5),
        bind("B", 2),
        share("B", 4, 5),
        *B_READS,
    ]
    assert rules(header(), events) == ["share-unwritten"]


def test_reader_and_producer_in_one_forward():
    events = [bind("A", 1), alloc("A", 4, 5), bind("B", 2), share("B", 4, 5), alloc("B", 20)]
    both = ev.Forward(rows=[1, 2], prefix=[0, 2], lens=[2, 1], slots=s(4, 5, 20))
    assert rules(header(), [*events, both]) == ["share-unwritten"]


def test_a_delivery_between_share_and_forward_is_in_time():
    events = [*WRITTEN, ev.Offload(key="k", slots=s(4, 5)), alloc("C", 8, 9), bind("B", 2), share("B", 8, 9)]
    assert rules(header(), [*events, ev.Reload(key="k", slots=s(8, 9)), *B_READS]) == []


def test_tokens_that_the_sharer_does_not_have():
    events = [*WRITTEN, bind("B", 2), truth("B", 11, 12, 99), share("B", range(4, 7))]
    found = only(header(), events, "share-token-mismatch")
    assert (found.actor, found.slots.tolist(), found.positions, found.line) == ("B", [6], (2, 2), 7)
    facts = {key: found.facts[key] for key in ("position", "have", "want", "source")}
    assert facts == {"position": 2, "have": 13, "want": 99, "source": "written"}


def test_a_truth_that_comes_after_the_share_is_judged_at_the_forward():
    events = [*WRITTEN, bind("B", 2), share("B", 4, 5), truth("B", 11, 99), *B_READS]
    found = only(header(), events, "share-token-mismatch")
    assert (found.step, found.slots.tolist()) == (1, [5])


def test_the_right_tokens_are_fine():
    assert rules(header(), [*WRITTEN, bind("B", 2), truth("B", 11, 12, 13), share("B", 4, 5), *B_READS]) == []


def test_draft_pools_store_the_token_one_further_on():
    head = header(token_position_offset=1)
    events = [*WRITTEN, bind("B", 2), truth("B", 10, 11, 12), share("B", 4, 5), *B_READS]
    assert rules(head, events) == []
    assert rules(head, [*WRITTEN, bind("B", 2), truth("B", 11, 12, 13), share("B", 4, 5), *B_READS]) == [
        "share-token-mismatch"
    ]


def test_published_tokens_stand_in_where_nothing_was_seen_written():
    # a gap hides the write: what the cache says of the slot is all there is
    gap = [*WRITTEN, ev.Gap(), publish(None, 4, 5, tokens=[11, 12]), bind("B", 2), truth("B", 11, 13)]
    found = only(header(), [*gap, share("B", 4, 5)], "share-token-mismatch")
    assert (found.facts["source"], found.facts["have"], found.facts["want"]) == ("published", 12, 13)


def test_publish_under_tokens_that_were_not_written():
    found = only(header(), [*WRITTEN, publish("A", 4, 5, tokens=[11, 77])], "publish-token-mismatch")
    assert (found.actor, found.victims, found.slots.tolist()) == ("A", ("cache",), [5])
    assert (found.facts["position"], found.facts["have"], found.facts["want"]) == (1, 12, 77)
    assert rules(header(), [*WRITTEN, publish("A", 4, 5, tokens=[11, 12])]) == []


def test_publish_of_what_is_not_written_even_after_the_next_forward():
    events = [*WRITTEN, alloc("A", 8, 9), publish("A", 8, 9, at=4)]
    found = only(header(), [*events, decode((1, 4, 8))], "publish-unwritten")
    assert (found.line, found.slots.tolist(), found.facts["positions"]) == (6, [9], [5])


def test_publish_when_the_forward_is_scheduled_is_fine():
    scheduled = [bind("A", 1), alloc("A", 4, 5), publish("A", 4, 5), forward(1, 0, 4, 5)]
    assert rules(header(), scheduled) == []
    assert rules(header(), [*scheduled, forward(1, 0, 4, 5)]) == ["write-shared"]


def key_stream(first: dict | None, second: dict | None) -> list[ev.Event]:
    """A publishes under one key; B shares that and publishes what it adds under another."""
    events = [*WRITTEN, publish("A", 4, 5, key=first), bind("B", 2), share("B", 4, 5), *B_READS]
    return [*events, publish("B", 20, at=2, after=5, key=second)]


def test_slots_used_under_another_key():
    found = only(
        header(), key_stream({"adapter": "x", "salt": 1}, {"adapter": "y", "salt": 1}), "key-mismatch"
    )
    assert (found.actor, found.victims, found.slots.tolist()) == ("B", ("A", "cache"), [4, 5])
    assert found.facts["differs"] == ["adapter"]
    assert (found.facts["own"], found.facts["published"]) == (
        {"adapter": "y", "salt": 1},
        {"adapter": "x", "salt": 1},
    )


def test_a_key_that_is_known_before_the_share():
    events = [
        *WRITTEN,
        publish("A", 4, 5, key={"adapter": "x"}),
        bind("B", 2),
        alloc("B", 20),
        decode((2, 0, 20)),
    ]
    known = [*events, publish("B", 20, key={"adapter": "y"})]
    assert rules(header(), [*known, share("B", 4)]) == ["key-mismatch"]


def test_an_entry_published_again_under_another_key():
    events = [*WRITTEN, publish("A", 4, 5, key={"salt": 1}), publish("A", 4, 5, key={"salt": 2})]
    assert only(header(), events, "key-mismatch").facts["differs"] == ["salt"]


@pytest.mark.parametrize(
    ("first", "second"),
    [({"adapter": "x"}, {"adapter": "x"}), (None, {"adapter": "x"}), ({"adapter": "x"}, None)],
    ids=["same", "publisher-unknown", "sharer-unknown"],
)
def test_keys_that_are_the_same_or_unknown(first, second):
    assert rules(header(), key_stream(first, second)) == []


def test_a_slot_that_was_evicted_takes_a_new_key():
    events = [*WRITTEN, publish("A", 4, key={"salt": 1}), evict(4), publish("A", 4, key={"salt": 2})]
    assert breaches(header(), events) == []
