"""What an observer is told of each forward, with and without events."""

import itertools
import random
from collections import deque

import pytest

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.scheduler import observe, simulate
from kvcanary_cli.trace import events as ev
from tests.sim.made import batch_lens, draw_config, draw_requests, forwards, request
from tests.sim.strict_ledger import Ledger


def facts_of(requests, config):
    seen = []
    observe(requests, config, seen.append)
    return seen


@pytest.mark.parametrize("seed", range(40))
def test_facts_are_the_same_with_and_without_events(seed):
    rng = random.Random(seed)
    config = draw_config(rng, seed)
    requests = draw_requests(rng, 30)
    told = []
    deque(simulate(requests, config, on_step=told.append)[1], maxlen=0)
    assert told == facts_of(requests, config)
    assert told


@pytest.mark.parametrize("seed", range(40, 60))
def test_facts_say_what_the_events_say(seed):
    rng = random.Random(seed)
    config = draw_config(rng, seed)
    requests = draw_requests(rng, 30)
    seen = []
    header, stream = simulate(requests, config, on_step=seen.append)
    events = list(stream)
    batches = forwards(events)
    assert [fact.step for fact in seen] == list(range(len(batches)))
    for fact, forward in zip(seen, batches, strict=True):
        assert (fact.mode, fact.lanes) == (forward.mode, len(forward.rows))
        assert fact.tokens == sum(batch_lens(forward))
        assert fact.verify_entries == sum(forward.prefix)
        assert max(fact.width, fact.lanes) == max(forward.width or 0, len(forward.rows))
        assert round(fact.time_s, 6) == forward.t
        if config.window:
            assert fact.window_entries == sum(min(prefix, config.window) for prefix in forward.prefix)
    # memory, counted by a ledger that knows only the events
    ledger, number = Ledger(header), 0
    for event in events:
        if type(event) is ev.Forward:
            held = {slot for slot, names in ledger.holders.items() if names}
            cached = {slot for slot in held if "cache" in ledger.holders[slot]}
            requested = {slot for slot in held if ledger.holders[slot] - {"cache"}}
            fact = seen[number]
            assert (fact.used_slots, fact.cached_slots) == (len(held), len(cached))
            assert fact.request_slots == len(requested)
            assert fact.running == len(ledger.row_rid)
            assert fact.finished == len(ledger.ended["done"])
            assert fact.retracted == len(ledger.ended["retract"])
            number += 1
        ledger.feed(event)
    assert number == len(seen)


def test_tokens_sampled_and_prompts_begun():
    seen = facts_of(
        [request("a", prompt=40, output=3), request("b", prompt=8, output=3)], SimConfig(chunk_tokens=32)
    )
    assert [(fact.sampled_tokens, fact.prompted_tokens) for fact in seen] == [(0, 0), (2, 48), (2, 0), (2, 0)]
    assert [(fact.prefill_tokens, fact.decode_lanes) for fact in seen] == [(32, 0), (16, 0), (0, 2), (0, 2)]


def test_time_is_the_sum_of_the_costs():
    seen = facts_of([request("a", prompt=40, output=5)], SimConfig())
    for fact, after in itertools.pairwise(seen):
        assert after.time_s == pytest.approx(fact.time_s + fact.seconds)


def test_silent_run_needs_the_same_input():
    with pytest.raises(Exception, match="needs 25,002 pages"):
        facts_of([request("a", prompt=400_029, output=1)], SimConfig(row_width=1_000_000))


def test_request_without_output_samples_nothing_and_ends_with_its_prompt():
    seen = facts_of([request("a", output=0), request("b", output=2)], SimConfig())
    assert [(fact.sampled_tokens, fact.lanes, fact.finished) for fact in seen] == [(1, 2, 0), (1, 1, 1)]
