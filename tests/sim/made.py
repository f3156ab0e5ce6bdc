"""Requests and settings drawn from a seed, small enough to hit every limit of the model."""

from __future__ import annotations

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.requests import Request

BLOCK = 8
LONGEST = 96  # tokens of prompt and output


def request(rid="r", *, at=0.0, prompt=16, output=4, blocks=(), block_size=BLOCK, **more):
    return Request(
        rid=rid,
        arrival_s=at,
        input_length=prompt,
        output_length=output,
        block_ids=tuple(blocks),
        block_size=block_size,
        **more,
    )


def draw_requests(rng, count):
    """Bursts and pauses; prompts share beginnings with one of three families, some are equal."""
    families = [[rng.randrange(1000) for _ in range(10)] for _ in range(3)]
    made, at = [], 0.0
    for number in range(count):
        at += rng.choice([0, 0, 0.01, 0.5])
        prompt, output = rng.randint(1, 64), rng.randint(0, 32)
        num_blocks = -(-prompt // BLOCK)
        shared = rng.choice(families)[: rng.randint(0, num_blocks)]
        own = [10_000 + number * 100 + index for index in range(num_blocks - len(shared))]
        made.append(request(f"r{number}", at=at, prompt=prompt, output=output, blocks=[*shared, *own]))
    return made


def draw_config(rng, seed):
    """Pools that just hold the largest request, or somewhat more; every feature on and off."""
    page_size = rng.choice([1, 2, 4, 16])
    pages = -(-(LONGEST + 8) // page_size) + 1 + rng.choice([0, 1, 5, 20])
    settings = {"window": 0}
    feature = rng.choice(["plain", "plain", "window", "drafts"])
    if feature == "window":
        settings = {"window": rng.choice([1, 5, 20]), "window_slots": pages * page_size}
    elif feature == "drafts":
        settings = {"draft_tokens": rng.choice([1, 3, 5])}
    policy = rng.choice(["fcfs", "lof", "lpm"])
    return SimConfig(
        pool_slots=pages * page_size,
        page_size=page_size,
        row_width=112,
        max_running_requests=rng.choice([1, 3, 8]),
        chunk_tokens=rng.choice([None, page_size, 16, 32]),
        max_prefill_tokens=rng.choice([10, 40, 1000]),
        prefix_cache=rng.randrange(5) > 0,
        mixed_chunk=feature != "drafts" and rng.randrange(2) == 0,
        conservativeness=rng.choice([0, 0.3, 1, 2]),
        policy=policy,
        priorities=policy != "lpm" and rng.randrange(2) == 0,
        preempt_above=rng.choice([None, 0, 1]),
        retraction=rng.choice(["length", "priority"]),
        max_new_tokens=rng.choice([None, None, 20]),
        prefill_max_requests=rng.choice([None, None, 2]),
        sweep_interval=rng.choice([0, 3]),
        map_pages=rng.randrange(3) == 0,
        publish_tokens=rng.randrange(3) == 0,
        expect_tokens=rng.randrange(3) == 0,
        graph_lanes=(2, 4),
        max_steps=rng.choice([None, None, 50]),
        seed=seed,
        **settings,
    )


def run(requests, **settings):
    """All events of a small run, after the header."""
    defaults = {"pool_slots": 1024, "page_size": 4, "row_width": 512, "chunk_tokens": 64}
    return list(simulate(requests, SimConfig(**{**defaults, **settings}))[1])


def only(stream, kind):
    return [event for event in stream if type(event) is kind]


def forwards(stream):
    return only(stream, ev.Forward)


def batch_lens(forward):
    return forward.lens or [1] * len(forward.rows)
