"""The vLLM model: its batches by hand, and its traces against a strict ledger and the replay."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.costs import CostModel
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.sim.vllm import VllmScheduler
from kvcanary_cli.trace import events as ev
from tests.sim.made import LONGEST, batch_lens, draw_requests, forwards, only, request
from tests.sim.strict_ledger import check


def config(**settings):
    defaults = {"pool_slots": 256, "page_size": 4, "row_width": 128, "max_num_batched_tokens": 64}
    return SimConfig(**{"scheduler": "vllm", **defaults, **settings})


def run(requests, **settings):
    return list(simulate(requests, config(**settings))[1])


def facts(requests, **settings):
    seen = []
    list(simulate(requests, config(**settings), on_step=seen.append)[1])
    return seen


def draw_config(rng, seed):
    """Pools that just hold the largest request, or somewhat more; every setting in several sizes."""
    page_size = rng.choice([1, 2, 4, 16])
    pages = -(-LONGEST // page_size) + 1 + rng.choice([0, 1, 5, 20])
    return SimConfig(
        scheduler="vllm",
        pool_slots=pages * page_size,
        page_size=page_size,
        row_width=112,
        max_num_seqs=rng.choice([1, 3, 8]),
        max_num_batched_tokens=rng.choice([1, 7, 16, 40, 1000]),
        chunk_tokens=None,
        prefix_cache=rng.randrange(5) > 0,
        sweep_interval=rng.choice([0, 3]),
        map_pages=rng.randrange(3) == 0,
        publish_tokens=rng.randrange(3) == 0,
        expect_tokens=rng.randrange(3) == 0,
        max_steps=rng.choice([None, None, 50]),
        seed=seed,
    )


@pytest.mark.parametrize("block", range(4))
def test_clean_under_pressure(block):
    counts = Counter()
    for seed in range(block * 15, block * 15 + 15):
        rng = random.Random(seed)
        settings, requests, seen = draw_config(rng, seed), draw_requests(rng, 30), []
        ledger = check(*simulate(requests, settings, on_step=seen.append))
        if settings.max_steps is None:
            assert sorted(ledger.ended["done"]) == sorted(request.rid for request in requests)
        assert ledger.steps == len(seen)
        assert ledger.max_lanes <= settings.max_num_seqs
        assert max(fact.tokens for fact in seen) <= settings.max_num_batched_tokens
        assert seen[-1].retracted == len(ledger.ended["retract"])
        counts.update(ledger.counts)
        counts.update({why: len(rids) for why, rids in ledger.ended.items()})
    # a draw that never evicts, shares or preempts would prove little
    assert min(counts[name] for name in ("evict", "share", "retract", "map", "cancel", "publish")) > 0


@pytest.mark.parametrize("seed", range(4))
def test_replay_of_a_tiny_pool_is_clean(seed, tmp_path):
    from kvcanary_cli.commands._replay_run import RunRequest, run_command
    from kvcanary_cli.progress import Progress
    from kvcanary_cli.trace.writer import TraceWriter

    requests = draw_requests(random.Random(seed), 25)
    tiny = config(pool_slots=4 * 26, max_num_batched_tokens=24, max_num_seqs=6, sweep_interval=2, seed=seed)
    header, events = simulate(requests, tiny)
    path = str(tmp_path / "tiny.jsonl")
    with TraceWriter(path, header) as writer:
        told = list(events)
        for event in told:
            writer.write(event)
    assert any(event.why == "retract" for event in only(told, ev.End))
    for verify in ("full", "incremental"):
        report = run_command(
            RunRequest(path=path, device="cpu", verify=verify), Progress("replay", stream=None)
        )
        assert (report["status"], report["exit_code"]) == ("pass", 0)


def test_running_requests_come_first_inside_the_budget():
    stream = forwards(run([request("a", prompt=10, output=3), request("b", prompt=100, output=2)]))
    assert [batch_lens(forward) for forward in stream] == [[10, 54], [1, 46], [1, 1]]
    assert [forward.mode for forward in stream] == ["extend", "mixed", "decode"]


def test_a_prompt_without_room_for_all_of_it_waits():
    # a has 5 of 8 blocks; b's first chunk would fit, its prompt does not
    requests = [request("a", prompt=20, output=2), request("b", prompt=16, output=1)]
    stream = forwards(run(requests, pool_slots=36, max_num_batched_tokens=24))
    assert [batch_lens(forward) for forward in stream] == [[20], [1], [16]]


def test_no_more_requests_run_than_there_are_sequences():
    seen = facts([request(f"r{n}", prompt=4, output=3) for n in range(5)], max_num_seqs=2)
    assert max(fact.running for fact in seen) == 2
    assert seen[0].waiting == 3


def test_the_newest_is_preempted_and_finds_what_is_left_of_it():
    requests = [request("a", prompt=8, output=12), request("b", prompt=8, output=12)]
    stream = run(requests, pool_slots=4 * 8)
    ends = [(event.rid, event.why) for event in only(stream, ev.End)]
    assert ends == [("b", "retract"), ("a", "done"), ("b", "done")]
    again = [event for event in only(stream, ev.Share) if event.rid == "b"]
    assert [event.at for event in again] == [0]
    assert len(only(stream, ev.Truth)) == 2  # b's tokens are told once


def test_a_block_stays_cached_until_it_is_handed_out_again():
    blocks = (1, 2)
    first = request("a", prompt=16, output=1, blocks=blocks)
    second = request("b", at=5.0, prompt=16, output=1, blocks=blocks)
    seen = facts([first, second])
    assert (
        seen[-1].hit_tokens == 12
    )  # the last block is computed again: a forward has to sample from something
    assert facts([first, second], prefix_cache=False)[-1].hit_tokens == 0
    # request x needs all blocks but one
    between = request("x", at=1.0, prompt=96, output=1)
    assert facts([first, between, second], pool_slots=4 * 26, row_width=128)[-1].hit_tokens == 4


def test_facts_add_up():
    requests = [request(f"r{n}", prompt=10 + n, output=5) for n in range(4)]
    seen = facts(requests, costs=CostModel(prefill_token_s=0.001, decode_step_s=0.01))
    assert sum(fact.prompted_tokens for fact in seen) == sum(r.input_length for r in requests)
    assert sum(fact.sampled_tokens for fact in seen) == sum(r.output_length for r in requests)
    assert [fact.used_slots % 4 for fact in seen] == [0] * len(seen)
    assert all(fact.request_slots <= fact.used_slots for fact in seen)
    assert seen[1].time_s == pytest.approx(seen[0].seconds)
    assert seen[0].seconds == pytest.approx(0.001 * sum(r.input_length for r in requests))


def test_requests_that_can_never_run_are_refused():
    with pytest.raises(InputError, match="request r needs 26 pages of 4 slots, the pool has 25"):
        run([request(prompt=100, output=2)], pool_slots=4 * 26)
    with pytest.raises(InputError, match="request r needs 129 page-table columns, a row has 128"):
        run([request(prompt=128, output=2)])


def test_a_turn_waits_for_the_one_before():
    first = request("a", prompt=8, output=4)
    second = replace(request("b", prompt=8, output=1), after="a", delay_s=2.0)
    seen = facts([first, second])
    assert seen[-1].time_s == pytest.approx(seen[-2].time_s + seen[-2].seconds + 2.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_silent_run_decides_the_same(seed):
    rng = random.Random(seed)
    settings, requests = draw_config(rng, seed), draw_requests(rng, 30)
    told, silent = [], []
    list(simulate(requests, settings, on_step=told.append)[1])
    assert list(VllmScheduler(requests, settings, on_step=silent.append, events=False).events()) == []
    assert silent == told
