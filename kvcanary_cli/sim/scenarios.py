"""Ready-made runs of the scheduler model, one for each way in which an engine batches.

Each has byte sources, the requests' true tokens, sweeps at intervals, and a pool so small that requests
end, slots are evicted and reused, and now and then a request is retracted. None of them has a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from kvcanary_cli.errors import UsageError, nearest
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.sim.workload import Workload, draw_requests
from kvcanary_cli.trace.events import Event, Header, Source

DEFAULT_STEPS = 200
DEFAULT_PAGE_SIZE = 16
SWEEP_INTERVAL = 20
LEAST_POOL_TOKENS = 64

K_BYTES = Source(name="k", bytes_per_slot=64, hashed_bytes=64)
V_BYTES = Source(name="v", bytes_per_slot=64, hashed_bytes=64, half="v")
WINDOW_BYTES = Source(name="k_swa", bytes_per_slot=32, hashed_bytes=32, group="swa")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What makes a scenario: its requests, its pool in tokens, and its server's settings.

    `chunk` are tokens of a prefill chunk, rounded up to pages; `window_share` is the part of the pool that
    the window pool has, in percent.
    """

    about: str
    workload: Workload
    pool_tokens: int
    settings: dict[str, Any]
    chunk: int | None = None
    window_share: int = 0


SCENARIOS = {
    "decode": Scenario(
        about="many short requests decode side by side, padded to captured graphs; some are retracted",
        workload=Workload(inputs=(8, 64), outputs=(24, 96), gap_ms=(0, 120), prefixes=(32, 64)),
        pool_tokens=1_280,
        chunk=512,
        settings={
            "max_running_requests": 16,
            "conservativeness": 0.1,
            "graph_lanes": (1, 2, 4, 8, 16),
            "map_pages": True,
            "expect_tokens": True,
        },
    ),
    "prefill": Scenario(
        about="whole prompts, several in a forward, and hardly any output",
        workload=Workload(inputs=(128, 1024), outputs=(1, 3), gap_ms=(0, 40), prefixes=(64, 256)),
        pool_tokens=16_384,
        settings={"max_running_requests": 16, "max_prefill_tokens": 4_096},
    ),
    "chunked": Scenario(
        about="long prompts in chunks, with decodes between them",
        workload=Workload(inputs=(256, 1536), outputs=(4, 24), gap_ms=(0, 400), prefixes=(64, 256)),
        pool_tokens=8_192,
        chunk=256,
        settings={"max_running_requests": 16},
    ),
    "mixed": Scenario(
        about="chunks of long prompts and running decodes in the same forward",
        workload=Workload(inputs=(64, 768), outputs=(16, 64), gap_ms=(0, 300), prefixes=(64, 128)),
        pool_tokens=6_144,
        chunk=128,
        settings={"max_running_requests": 16, "mixed_chunk": True, "expect_tokens": True},
    ),
    "shared-prefix": Scenario(
        about="nearly every prompt starts like others, some at the same time; K and V halves",
        workload=Workload(
            inputs=(16, 96),
            outputs=(8, 32),
            gap_ms=(0, 400),
            prefixes=(128, 512),
            shared_percent=90,
            burst=4,
        ),
        pool_tokens=4_096,
        chunk=1_024,
        settings={"max_running_requests": 24, "sources": (K_BYTES, V_BYTES), "publish_tokens": True},
    ),
    "swa": Scenario(
        about="hybrid model: full and sliding-window pools with a map between them",
        workload=Workload(inputs=(32, 256), outputs=(32, 128), gap_ms=(0, 200), prefixes=(64, 128)),
        pool_tokens=6_144,
        chunk=256,
        window_share=50,
        settings={"max_running_requests": 16, "window": 64, "sources": (K_BYTES, WINDOW_BYTES)},
    ),
    "spec": Scenario(
        about="speculative decoding: drafts are verified, rejected ones are written over",
        workload=Workload(inputs=(16, 128), outputs=(32, 128), gap_ms=(0, 150), prefixes=(32, 64)),
        pool_tokens=2_560,
        chunk=512,
        settings={"max_running_requests": 16, "draft_tokens": 4, "expect_tokens": True},
    ),
}


def scenario(
    name: str,
    *,
    steps: int | None = None,
    requests: int | None = None,
    seed: int = 0,
    pool_slots: int | None = None,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> tuple[Header, Iterator[Event]]:
    """A scenario as trace v1: the header and the events, made while they are read.

    Args:
        name: a key of `SCENARIOS`.
        steps: forwards after which what still runs is cancelled. None: 200, or until all `requests` ended.
        requests: how many requests arrive. None: as many as the steps can take.
        pool_slots: slots of the full pool, page 0 included; requests are made shorter to fit a small one.

    The same arguments give the same events.

    Raises: UsageError for an unknown name or sizes that don't fit together.
    """
    if name not in SCENARIOS:
        close = nearest(name, SCENARIOS)
        raise UsageError(
            f"scenario `{name}` is not known" + (f", did you mean `{close}`?" if close else ""),
            hint="scenarios are " + ", ".join(SCENARIOS),
        )
    for what, value in (("steps", steps), ("requests", requests), ("page_size", page_size)):
        if value is not None and value < 1:
            raise UsageError(f"`{what}` is {value:,}, at least 1 is needed")
    if steps is None and requests is None:
        steps = DEFAULT_STEPS
    chosen = SCENARIOS[name]
    config, workload = _settings(chosen, steps, seed, pool_slots, page_size)
    header, events = simulate(draw_requests(workload, seed=f"{name}/{seed}", count=requests), config)
    return replace(header, producer={"name": "kvcanary", "scenario": name, "seed": seed}), events


def _settings(
    chosen: Scenario, steps: int | None, seed: int, pool_slots: int | None, page_size: int
) -> tuple[SimConfig, Workload]:
    """The scenario's server with a pool of that size, and its requests scaled to it."""
    pages = -(-chosen.pool_tokens // page_size)
    slots = pool_slots if pool_slots is not None else (pages + 1) * page_size
    window_slots = slots * chosen.window_share // 100 // page_size * page_size
    tokens = (window_slots or slots) - page_size
    if tokens < LEAST_POOL_TOKENS:
        raise UsageError(
            f"a pool of {slots:,} slots has {max(0, tokens):,} to hand out in this scenario, "
            f"at least {LEAST_POOL_TOKENS} are needed"
        )
    # half the pool, rounded pages and drafts included, so that two requests always fit side by side
    draft_tokens = chosen.settings.get("draft_tokens", 0)
    workload = chosen.workload.fitted(max(8, tokens // 2 - page_size - draft_tokens))
    settings = {
        "pool_slots": slots,
        "page_size": page_size,
        "row_width": -(-(workload.longest + draft_tokens) // page_size) * page_size,
        "chunk_tokens": None if chosen.chunk is None else -(-chosen.chunk // page_size) * page_size,
        "sources": (K_BYTES,),
        "sweep_interval": SWEEP_INTERVAL,
        "window_slots": window_slots,
        "max_steps": steps,
        "seed": seed,
        **chosen.settings,
    }
    return SimConfig(**settings).with_capacities(), workload
