"""Traces recorded from SGLang's own classes: the same violations as its own canary reported, forward by forward."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest

from kvcanary_cli.kernels.consts import (
    RING_AUX,
    RING_BITS,
    RING_EXPECTED_TOKEN,
    RING_POSITION,
    RING_SLOT,
    RING_STORED_PREV_HASH,
    RING_STORED_TOKEN,
    RING_TAG,
    LaunchTag,
)
from kvcanary_cli.trace.reader import open_trace
from tests.replay.driving import DEVICES, replay_events

TRACES = Path(__file__).parent.parent / "traces" / "sglang-classes"

REASONS = {
    "verify_chain_hash": 1,
    "verify_position": 2,
    "verify_real_kv_hash": 4,
    "write_token": 8,
    "write_position": 16,
    "verify_token": 32,
}
LINE = re.compile(
    r"forward=(?P<step>\d+) kv_canary violation: launch_tag=(?P<tag>\w+) fail_reason=(?P<reasons>[\w+]+) "
    r"slot_idx=(?P<slot>-?\d+) position=(?P<position>-?\d+) stored_token=(?P<stored>-?\d+) "
    r"expected_token=(?P<expected>-?\d+) stored_chain_hash=0x(?P<hash>[0-9a-f]{16}) "
    r"expected_aux=0x(?P<aux>[0-9a-f]{16})"
)

Row = tuple[int, str, int, int, int, int, int, int, int]


def reported(name: str) -> Counter[Row]:
    """What SGLang's canary said."""
    rows: Counter[Row] = Counter()
    with gzip.open(TRACES / f"{name}.canary.txt.gz", "rt") as file:
        for text in file:
            match = LINE.match(text)
            if match:
                bits = sum(REASONS[reason] for reason in match["reasons"].split("+"))
                numbers = [int(match[key]) for key in ("slot", "position", "stored", "expected")]
                rows[
                    int(match["step"]),
                    match["tag"],
                    bits,
                    *numbers,
                    int(match["hash"], 16),
                    int(match["aux"], 16),
                ] += 1
    return rows


def replayed(name: str, device: object) -> tuple[Counter[Row], int]:
    """What our replay says, and the step of the last forward."""
    reader = open_trace(str(TRACES / f"{name}.jsonl.gz"))
    found = replay_events(reader.header, (event for _, event in reader), device)
    word = 2**64 - 1
    rows: Counter[Row] = Counter()
    for batch in found.batches:
        for row in batch.rows.tolist():
            rows[
                batch.step, LaunchTag(row[RING_TAG]).name, row[RING_BITS], row[RING_SLOT], row[RING_POSITION],
                row[RING_STORED_TOKEN], row[RING_EXPECTED_TOKEN], row[RING_STORED_PREV_HASH] & word,
                row[RING_AUX] & word,
            ] += 1  # fmt: skip
    return rows, found.result.totals.steps - 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["clean_p1", "clean_p16", "rowkeeps_p1", "outslot_p16"])
def test_same_violations_as_the_real_canary(name, device):
    ours, last_step = replayed(name, device)
    theirs = reported(name)
    # A server looks at violations one forward later, so nobody ever looked at the sweep after its last forward.
    unseen = Counter(
        {row: n for row, n in ours.items() if row[0] == last_step and row[1].startswith("SWEEP")}
    )
    assert ours - unseen == theirs


def test_the_clean_traces_have_no_violation_and_the_others_do():
    assert {
        name: sum(reported(name).values()) for name in ("clean_p1", "clean_p16", "rowkeeps_p1", "outslot_p16")
    } == {
        "clean_p1": 0,
        "clean_p16": 0,
        "rowkeeps_p1": 184,
        "outslot_p16": 37,
    }
    for name in ("clean_p1", "clean_p16"):
        assert not replayed(name, DEVICES[0].values[0])[0]
