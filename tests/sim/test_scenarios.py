import itertools
from dataclasses import replace

import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.sim.scenarios import DEFAULT_STEPS, SCENARIOS, SWEEP_INTERVAL, scenario
from kvcanary_cli.sim.workload import BLOCK_TOKENS, Workload, draw_requests
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import TraceWriter, encode_event
from tests.sim.made import batch_lens, forwards, only
from tests.sim.strict_ledger import Ledger, check

NAMES = list(SCENARIOS)


def made(name, **options):
    header, stream = scenario(name, **options)
    return header, list(stream)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_is_clean(name, page_size):
    steps = 40 if name == "prefill" else DEFAULT_STEPS
    ledger = check(*scenario(name, page_size=page_size, steps=steps, seed=3))
    assert ledger.steps == steps
    # the pool has turned over: requests have ended, and slots were evicted and handed out again
    assert len(ledger.ended["done"]) >= 8
    assert ledger.counts["evict"] > 0
    assert ledger.counts["truth"] > 0
    assert ledger.counts["sweep"] == steps // SWEEP_INTERVAL + 1


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_stays_inside_its_capacities(name):
    header, stream = made(name)
    limits = header.capacities
    for forward in forwards(stream):
        assert max(len(forward.rows), forward.width or 0) <= limits.write_req_capacity
        assert sum(batch_lens(forward)) <= limits.write_entry_capacity
        assert sum(forward.prefix) <= limits.verify_capacity


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_events(name):
    first, second, other = (
        [encode_event(event) for event in [header, *stream]]
        for header, stream in (made(name, seed=7), made(name, seed=7), made(name, seed=8))
    )
    assert first == second
    assert first[1:] != other[1:]


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_is_a_trace_that_can_be_read(name, tmp_path):
    header, stream = made(name, steps=20)
    path = tmp_path / "trace.jsonl"
    with TraceWriter(str(path), header) as writer:
        for event in stream:
            writer.write(event)
    with open_trace(str(path)) as reader:
        ledger = Ledger(reader.header)
        for _, event in reader:
            ledger.feed(event)
    assert ledger.finish().steps == 20


def test_each_scenario_has_what_its_name_says():
    streams = {name: made(name) for name in NAMES}
    modes = {name: {event.mode for event in forwards(stream)} for name, (_, stream) in streams.items()}
    assert modes["decode"] == {"extend", "decode"}
    assert modes["mixed"] == {"extend", "decode", "mixed"}
    assert modes["spec"] == {"extend", "verify"}
    assert any(forward.width for forward in forwards(streams["decode"][1]))
    assert any(event.why == "retract" for event in only(streams["decode"][1], ev.End))
    assert max(len(forward.rows) for forward in forwards(streams["prefill"][1])) > 8
    assert len(only(streams["shared-prefix"][1], ev.Share)) > 50
    assert any(event.at for event in only(streams["shared-prefix"][1], ev.Share))
    assert any(not event.swa.all() for event in only(streams["swa"][1], ev.SwaMap))
    assert any(min(forward.accepted) < 4 for forward in forwards(streams["spec"][1]) if forward.accepted)
    assert any(max(forward.accepted) == 4 for forward in forwards(streams["spec"][1]) if forward.accepted)
    prompts = [event.rid for event in only(streams["chunked"][1], ev.Bind)]
    pieces = sum(forward.mode == "extend" for forward in forwards(streams["chunked"][1]))
    assert pieces > 2 * len(prompts)


def test_byte_sources_of_both_halves_and_groups():
    assert [source.half for source in scenario("shared-prefix")[0].sources] == ["k", "v"]
    assert [source.group for source in scenario("swa")[0].sources] == ["full", "swa"]
    assert all(scenario(name)[0].sources for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_requests_alone_run_to_their_end(name):
    ledger = check(*scenario(name, requests=12, seed=1))
    assert sorted(ledger.ended["done"]) == sorted(f"req-{number}" for number in range(1, 13))
    assert not ledger.ended["cancel"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("pool_slots", "page_size"), [(160, 1), (512, 16), (640, 64)])
def test_requests_shrink_to_a_small_pool(name, pool_slots, page_size):
    header, stream = scenario(name, pool_slots=pool_slots, page_size=page_size, requests=10)
    assert header.pool.slots == pool_slots
    ledger = check(header, stream)
    assert len(ledger.ended["done"]) == 10
    # any two fit side by side, in the smallest pool there is
    room = min(header.num_slots(group.kind) for group in header.groups) - page_size
    assert 2 * max(len(tokens) for tokens in ledger.truth.values()) <= room


def test_steps_and_requests_together_end_at_the_first():
    assert check(*scenario("mixed", steps=30, requests=1000)).steps == 30
    assert check(*scenario("prefill", steps=1000, requests=3)).steps < 10


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chunkd", {}, "scenario `chunkd` is not known, did you mean `chunked`?"),
        ("mixed", {"steps": 0}, "`steps` is 0, at least 1 is needed"),
        (
            "mixed",
            {"page_size": 24, "pool_slots": 1000},
            "the page size 24 does not divide the pool of 1,000 slots",
        ),
        ("mixed", {"requests": -5}, "`requests` is -5, at least 1 is needed"),
        ("mixed", {"page_size": 0}, "`page_size` is 0, at least 1 is needed"),
        (
            "mixed",
            {"pool_slots": -16},
            "a pool of -16 slots has 0 to hand out in this scenario, at least 64 are needed",
        ),
        (
            "mixed",
            {"pool_slots": 64},
            "a pool of 64 slots has 48 to hand out in this scenario, at least 64 are needed",
        ),
        (
            "swa",
            {"pool_slots": 128},
            "a pool of 128 slots has 48 to hand out in this scenario, at least 64 are needed",
        ),
    ],
    ids=["name", "steps", "page", "requests", "page 0", "negative", "pool", "window"],
)
def test_what_does_not_fit_is_refused(name, options, message):
    with pytest.raises(UsageError) as caught:
        scenario(name, **options)
    assert str(caught.value) == message


WORKLOAD = Workload(inputs=(3, 9), outputs=(2, 5), gap_ms=(1, 20), prefixes=(33, 64), shared_percent=60)


def test_drawn_requests_stay_in_their_ranges():
    requests = list(draw_requests(WORKLOAD, seed="x", count=300))
    lengths = [request.input_length - len(request.block_ids) * BLOCK_TOKENS for request in requests]
    assert (min(lengths), max(lengths)) == (3, 9)
    outputs = [request.output_length for request in requests]
    assert (min(outputs), max(outputs)) == (2, 5)
    assert 150 < sum(bool(request.block_ids) for request in requests) < 210
    assert len({request.block_ids for request in requests if request.block_ids}) == 3
    assert max(request.input_length + request.output_length for request in requests) <= WORKLOAD.longest
    gaps = [b.arrival_s - a.arrival_s for a, b in itertools.pairwise(requests)]
    assert 0.0005 < min(gaps) < max(gaps) < 0.0205


def test_bursts_arrive_together():
    requests = list(draw_requests(replace(WORKLOAD, burst=3), seed="x", count=9))
    assert [len(list(group)) for _, group in itertools.groupby(r.arrival_s for r in requests)] == [3, 3, 3]


def test_workload_shrinks_until_it_fits():
    assert WORKLOAD.longest == 9 + 5 + 64
    assert WORKLOAD.fitted(78) is WORKLOAD
    assert WORKLOAD.fitted(77).longest <= 77
    tiny = WORKLOAD.fitted(10)
    assert tiny.longest <= 10
    assert tiny.inputs[0] >= 1
    assert replace(tiny, prefixes=(0, 0)) == tiny
