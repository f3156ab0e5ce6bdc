"""Facts become events: what is written, what is left out, what a page size changes."""

from __future__ import annotations

from tests.recorders.made import Here, Reading, ids, request


def prefilled(reading, req, *, row=1, slots=(1, 2, 3)):
    reading.book.bound([(row, req, ids(req))])
    count = len(slots)
    reading.book.extended([(row, req, 0, count, True)], Here(*slots, *slots))
    return reading.new()


def test_prefill_binds_allocates_and_maps():
    events = prefilled(Reading(), request())
    assert events == [
        {"ev": "bind", "row": 1, "rid": "A"},
        {"ev": "truth", "rid": "A", "at": 0, "tokens": [5, 6, 7]},
        {"ev": "alloc", "to": "A", "slots": [1, 2, 3]},
        {"ev": "map", "row": 1, "at": 0, "slots": [1, 2, 3]},
    ]


def test_prefix_is_shared_as_the_cache_gave_it_and_mapped_where_the_row_differs():
    reading = Reading()
    req = request(prompt=(5, 6, 7))
    reading.book.bound([(1, req, ids(req))])
    reading.new()
    # new slot 9, the cache's prefix 1, 2, and a row that says 1, 8, 9
    reading.book.extended([(1, req, 2, 1, True)], Here(9, 1, 2, 1, 8, 9))
    assert reading.new() == [
        {"ev": "alloc", "to": "A", "slots": [9]},
        {"ev": "share", "rid": "A", "at": 0, "slots": [1, 2]},
        {"ev": "map", "row": 1, "at": 1, "slots": [8, 9]},
    ]


def test_whole_pages_are_allocated_once_and_released_whole():
    reading = Reading(page_size=4)
    events = prefilled(reading, request(prompt=range(1, 7)), slots=(8, 9, 10, 11, 12, 13))
    assert events[2] == {"ev": "alloc", "to": "A", "slots": [[8, 8]]}
    req = request()
    reading.book.decoded([req], Here(1, 6, 14, 14))
    assert reading.new() == []
    reading.book.decoded([req], Here(1, 8, 16, 16))
    assert reading.new() == [{"ev": "alloc", "to": "A", "slots": [[16, 4]]}]
    reading.book.freed(req, Here(12, 13), False)
    reading.book.freed(req, Here(4), True)
    assert [event["slots"] for event in reading.new()] == [[[12, 4]], [[16, 4]]]


def test_decode_leaves_the_map_to_its_forward_unless_the_row_says_otherwise():
    reading = Reading()
    req = request()
    prefilled(reading, req)
    reading.book.decoded([req], Here(1, 3, 4, 4))
    assert reading.new() == [{"ev": "alloc", "to": "A", "slots": [4]}]
    reading.book.decoded([req], Here(1, 4, 5, 6))
    assert reading.new()[1] == {"ev": "map", "row": 1, "at": 4, "slots": [6]}


def test_forward_to_another_slot_than_the_row_pins_the_row_first():
    reading = Reading()
    req = request()
    prefilled(reading, req)
    reading.book.decoded([req], Here(1, 3, 4, 4))
    reading.new()
    # row 1, length 4, then id 9, slot 7 instead of 4, position 3
    reading.book.launched(0.5, "decode", None, 1, Here(1, 4, 9, 7, 3))
    mapped, forward = reading.new()
    assert mapped == {"ev": "map", "row": 1, "at": 3, "slots": [4]}
    assert (forward["slots"], forward["prefix"], "positions" in forward) == ([7], [3], False)


def test_new_tokens_are_told_once():
    reading = Reading()
    req = request()
    prefilled(reading, req)
    req.output_ids.extend([8, 9])
    for _ in range(2):
        reading.book.launched(0.0, "decode", None, 1, Here(1, 4, 8, 4, 3))
    told = [event for event in reading.new() if event["ev"] == "truth"]
    assert told == [{"ev": "truth", "rid": "A", "at": 3, "tokens": [8, 9]}]


def test_release_without_a_request_is_by_whoever_had_the_slots_last():
    reading = Reading()
    prefilled(reading, request("A"))
    prefilled(reading, request("B"), row=2, slots=(4, 5))
    reading.book.freed(None, Here(3, 4, 60), False)
    assert reading.new() == [
        {"ev": "free", "by": "A", "slots": [3]},
        {"ev": "free", "by": "B", "slots": [4]},
    ]


def test_checkpoint_publishes_what_is_new_and_shares_what_the_cache_had():
    reading = Reading()
    req = request()
    prefilled(reading, req)
    reading.book.checkpointed(1, req, [(ids(req), 2, Here(1, 2, 3))], 0, Here(20, 21, 3))
    assert reading.new() == [
        {"ev": "publish", "rid": "A", "at": 2, "slots": [3], "tokens": [7], "after": 21},
        {"ev": "share", "rid": "A", "at": 0, "slots": [20, 21]},
    ]


def test_request_gives_up_what_it_shares_with_its_row():
    reading = Reading()
    req = request()
    prefilled(reading, req)
    reading.book.unbound(1, req, "done", Here(1, 2))
    assert [event["ev"] for event in reading.new()] == ["free", "end", "unbind"]


def test_rows_are_relearned_after_a_loss():
    reading = Reading()
    req = request()
    prefilled(reading, req)
    reading.book.lost(3, "queue full")
    reading.book.relearned([(1, req, ids(req))], [3], Here(1, 2, 3))
    assert [event["ev"] for event in reading.new()] == ["gap", "bind", "truth", "map"]


def test_rows_read_back_give_what_nobody_was_seen_to_write():
    reading = Reading()
    prefilled(reading, request())
    reading.book.read_back([(1, 3)], Here(1, 2, 3))
    assert reading.new() == []
    reading.book.read_back([(1, 3)], Here(1, 9, 3))
    assert reading.new() == [{"ev": "map", "row": 1, "at": 1, "slots": [9]}]


def test_kinds_that_are_not_promised_are_not_written():
    reading = Reading(kinds=["bind", "truth"])
    assert {event["ev"] for event in prefilled(reading, request())} == {"bind", "truth"}


def test_names_that_mean_other_holders_are_changed():
    reading = Reading()
    reading.book.bound([(1, request("cache"), b""), (2, request("xfer:1"), b"")])
    assert [event["rid"] for event in reading.new()] == ["rid:cache", "rid:xfer:1"]


def test_row_that_another_request_takes_over_unseen_becomes_a_gap():
    reading = Reading()
    prefilled(reading, request("A"))
    reading.book.extended([(1, request("B"), 3, 1, False)], Here(4, 4))
    gap, *_ = reading.new()
    assert gap == {"ev": "gap", "forwards": 0, "why": "row 1 went from A to B without a release"}
