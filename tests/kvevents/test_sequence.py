"""Lost batches, restarts, batches that come twice or out of order, and recordings that begin late."""

from __future__ import annotations

import pytest

from tests.kvevents.streams import CLEARED, audit, batches, codes, removed, stored

GAP = [*batches(stored([1])), *batches(removed([5]), stored([7], parent=6), removed([1]), first=3)]


def test_lost_batches_are_counted_and_what_they_explain_is_not_blamed(tmp_path):
    result = audit(tmp_path, GAP)
    assert codes(result) == []
    assert [(gap.first, gap.last, gap.place.line) for gap in result.gaps] == [(1, 2, 2)]
    assert (result.lost, result.num_gaps) == (2, 1)
    assert result.log.unproven == {"S01": 1, "S03": 1}


def test_what_lost_batches_can_not_explain_is_still_found(tmp_path):
    lines = [*GAP, *batches(stored([7], parent=6, tokens=[1, 1]), first=6)]
    assert codes(audit(tmp_path, lines)) == ["S05"]


def test_a_clear_ends_the_doubt(tmp_path):
    lines = [*GAP, *batches(CLEARED, removed([9]), first=6)]
    assert codes(audit(tmp_path, lines)) == ["S01"]


def test_a_recording_that_begins_late(tmp_path):
    result = audit(tmp_path, batches(removed([5]), CLEARED, removed([6]), first=17))
    assert (result.started_at, result.lost, codes(result)) == (17, 0, ["S01"])
    assert result.log.unproven == {"S01": 1}


def test_a_recorders_note_of_a_gap_counts_once(tmp_path):
    first, *rest = GAP
    lines = [first, {"gap": {"seq": [1, 2], "before": False}}, *rest]
    result = audit(tmp_path, lines)
    assert (result.lost, result.num_gaps, codes(result)) == (2, 1, [])
    lines = [{"gap": {"seq": [0, 4], "before": True}}, *batches(removed([5]), first=5)]
    result = audit(tmp_path, lines)
    assert (result.started_at, result.lost, codes(result)) == (5, 0, [])


def test_a_frame_that_could_not_be_decoded_is_a_lost_batch(tmp_path):
    bad = {"malformed": {"seq": 1, "error": "is cut off"}}
    result = audit(tmp_path, [*batches(stored([1])), bad, *batches(removed([5]), first=2)])
    assert (result.malformed, result.lost, codes(result)) == (1, 0, [])


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_restart_empties_the_cache(tmp_path, is_noted):
    later = batches(stored([1], tokens=[9, 9]), removed([1]))
    for line in later:
        line["ts"] += 1_000
    note = [{"restart": {"seq": 0, "last": 1}}] if is_noted else []
    result = audit(tmp_path, [*batches(stored([1]), stored([2])), *note, *later])
    assert (result.restarts, codes(result), result.lost) == (1, [], 0)


def test_a_restart_at_the_same_number(tmp_path):
    lines = [*batches(stored([1])), *batches(stored([1], tokens=[9, 9]))]
    lines[1]["ts"] += 50
    result = audit(tmp_path, lines)
    assert (result.restarts, result.repeated, codes(result)) == (1, 0, [])


def test_a_noted_restart_needs_no_later_time(tmp_path):
    note = {"restart": {"seq": 1, "last": 2}}
    later = batches(stored([7]), first=1)
    later[0]["ts"] = 1.0
    result = audit(tmp_path, [*batches(stored([1]), stored([2]), stored([3])), note, *later])
    assert (result.restarts, result.lost, codes(result)) == (1, 1, [])


def test_a_restart_whose_first_batches_are_lost(tmp_path):
    later = batches(removed([5]), first=2)
    later[0]["ts"] += 1_000
    result = audit(tmp_path, [*batches(*[stored([each]) for each in range(1, 5)]), *later])
    assert (result.restarts, result.lost, codes(result)) == (1, 2, [])


def test_numbers_that_go_backwards(tmp_path):
    lines = batches(stored([1]), stored([2]), stored([3]))
    assert codes(audit(tmp_path, lines)) == []
    result = audit(tmp_path, [lines[0], lines[2], lines[1]])
    assert (codes(result), result.lost) == (["S10"], 1)


def test_a_batch_that_comes_twice_is_used_once(tmp_path):
    first, second = batches(stored([1]), removed([1]))
    result = audit(tmp_path, [first, second, second])
    assert (codes(result), result.repeated) == ([], 1)


def test_ranks_with_numbers_of_their_own(tmp_path):
    zero = batches(stored([1]), stored([2]), removed([2]))
    one = batches(stored([1]), stored([2]), removed([2]), rank=1)
    lines = [line for pair in zip(zero, one, strict=True) for line in pair]
    result = audit(tmp_path, lines)
    assert (codes(result), result.lost, result.restarts) == ([], 0, 0)
    result = audit(tmp_path, [*lines[:2], *lines[4:]])
    assert (codes(result), result.lost, result.num_gaps) == ([], 2, 2)


def test_ranks_that_share_numbers(tmp_path):
    lines = batches(*[stored([each]) for each in range(1, 9)])
    for line in lines[1::2]:
        line["rank"] = 1
    result = audit(tmp_path, lines)
    assert (codes(result), result.lost, result.started_at) == ([], 0, None)
    result = audit(tmp_path, [*lines[:4], *lines[5:]])
    assert (codes(result), result.lost) == ([], 1)
