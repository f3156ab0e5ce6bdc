"""The server of a set-up in the scheduler model: its settings, and what the requests of a file need of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvcanary_cli.capacity.formula import floor_page

if TYPE_CHECKING:
    from kvcanary_cli.capacity.setup import Setup
    from kvcanary_cli.capacity.sizes import Sizes
    from kvcanary_cli.capacity.workload import Workload
    from kvcanary_cli.sim.config import SimConfig
    from kvcanary_cli.sim.facts import StepFacts


def server_settings(setup: Setup, sizes: Sizes) -> dict[str, Any]:
    """Arguments of `SimConfig`: pool, window, batching rules, graphs and draft tokens of the server."""
    from kvcanary_cli.sim.graphs import captured_lanes

    pool, chunk, running = setup.pool, setup.prefill.chunk, sizes.running.requests
    drafts = setup.speculation.draft_tokens if setup.speculation.algorithm else 0
    graphs = setup.graph.max_batch if setup.graph.is_on else 0
    page = pool.page_size
    return {
        "pool_slots": floor_page(pool.tokens, page) + page,
        "page_size": page,
        "row_width": -(-pool.context_length // page) * page,
        "max_running_requests": running,
        "chunk_tokens": chunk if chunk > 0 else None,
        "max_prefill_tokens": setup.prefill.max_tokens,
        "prefix_cache": setup.is_radix_on,
        "window": setup.window.size or 0,
        "window_slots": 0 if setup.window.tokens is None else floor_page(setup.window.tokens, page) + page,
        "draft_tokens": drafts,
        # the model runs no drafts beside a prefill
        "mixed_chunk": setup.is_mixed and not drafts,
        "graph_lanes": captured_lanes(graphs, max_running_requests=running, speculative=drafts > 0)
        if graphs
        else (),
    }


OnProgress = Callable[[int, int], None]
"""Gets the forwards so far, and the verify entries of the last one."""


def measure_requests(
    path: str,
    config: SimConfig,
    *,
    input_format: str | None = None,
    block_size: int | None = None,
    on_progress: OnProgress = lambda steps, entries: None,
) -> Workload:
    """Needs of a request trace that the model serves; no trace event is made for it.

    Raises: InputError for a file that can't be used, or whose requests the pool can't hold.
    """
    from kvcanary_cli.capacity.workload import Peak, Workload
    from kvcanary_cli.errors import InputError
    from kvcanary_cli.sim.run import file_details, naming
    from kvcanary_cli.sim.scheduler import observe
    from kvcanary_cli.trace.formats import open_requests
    from kvcanary_cli.trace.request_trace import ReadOptions

    trace = open_requests(path, format_name=input_format, options=ReadOptions(block_size=block_size))
    trace.require_schedulable()
    requests = tokens = entries = window_entries = Peak()
    steps = 0

    def see(facts: StepFacts) -> None:
        nonlocal requests, tokens, entries, window_entries, steps
        requests = requests.with_step(max(facts.lanes, facts.width), facts.step)
        tokens = tokens.with_step(facts.tokens, facts.step)
        entries = entries.with_step(facts.verify_entries, facts.step)
        window_entries = window_entries.with_step(facts.window_entries, facts.step)
        steps += 1
        on_progress(steps, facts.verify_entries)

    with naming(path):
        observe(trace, config, see)
    if not steps:
        raise InputError("the workload has no forward", where=path)
    verify = {"full": entries, **({"swa": window_entries} if config.window else {})}
    title = f"{trace.format.title}, served by the scheduler model"
    return Workload(path, title, steps, requests, tokens, tuple(verify.items()), file_details(trace))
