"""A replay of what the model made finds nothing and leaves nothing out, whatever the settings and the pressure."""

from collections import Counter

import pytest

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.sim.workload import Workload, draw_requests
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.events import Source
from tests.replay.driving import replay_events
from tests.sim.made import request

# prompts of up to 300 tokens and outputs of up to 60, several at a time in a pool for four of them
LOAD = Workload(inputs=(8, 236), outputs=(0, 60), gap_ms=(0, 150), prefixes=(32, 64), burst=3)
K_BYTES = Source(name="k", bytes_per_slot=32, hashed_bytes=32)
WINDOW_BYTES = Source(name="k_swa", bytes_per_slot=32, hashed_bytes=16, group="swa")

SETTINGS = {
    "plain": {},
    "mixed": {"mixed_chunk": True},
    "unchunked": {"chunk_tokens": None, "max_prefill_tokens": 400},
    "window": {"window": 24, "window_slots": 1536, "sources": (K_BYTES, WINDOW_BYTES)},
    "window-mixed": {
        "window": 40,
        "window_slots": 1536,
        "sources": (K_BYTES, WINDOW_BYTES),
        "mixed_chunk": True,
    },
    "drafts": {"draft_tokens": 4, "graph_lanes": (1, 2, 4, 8)},
    "retract": {"conservativeness": 0, "max_running_requests": 16},
    "graphs": {"graph_lanes": (1, 2, 4, 8), "map_pages": True},
    "priorities": {
        "priorities": True,
        "preempt_above": 0,
        "max_running_requests": 4,
        "retraction": "priority",
    },
    "no-cache": {"prefix_cache": False},
    "lpm": {"policy": "lpm"},
}


def load(seed):
    """Drawn requests, every third one the next turn of a conversation, with priorities."""
    last = {}
    for number, one in enumerate(draw_requests(LOAD, seed=f"audit/{seed}", count=40)):
        session = f"s{number % 5}"
        after = last.get(session) if number % 3 == 0 else None
        last[session] = one.rid
        yield request(
            one.rid,
            at=one.arrival_s,
            prompt=one.input_length,
            output=one.output_length,
            blocks=one.block_ids,
            block_size=one.block_size,
            priority=number % 4,
            session=session,
            after=after,
            delay_s=0.2,
        )


def served(name, page_size, seed):
    settings = {
        "pool_slots": 1536,
        "row_width": 384,
        "max_running_requests": 8,
        "chunk_tokens": 128,
        "sources": (K_BYTES,),
        "sweep_interval": 16,
        "expect_tokens": True,
        **SETTINGS[name],
    }
    header, stream = simulate(
        load(seed), SimConfig(page_size=page_size, seed=seed, **settings).with_capacities()
    )
    return header, list(stream)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("name", SETTINGS)
def test_replay_is_clean_and_complete(name, page_size):
    counts = Counter()
    for seed in (1, 2):
        header, events = served(name, page_size, seed)
        found = replay_events(header, events)
        result = found.result
        assert found.signature() == []
        assert result.incidents == []
        assert result.capacity_violations == []
        assert result.counters.missing() == []
        assert (result.totals.unjudged, result.totals.entries > 0) == (0, True)
        assert result.totals.steps == sum(type(event) is ev.Forward for event in events)
        counts.update(type(event).__name__ for event in events)
        counts.update(event.why for event in events if type(event) is ev.End)
    assert counts["done"] == 80
    if name != "no-cache":
        # a pool that never turns over would prove little
        assert counts["Evict"] > 0
        assert counts["Share"] > 0
    if name in ("retract", "priorities"):
        assert counts["retract"] > 0
