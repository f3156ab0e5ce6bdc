"""The same classes with a fault planted: the recording does not replay clean, and the right incident is named."""

from __future__ import annotations

import pytest

from tests.peer import faults
from tests.peer.recording import kinds, rules

CASES = [
    # fault, options of the recording, kind of the incident, rule that was broken
    (faults.free_twice, {"radix": False}, "K02", "free-unheld"),
    (faults.forget_a_lock, {"slots": 176}, "K01", "alloc-held"),
    (faults.wrong_slot, {"radix": False}, "K12", "write-outside-row"),
    (faults.entry_elsewhere, {"radix": False}, "K12", "row-names-foreign"),
    (faults.entry_elsewhere_unseen, {"radix": False, "read_rows": 1}, "K12", "row-names-foreign"),
    (faults.stale_row, {}, "K12", "row-names-foreign"),
]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("fault", "options", "kind", "rule"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_fault_is_found_and_named(record, fault, options, kind, rule, page_size):
    recording = record(page_size=page_size, **options)
    fault(recording)
    report = recording.replay()
    assert report["status"] == "fail"
    assert kinds(report) == {kind}
    assert rule in rules(report)
    assert report["coverage"]["steps"] == recording.world.num_forwards


def test_entry_written_behind_the_hooks_shows_at_the_release_when_rows_are_not_read(record):
    recording = record(radix=False)
    faults.entry_elsewhere_unseen(recording)
    report = recording.replay()
    assert report["status"] == "fail"
    assert rules(report) == {"free-unheld"}
