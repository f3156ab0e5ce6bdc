"""Forwards: lanes, flat lists and rows that don't fit together, and what may look odd and is legal."""

from __future__ import annotations

import pytest

from tests.trace.samples import read_trace, trace_error, write_trace


def forward(rows, prefix, **keys):
    return {"ev": "forward", "rows": rows, "prefix": prefix, **keys}


@pytest.mark.parametrize(
    "line",
    [
        forward([], [], mode="idle"),
        forward([], [], mode="idle", width=4),
        forward([1, 2], [0, 7]),
        forward([4, 4], [0, 7]),
        forward([1, 0, 0], [3, 1, 1], width=3),
        forward([1], [0], lens=[0]),
        forward([1, 2], [0, 7], lens=[3, 1], tokens=[1, 2, 3, 4], slots=[[5, 4]], positions=[0, 1, 2, 7]),
        forward([1, 2], [9, 9], slots=[-1, 2**62], tokens=[0, 2**31 - 1], expect=[-1, 5]),
        forward([1], [9], slots=[-(2**63)]),
        forward([1], [2**31 - 1], lens=[1], positions=[-5]),
        forward([1], [1], lens=[4], accepted=[4], mode="verify", chain_positions=False),
        forward([1, 0], [1, 1], accepted=[0, 1]),
        forward([1], [1], width=4, pad_writes=[7, 999], pad_lanes=[3, 1]),
        forward([1], [1], pad_writes=[-1], byte_salt=-7),
    ],
    ids=str,
)
def test_legal(tmp_path, line):
    assert len(read_trace(write_trace(tmp_path, line))) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (forward([1, 2], [0]), "$.prefix: prefix has length 1, rows has length 2"),
        (forward([1], [0, 0]), "$.prefix: prefix has length 2, rows has length 1"),
        (forward([1, 2], [0, 0], lens=[1]), "$.lens: lens has length 1, rows has length 2"),
        (forward([1, 2], [0, 0], accepted=[1]), "$.accepted: accepted has length 1, rows has length 2"),
        (forward([4, 5], [0, 0]), "$.rows[1]: row 5 is outside the page table (0 to 4)"),
        (forward([1, 5, 7], [0, 0, 0]), "$.rows[1]: row 5 is outside the page table (0 to 4)"),
        (
            forward([1, 0, 0, 2], [0, 0, 0, 0]),
            "$.rows[3]: row 2 comes after the padded lane 1, padded lanes come last",
        ),
        (
            forward([1, 2], [0, 0], tokens=[1]),
            "$.tokens: tokens has length 1, 2 is expected (one token a lane)",
        ),
        (
            forward([1, 0], [0, 0], lens=[3, 1], tokens=[1, 2, 3]),
            "$.tokens: tokens has length 3, 4 is expected (the sum of lens)",
        ),
        (
            forward([1], [0], lens=[3], slots=[[4, 4]]),
            "$.slots: slots has length 4, 3 is expected (the sum of lens)",
        ),
        (
            forward([1], [0], lens=[3], positions=[0]),
            "$.positions: positions has length 1, 3 is expected (the sum of lens)",
        ),
        (
            forward([1], [0], lens=[3], expect=[0]),
            "$.expect: expect has length 1, 3 is expected (the sum of lens)",
        ),
        (
            forward([], [], mode="idle", tokens=[1]),
            "$.tokens: tokens has length 1, 0 is expected (one token a lane)",
        ),
        (forward([1, 2], [0, 0], width=1), "$.width: width is 1, rows has 2 lanes"),
        (
            forward([1, 2], [0, 0], lens=[1, 4], accepted=[1, 5]),
            "$.accepted[1]: 5 tokens are kept, the lane wrote 4",
        ),
        (forward([1], [0], accepted=[2]), "$.accepted[0]: 2 tokens are kept, the lane wrote 1"),
        (
            forward([1], [0], pad_lanes=[0]),
            "$.pad_lanes: pad_lanes has length 1, pad_writes has length 0",
        ),
        (
            forward([1], [0], pad_writes=[[3, 4]], pad_lanes=[0]),
            "$.pad_lanes: pad_lanes has length 1, pad_writes has length 4",
        ),
        (
            forward([1], [0], width=4, pad_writes=[3, 4], pad_lanes=[3, 4]),
            "$.pad_lanes[1]: lane 4 is outside the batch (0 to 3)",
        ),
        (
            forward([1], [0], pad_writes=[3], pad_lanes=[1]),
            "$.pad_lanes[0]: lane 1 is outside the batch (0 to 0)",
        ),
        (forward([1], [0], slots=[]), "$.slots: the slot list is empty, it needs at least 1 slot"),
        (forward([-1], [0]), "$.rows[0]: a whole number of at least 0 is expected, found -1"),
        (forward([1], [-1]), "$.prefix[0]: a whole number of at least 0 is expected, found -1"),
        (forward([1], [0], lens=[-1]), "$.lens[0]: a whole number of at least 0 is expected, found -1"),
    ],
)
def test_errors(tmp_path, line, message):
    assert str(trace_error(write_trace(tmp_path, line))) == f"trace.jsonl:2: {message}"
