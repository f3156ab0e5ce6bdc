"""Rules about the tokens that one forward writes."""

from __future__ import annotations

from kvcanary_cli.capacity.changes import (
    Change,
    any_chunk,
    covered_tokens,
    disable_prefill_graph,
    leave_out,
    lower_chunk,
    lower_prefill_graph,
    raise_prefill,
)
from kvcanary_cli.capacity.features import DYNAMIC_CHUNKING
from kvcanary_cli.capacity.formula import floor_page
from kvcanary_cli.capacity.prefill import CHUNK, MAX_PREFILL
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes
from kvcanary_cli.kernels import messages


def longest_prompt(setup: Setup) -> int:
    """Tokens of the longest prompt that is prefilled at once: context less one, and it fits the pool."""
    return min(setup.pool.context_length - 1, setup.pool.tokens)


def largest_extend(setup: Setup) -> int:
    """Tokens of the largest prefill before it is padded."""
    chunk = setup.prefill.chunk
    return min(chunk, setup.pool.tokens) if chunk > 0 else longest_prompt(setup)


def _chunk_zero(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.prefill.chunk != 0:
        return None
    return Hit(
        text=f"chunk 0 switches chunking off but counts as a limit of 0: a prefill of more than "
        f"{sizes.write_entry:,} tokens would raise",
        when="at the first long prompt",
        server_message=messages.write_entry(
            max(longest_prompt(setup), sizes.write_entry + 1), sizes.write_entry
        ),
    )


def _chunk_zero_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(lower_chunk(setup, sizes) or any_chunk(setup),)]


def _entry_chunk(setup: Setup, sizes: Sizes) -> Hit | None:
    demand = min(setup.prefill.chunk, setup.pool.tokens)
    if setup.prefill.chunk <= 0 or demand <= sizes.write_entry:
        return None
    return Hit(
        text=f"a forward of {demand:,} tokens would raise",
        when="at the first long prompt",
        server_message=messages.write_entry(demand, sizes.write_entry),
    )


def _entry_chunk_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    demand = min(setup.prefill.chunk, setup.pool.tokens)
    chunk = lower_chunk(setup, sizes)
    return [*([(chunk,)] if chunk else []), (raise_prefill(demand),)]


def _entry_unchunked(setup: Setup, sizes: Sizes) -> Hit | None:
    # a chunk of 0 is the rule above: raising the limits does not help it
    if setup.prefill.chunk >= 0 or longest_prompt(setup) <= sizes.write_entry:
        return None
    demand = longest_prompt(setup)
    return Hit(
        text=f"a prompt of {demand:,} tokens would raise",
        when="at the first long prompt",
        server_message=messages.write_entry(demand, sizes.write_entry),
    )


def _entry_unchunked_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    chunk = lower_chunk(setup, sizes)
    return [(raise_prefill(longest_prompt(setup)),), *([(chunk,)] if chunk else [])]


def _several(setup: Setup) -> int:
    """Tokens of several whole prompts of one forward: one token short of the budget, and the longest."""
    return min(setup.prefill.max_tokens - 1 + longest_prompt(setup), setup.pool.tokens)


def _entry_several(setup: Setup, sizes: Sizes) -> Hit | None:
    is_whole = setup.prefill.chunk < 0 and not setup.is_radix_on
    if not is_whole or longest_prompt(setup) > sizes.write_entry or _several(setup) <= sizes.write_entry:
        return None
    return Hit(
        text=f"several whole prompts in one forward, up to {_several(setup):,} tokens, would raise",
        when="under load",
        server_message=messages.write_entry(_several(setup), sizes.write_entry),
        value=sizes.write_entry,
        need=_several(setup),
        setting=CHUNK,
    )


def _entry_several_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    chunk = lower_chunk(setup, sizes)
    return [(chunk._replace(note=""),)] if chunk else []


def _entry_bucket(setup: Setup, sizes: Sizes) -> Hit | None:
    graph = setup.prefill_graph
    # what does not fit without padding is the business of the rules above
    fitting = min(largest_extend(setup), sizes.write_entry)
    padded = graph.most_padded(fitting)
    if padded <= sizes.write_entry:
        return None
    return Hit(
        text=f"a prefill of {fitting:,} tokens fits, but is replayed as {padded:,}, which would raise",
        when="at the first long prompt",
        server_message=messages.write_entry(padded, sizes.write_entry),
        value=sizes.write_entry,
        need=padded,
        setting=graph.setting,
    )


def _entry_bucket_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    fitting = [size for size in setup.prefill_graph.sizes if size <= sizes.write_entry]
    changes: list[Change] = []
    if fitting:
        changes += lower_prefill_graph(request, setup, fitting[-1])
    needed = setup.prefill_graph.most_padded(largest_extend(setup))
    if setup.prefill.chunk < 0 or setup.prefill.chunk >= needed:
        changes.append(raise_prefill(needed))
    changes += disable_prefill_graph(request)
    return [(change,) for change in changes]


def _dynamic_demand(setup: Setup) -> int:
    """Tokens of a dynamic chunk: profiled at a quarter more than the chunk, then up to the prefill budget."""
    return max(setup.prefill.chunk * 5 // 4, min(setup.prefill.max_tokens, setup.pool.tokens))


def _dynamic_chunking(setup: Setup, sizes: Sizes) -> Hit | None:
    is_on = DYNAMIC_CHUNKING in setup.features.on and setup.parallel.pp > 1 and setup.prefill.chunk > 0
    demand = _dynamic_demand(setup)
    if not is_on or demand <= sizes.write_entry:
        return None
    profiled = setup.prefill.chunk * 5 // 4
    if profiled > sizes.write_entry:
        text = (
            f"profiling at {profiled:,} tokens would raise; the server drops dynamic chunks in silence and "
            "trips over the phase of the canary in its next forward"
        )
    else:
        text = f"a chunk that grows to {demand:,} tokens would raise"
    return Hit(
        text=text,
        when="at start-up" if profiled > sizes.write_entry else "at the first long prompt",
        server_message=messages.write_entry(max(profiled, demand), sizes.write_entry),
        value=sizes.write_entry,
        need=demand,
        setting=DYNAMIC_CHUNKING,
    )


def _dynamic_chunking_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    sets: ChangeSets = [leave_out(request, DYNAMIC_CHUNKING)]
    covered = sizes.write_req * setup.speculation.draft_tokens
    chunk = floor_page(covered * 4 // 5, setup.pool.page_size)
    if chunk > 0 and not setup.prefill.is_forced:
        sets.append(
            (
                Change(flag=CHUNK, value=str(min(chunk, setup.prefill.chunk) * setup.parallel.attn_dp)),
                Change(flag=MAX_PREFILL, value=str(min(covered, covered_tokens(setup, sizes)))),
            )
        )
    return sets


ENTRY_RULES = (
    Rule(
        id="chunk-zero",
        code="C2",
        severity="error",
        title="a chunk of 0 is no chunking for the scheduler and a limit of 0 for the canary",
        capacity="write entries",
        check=_chunk_zero,
        changes=_chunk_zero_changes,
        is_bound=True,
    ),
    Rule(
        id="entry-chunk",
        code="C2",
        severity="error",
        title="one chunk of a prefill is larger than the write entries",
        capacity="write entries",
        check=_entry_chunk,
        changes=_entry_chunk_changes,
        is_bound=True,
    ),
    Rule(
        id="entry-unchunked",
        code="C2",
        severity="error",
        title="without chunks the longest prompt is larger than the write entries",
        capacity="write entries",
        check=_entry_unchunked,
        changes=_entry_unchunked_changes,
        is_bound=True,
    ),
    Rule(
        id="dynamic-chunking",
        code="C2",
        severity="error",
        title="dynamic chunks grow beyond the write entries",
        check=_dynamic_chunking,
        changes=_dynamic_chunking_changes,
        is_bound=True,
    ),
    Rule(
        id="entry-bucket",
        code="C2",
        severity="warning",
        title="a prefill is padded to a graph size beyond the write entries",
        check=_entry_bucket,
        changes=_entry_bucket_changes,
        is_bound=True,
    ),
    Rule(
        id="entry-several",
        code="C2",
        severity="warning",
        title="several whole prompts of one forward can exceed the write entries",
        check=_entry_several,
        changes=_entry_several_changes,
        is_bound=True,
    ),
)
