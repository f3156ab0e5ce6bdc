"""The server's sizing arithmetic, one formula one function, on plain integers.

Sources: `kv_canary/capacities.py` and the pool configurator of sglang 0.5.23; the formulas are the same in
all releases of `versions.tsv`. Sizes in bytes, pools in tokens of one rank.
"""

from __future__ import annotations

from typing import NamedTuple

VERIFY_PER_TOKEN = 3
STAMP_BYTES = 32
# head and tail, for K and for V: allocated even where the V launches are off
STAMPS_PER_SLOT = 4
VERIFY_ENTRY_BYTES = 32
VERIFY_FIXED_BYTES = 8
WRITE_REQUEST_BYTES = 16
WRITE_FIXED_BYTES = 12
INPUT_ENTRY_BYTES = 16
INPUT_REQUEST_BYTES = 32
RING_ROW_BYTES = 64
COUNTER_BYTES = 12 * 2 * 8
PLAN_SCRATCH_BYTES = 4097 * 8
# the estimate of requests that the server makes from pool and context
RUNNING_LOW = 2048
RUNNING_HIGH = 4096
_RUNNING_PER_CONTEXT = 512
# columns a request's row has beyond context and draft
ROW_RESERVE = 4


def floor_page(tokens: int, page_size: int) -> int:
    """Tokens in whole pages."""
    return tokens // page_size * page_size


def swa_pool_tokens(tokens: int, ratio: float, page_size: int) -> int:
    """Tokens of the sliding-window pool beside a full pool of `tokens`."""
    return floor_page(int(tokens * ratio), page_size)


class Running(NamedTuple):
    """Rows of the request table, and what gave them: flag, pool, low, high, estimate, states or log."""

    requests: int
    by: str


def running_requests(*, max_running: int | None, attn_dp: int, tokens: int, context: int) -> Running:
    """Requests a worker may run at once: the flag's share, or an estimate; at most half the pool's tokens."""
    if max_running is not None:
        wanted, by = max(1, max_running // attn_dp), "flag"
    else:
        # in floating point, as the server does it
        estimate = int(tokens / context * _RUNNING_PER_CONTEXT)
        wanted = min(max(estimate, RUNNING_LOW), RUNNING_HIGH)
        by = "low" if estimate < RUNNING_LOW else "high" if estimate > RUNNING_HIGH else "estimate"
    half = tokens // 2
    return Running(requests=half, by="pool") if half < wanted else Running(requests=wanted, by=by)


def write_requests(*, graph_batch: int, running: int) -> int:
    """Requests of one forward."""
    return max(graph_batch, running)


def chunk_limit(*, chunk: int, max_prefill: int) -> int:
    """Tokens of a prefill forward as the capacity sees them: a negative chunk is no limit, 0 counts as 0."""
    return max_prefill if chunk < 0 else min(max_prefill, chunk)


def write_entries(*, write_req: int, draft_tokens: int, max_prefill: int, chunk: int) -> int:
    """Tokens of one forward: all requests with their drafts, or a prefill."""
    return max(write_req * draft_tokens, chunk_limit(chunk=chunk, max_prefill=max_prefill))


def verify_entries(tokens: int) -> int:
    """Entries of one verify pass of a group."""
    return VERIFY_PER_TOKEN * tokens


class WorkspaceRates(NamedTuple):
    """Bytes of workspace by what they are for: a verify entry, a request, a written token, and once."""

    verify_entry: int
    write_request: int
    write_entry: int
    fixed: int


def workspace_rates(groups: int) -> WorkspaceRates:
    """Each group has plans of its own; the inputs are shared."""
    return WorkspaceRates(
        verify_entry=groups * VERIFY_ENTRY_BYTES,
        write_request=groups * WRITE_REQUEST_BYTES + INPUT_REQUEST_BYTES,
        write_entry=INPUT_ENTRY_BYTES,
        fixed=groups * (VERIFY_FIXED_BYTES + WRITE_FIXED_BYTES),
    )


def workspace_bytes(*, groups: int, verify: int, write_req: int, write_entry: int) -> int:
    """What one forward allocates for its plans and inputs."""
    rates = workspace_rates(groups)
    return (
        rates.verify_entry * verify
        + rates.write_request * write_req
        + rates.write_entry * write_entry
        + rates.fixed
    )


def window_only_buffer_bytes(swa_tokens: int) -> int:
    """Canary buffers of a runner that stamps its sliding-window pool alone: head and tail of one half."""
    return 2 * STAMP_BYTES * swa_tokens


def buffer_bytes(*, tokens: int, page_size: int, swa_tokens: int | None) -> int:
    """Canary buffers of one runner: a stamp for head and tail of K and V of every slot of each pool."""
    slots = tokens + page_size + (0 if swa_tokens is None else swa_tokens + page_size)
    return STAMPS_PER_SLOT * STAMP_BYTES * slots


def total_bytes(*, runners: int, buffers: int, workspace: int, has_decode_graph: bool) -> int:
    """Buffers of every runner, and the workspace: once, and once more in the graph pool."""
    return runners * buffers + workspace * (2 if has_decode_graph else 1)


def fixed_bytes(*, runners: int, ring_capacity: int) -> int:
    """What doesn't grow with the pool: violation ring, counters, plan scratch."""
    return runners * (RING_ROW_BYTES * ring_capacity + COUNTER_BYTES + PLAN_SCRATCH_BYTES)


def row_width(*, context: int, draft_tokens: int) -> int:
    """Columns of a request's row."""
    return context + ROW_RESERVE + draft_tokens


def token_table_bytes(*, rows: int, width: int) -> int:
    """The table of expected token ids (int32) that the token check allocates."""
    return rows * width * 4


# KV bytes of one element x 32: some types keep a scale for a block of elements
ELEMENT_UNIT = 32
_ELEMENT_UNITS = {
    "bf16": 64,
    "bfloat16": 64,
    "fp16": 64,
    "float16": 64,
    "half": 64,
    "fp8": 32,
    "fp8_e4m3": 32,
    "fp8_e5m2": 32,
    "mxfp8": 33,
    "fp4_mx_block16": 18,
    "nvfp4": 18,
}


def element_units(dtype: str | None) -> int | None:
    """32nds of a byte that one KV element takes with its scales; None for a type that is not known.

    nvfp4 counts one layout of scales; some platforms keep two, which makes it 20.
    """
    return None if dtype is None else _ELEMENT_UNITS.get(dtype)


def row_elements(*, kv_heads: int, head_dim: int, v_head_dim: int | None, attn_tp: int) -> int:
    """Elements of K and V of one token in one layer on one rank; at least one head a rank."""
    return max(1, kv_heads // attn_tp) * (head_dim + (v_head_dim or head_dim))


def stage_layers(layers: int, pp: int) -> int:
    """Layers of the largest pipeline stage."""
    return -(-layers // pp)


def kv_bytes(*, row_units: int, full_layers: int, tokens: int, swa_layers: int, swa_tokens: int) -> int:
    """KV bytes of one rank: what a layer keeps of a token (in 32nds of a byte), over the pool it uses."""
    return row_units * (full_layers * tokens + swa_layers * swa_tokens) // ELEMENT_UNIT
