"""A clean trace of every scenario: nothing found, and exactly the checks that the trace asks for."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.sim.scenarios import SCENARIOS, scenario
from kvcanary_cli.trace import events as ev
from tests.replay.driving import DEVICES, replay_events


def expected_entries(header: ev.Header, events: list[ev.Event]) -> int:
    """Verify entries counted from the events alone: two phases a forward, the cache's entries a sweep."""
    halves = 2 if any(source.half == "v" for source in header.sources) else 1
    windows = [group.window or 0 for group in header.groups]
    cached: set[tuple[int, int]] = set()
    swa_map = np.zeros(header.pool.slots, np.int64)
    total = 0
    for event in events:
        if isinstance(event, ev.Forward):
            for row, prefix in zip(event.rows, event.prefix, strict=True):
                total += sum(
                    2 * halves * (min(prefix, window) if window else prefix) for window in windows if row
                )
        elif isinstance(event, ev.Publish):
            cached |= {(int(slot), event.at + i) for i, slot in enumerate(event.slots)}
        elif isinstance(event, ev.Evict) and event.group == "full":
            gone = set(event.slots.tolist())
            cached = {entry for entry in cached if entry[0] not in gone}
        elif isinstance(event, ev.SwaMap):
            swa_map[event.full] = event.swa
        elif isinstance(event, ev.Sweep):
            total += halves * len(cached)
            if len(windows) == 2:
                total += halves * sum(swa_map[slot] != 0 for slot, _ in cached)
    return total


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("page_size", [1, 16])
def test_clean_scenarios_pass(name, page_size, device):
    header, stream = scenario(name, steps=60, seed=3, page_size=page_size)
    events = list(stream)
    found = replay_events(header, events, device)
    assert found.signature() == []
    assert found.result.capacity_violations == []
    assert found.result.counters.missing() == []
    assert found.result.totals.entries == expected_entries(header, events)
    assert found.result.totals.steps == sum(isinstance(event, ev.Forward) for event in events)
    assert found.result.totals.unjudged == 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_check_tokens_and_bytes(name):
    header, stream = scenario(name, steps=30, seed=1)
    found = replay_events(header, stream)
    assert found.result.checks_tokens
    assert any(source.hashed_bytes for source in found.result.layout.sources)
    assert found.result.totals.sweeps > 0
