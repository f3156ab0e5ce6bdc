"""From a request trace on disk to the events of a modelled server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.sim.settings import Asked, server
from kvcanary_cli.trace.events import Event, Header
from kvcanary_cli.trace.formats import TRACE_V1, open_requests
from kvcanary_cli.trace.reader import SKIP_HINT
from kvcanary_cli.trace.request_trace import ReadOptions, RequestTrace

REPORTED_SETTINGS = (
    "scheduler",
    "pool_slots",
    "page_size",
    "row_width",
    "max_running_requests",
    "chunk_tokens",
    "max_prefill_tokens",
    "max_num_batched_tokens",
    "max_num_seqs",
    "prefix_cache",
    "mixed_chunk",
    "conservativeness",
    "costs",
    "seed",
)


@dataclass(kw_only=True, slots=True)
class Model:
    """What a request trace becomes.

    Attributes:
        format: the file's format, in words.
        header, events: trace v1; `events` can be read once.
        details: facts about the file and the model's settings, for a report.
    """

    format: str
    header: Header
    events: Iterator[Event]
    details: dict[str, Any] = field(default_factory=dict)


def simulate_file(
    path: str,
    kind: str,
    *,
    config: SimConfig | None = None,
    limit_requests: int | None = None,
    skip_bad_lines: bool = False,
    block_size: int | None = None,
    seed: int = 0,
    scheduler: str | None = None,
    capacities: str | None = None,
) -> Model:
    """Serve the requests of a file with the scheduler model.

    Args:
        kind: what `sniff` says of the file.
        config: the modelled server; None: that of `capacities`, or else `SimConfig()`, with rows as wide as the
            largest request needs and the launch capacities that follow. `seed` goes into it.
        limit_requests: how many requests of the file to take.
        block_size: tokens that a block id names, where the file does not say.
        scheduler: sglang or vllm; None: what `capacities` says, else sglang.
        capacities: config with pool, launch arguments and settings of the model.

    Raises: InputError for rows that can't be used, and while events are read for a request that is too
        large for the pool.
    """
    if kind == TRACE_V1:
        raise InputError(f"the scheduler model needs a request trace, this is {kind}", where=path)
    options = ReadOptions(
        block_size=block_size, limit=limit_requests, skip_bad_lines=skip_bad_lines, hint=SKIP_HINT
    )
    trace = open_requests(path, format_name=kind, options=options)
    trace.require_schedulable()
    if config is None:
        config = server(Asked(scheduler=scheduler), capacities=capacities, longest=trace.longest)
    config = replace(config, seed=seed)
    header, events = simulate(trace, config)
    settings = asdict(config)
    details = {
        **file_details(trace),
        "scheduler": {name: settings[name] for name in REPORTED_SETTINGS},
    }
    return Model(format=trace.format.title, header=header, events=_placed(events, path), details=details)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors about a request say which file it is from."""
    try:
        yield
    except InputError as error:
        error.where = error.where or ("<stdin>" if path == "-" else path)
        raise


def _placed(events: Iterator[Event], path: str) -> Iterator[Event]:
    with naming(path):
        yield from events


def file_details(trace: RequestTrace) -> dict[str, Any]:
    """Facts about a request trace, for a report."""
    return {
        "requests": trace.records,
        "longest_tokens": trace.longest,
        "reordered": trace.reordered,
        "simultaneous": trace.simultaneous,
        "moved_ids": trace.moved_ids,
        "block_size": trace.block_size if trace.block_ids else None,
        "block_size_from": trace.block_size_from if trace.block_ids else None,
        "notes": [asdict(note) for note in trace.notes],
        "unknown_keys": dict(trace.unknown_keys),
        "bad_lines": trace.bad_lines,
    }
