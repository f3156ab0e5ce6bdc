"""Headers whose sizes and names contradict each other."""

from __future__ import annotations

import copy

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.events import Group, Pool, Source
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.header_checks import check_header
from tests.trace.samples import HEADER, header, trace_error, write_trace

SWA = Group(kind="swa", window=4, slots=16)


def source(name="k", bytes_per_slot=64, hashed_bytes=16, **keys):
    return Source(name=name, bytes_per_slot=bytes_per_slot, hashed_bytes=hashed_bytes, **keys)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"groups": [Group(kind="full"), SWA]},
        {"groups": [SWA, Group(kind="full", slots=64)]},
        {"groups": [Group(kind="swa", window=4)], "sources": [source(group="swa")]},
        {"groups": [Group(kind="swa", window=4, slots=64)]},
        {"sources": [source(hashed_bytes=0), source("v", 16, 16, half="v")]},
        {"pool": Pool(slots=32, page_size=16, rows=2, row_width=1)},
        {"records": []},
        {"records": ["alloc", "swa_map", "forward"]},
        {"token_position_offset": 1},
    ],
)
def test_headers_that_fit(changes):
    check_header(header(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "kv-trace"}, '$.format: format is "kv-trace", "kvcanary-trace" is expected'),
        ({"version": 0}, "$.version: trace version is 0, this kvcanary reads version 1"),
        (
            {"pool": Pool(slots=64, rows=1, row_width=8)},
            "$.pool.rows: the page table has 1 row, it needs 2: row 0 is the padding row",
        ),
        (
            {"pool": Pool(slots=64, page_size=24, rows=2, row_width=8)},
            "$.pool.slots: page size 24 does not divide the pool of 64 slots",
        ),
        (
            {"pool": Pool(slots=16, page_size=16, rows=2, row_width=8)},
            "$.pool.slots: the pool has 16, at least 32 are needed: page 0 is padding",
        ),
        ({"groups": []}, '$.groups: the list is empty, it needs "full", "swa" or both'),
        ({"groups": [Group(kind="full"), Group(kind="full")]}, '$.groups[1]: group "full" is there twice'),
        ({"groups": [SWA, SWA]}, '$.groups[1]: group "swa" is there twice'),
        (
            {"groups": [Group(kind="full", window=4)]},
            '$.groups[0].window: window is 4, only group "swa" has one',
        ),
        (
            {"groups": [Group(kind="full", slots=65)]},
            '$.groups[0].slots: group "full" has 65 slots, the pool has 64',
        ),
        ({"groups": [Group(kind="swa")]}, '$.groups[0].window: group "swa" needs a window of at least 1'),
        ({"groups": [SWA]}, '$.groups[0].slots: group "swa" has 16 slots, the pool has 64'),
        (
            {"groups": [Group(kind="full"), Group(kind="swa", window=4)]},
            '$.groups[1]: group "swa" beside "full" needs slots, its own number of them',
        ),
        (
            {
                "pool": Pool(slots=64, page_size=16, rows=2, row_width=8),
                "groups": [Group(kind="full"), Group(kind="swa", window=4, slots=40)],
            },
            "$.groups[1].slots: page size 16 does not divide the window pool of 40 slots",
        ),
        (
            {"groups": [Group(kind="full"), Group(kind="swa", window=4, slots=1)]},
            "$.groups[1].slots: the window pool has 1, at least 2 are needed: page 0 is padding",
        ),
        (
            {"sources": [source(), source("v"), source()]},
            '$.sources[2].name: source "k" is there already, as number 0',
        ),
        ({"sources": [source(bytes_per_slot=40)]}, "$.sources[0].bytes_per_slot: 40 is not a multiple of 16"),
        (
            {"sources": [source(), source("v", hashed_bytes=8)]},
            "$.sources[1].hashed_bytes: 8 is not a multiple of 16",
        ),
        (
            {"sources": [source(hashed_bytes=80)]},
            "$.sources[0].hashed_bytes: hashed_bytes is 80, the slot has 64",
        ),
        (
            {"sources": [source(group="swa")]},
            '$.sources[0]: source "k" is of group "swa", the groups are full',
        ),
        (
            {"groups": [Group(kind="swa", window=4)], "sources": [source()]},
            '$.sources[0]: source "k" is of group "full", the groups are swa',
        ),
        ({"records": ["alloc", "swapmap"]}, '$.records[1]: unknown event "swapmap", did you mean "swa_map"?'),
        ({"records": ["header"]}, '$.records[0]: unknown event "header"'),
    ],
)
def test_headers_that_contradict_themselves(changes, message):
    with pytest.raises(LineError) as caught:
        check_header(header(**changes))
    assert str(caught.value) == message


def test_records_hint_lists_the_events():
    with pytest.raises(LineError) as caught:
        check_header(header(records=["zzz"]))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("events are bind, unbind, ")
    assert "note" not in caught.value.hint


def test_reading_checks_the_header(tmp_path):
    head = copy.deepcopy(HEADER)
    head["pool"]["rows"] = 1
    error = trace_error(write_trace(tmp_path, head=head))
    assert isinstance(error, InputError)
    assert str(error).startswith("trace.jsonl:1: $.pool.rows: the page table has 1 row")
