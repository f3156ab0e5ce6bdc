"""SGLang's own canary runs beside the recorder; replay finds what it found, forward by forward.

Compared are the launch, the bits, the slot and the position of every violation in HEAD and TAIL, and for the
checks of chain, position and token also what was stored and expected. Not compared: byte hashes themselves
(replay makes bytes of its own, so it agrees on *whether* they changed, not on their values), and sweeps.
"""

from __future__ import annotations

from collections import Counter

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
from tests.peer import faults, stubs
from tests.peer.recording import mixed_requests
from tests.replay.driving import replay_events

REAL_KV = 4
CANARY = {
    "server_kv_canary": "log",
    "server_kv_canary_real_data": "partial",
    "server_disable_cuda_graph": True,
}


def row_of(step, row):
    """What is compared of a violation."""
    seen = (step, LaunchTag(row[RING_TAG]).name, row[RING_BITS], row[RING_SLOT], row[RING_POSITION])
    if row[RING_BITS] & REAL_KV:
        return seen
    values = (row[RING_STORED_TOKEN], row[RING_EXPECTED_TOKEN], row[RING_STORED_PREV_HASH], row[RING_AUX])
    return (*seen, *values)


class Beside:
    """SGLang's canary in the recorded world; `rows` are its violations by forward."""

    def __init__(self, recording):
        world = recording.world
        manager = stubs.real_canary(world.runner, world.tree, recording.server_args)
        world.complete_batch = stubs.note_all_ids
        self.rows = Counter()
        self._log = manager._device_state.violation_log
        self._num_seen = 0
        forward = world.runner.forward

        def counted(batch):
            step = world.num_forwards
            forward(batch)
            end = int(self._log.violation_write_index[0])
            assert end <= len(self._log.violation_ring)
            for row in self._log.violation_ring[self._num_seen : end].tolist():
                self.rows[row_of(step, row)] += 1
            self._num_seen = end

        world.runner.forward = counted


def replayed_rows(recording):
    recording.close()
    reader = open_trace(str(recording.paths[0]))
    found = replay_events(reader.header, (event for _, event in reader))
    rows = Counter()
    for batch in found.batches:
        for row in batch.rows.tolist():
            rows[row_of(batch.step, row)] += 1
    return rows


@pytest.fixture
def beside(record, monkeypatch):
    monkeypatch.setenv("SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT", "1")
    monkeypatch.setenv("SGLANG_KV_CANARY_RING_CAPACITY", "8192")

    def start(**options):
        recording = record(**options, **CANARY)
        return recording, Beside(recording)

    return start


@pytest.mark.parametrize("page_size", [1, 16])
def test_both_find_nothing_in_a_healthy_run(beside, page_size):
    recording, canary = beside(page_size=page_size, slots=224)
    mixed_requests(recording.world, 6)
    recording.world.run()
    assert canary.rows == Counter() == replayed_rows(recording)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        (faults.wrong_slot, {"radix": False}),
        (faults.entry_elsewhere, {"radix": False}),
        (faults.entry_elsewhere_unseen, {"radix": False, "read_rows": 1}),
        (faults.forget_a_lock, {"slots": 176}),
        (faults.stale_row, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_both_find_the_same_violations(beside, fault, options, page_size):
    recording, canary = beside(page_size=page_size, **options)
    fault(recording)
    assert canary.rows
    assert replayed_rows(recording) == canary.rows
