"""The capacities and memory of a setup: the formulas applied, and which setting decides each result."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity import formula
from kvcanary_cli.capacity.formula import Running
from kvcanary_cli.capacity.prefill import CHUNK, MAX_PREFILL
from kvcanary_cli.capacity.setup import Setup

BUILT_IN = "built in"

_ELEMENT_BYTES = {
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""KV types whose bytes don't depend on platform and backend."""


class Memory(NamedTuple):
    """Device memory of one rank in bytes.

    Args:
        workspace: of one forward; `workspace_copies` of it are held.
        token_table: expected token ids, None where the token check is off.
        kv: of the pool itself, None where the model's shape is not known.
    """

    buffers: int
    runners: int
    workspace: int
    workspace_copies: int
    total: int
    fixed: int
    token_table: int | None
    kv: int | None


class Sizes(NamedTuple):
    """What the server would derive; `*_by` are the settings that decide."""

    running: Running
    running_by: str
    write_req: int
    write_req_by: str
    write_entry: int
    write_entry_by: str
    verify: int
    verify_by: str
    memory: Memory


def derive(setup: Setup) -> Sizes:
    """Apply the formulas to a setup."""
    pool, prefill, graph = setup.pool, setup.prefill, setup.graph
    running = formula.running_requests(
        max_running=setup.max_running,
        attn_dp=setup.parallel.attn_dp,
        tokens=pool.tokens,
        context=pool.context_length,
    )
    running_by = _running_by(setup, running)
    write_req = formula.write_requests(graph_batch=graph.max_batch, running=running.requests)
    write_req_by = graph.setting if graph.max_batch > running.requests else running_by
    write_entry = formula.write_entries(
        write_req=write_req,
        draft_tokens=setup.speculation.draft_tokens,
        max_prefill=prefill.max_tokens,
        chunk=prefill.chunk,
    )
    return Sizes(
        running=running,
        running_by=running_by,
        write_req=write_req,
        write_req_by=write_req_by,
        write_entry=write_entry,
        write_entry_by=_write_entry_by(setup, write_entry, write_req_by),
        verify=formula.verify_entries(pool.tokens),
        verify_by=pool.setting,
        memory=_memory(setup, running.requests, write_req, write_entry),
    )


def _running_by(setup: Setup, running: Running) -> str:
    if running.by == "flag":
        return setup.running_setting
    if running.by == "pool":
        return setup.pool.setting
    # the estimate follows pool and context only between its two ends
    return "--context-length" if running.by == "estimate" else BUILT_IN


def _write_entry_by(setup: Setup, write_entry: int, write_req_by: str) -> str:
    prefill = setup.prefill
    if formula.chunk_limit(chunk=prefill.chunk, max_prefill=prefill.max_tokens) < write_entry:
        return write_req_by
    return CHUNK if 0 <= prefill.chunk <= prefill.max_tokens else MAX_PREFILL


def _memory(setup: Setup, running: int, write_req: int, write_entry: int) -> Memory:
    pool, swa_tokens = setup.pool, setup.window.tokens
    runners = setup.speculation.runners
    workspace = formula.workspace_bytes(
        groups=setup.groups,
        verify=formula.verify_entries(pool.tokens),
        write_req=write_req,
        write_entry=write_entry,
    )
    buffers = formula.buffer_bytes(tokens=pool.tokens, page_size=pool.page_size, swa_tokens=swa_tokens)
    token_table = None
    if setup.canary.is_token_check_on:
        width = formula.row_width(context=pool.context_length, draft_tokens=setup.speculation.draft_tokens)
        token_table = formula.token_table_bytes(rows=running + 1 + setup.extra_rows, width=width)
    return Memory(
        buffers=buffers,
        runners=runners,
        workspace=workspace,
        workspace_copies=2 if setup.graph.is_on else 1,
        total=formula.total_bytes(
            runners=runners, buffers=buffers, workspace=workspace, has_decode_graph=setup.graph.is_on
        ),
        fixed=formula.fixed_bytes(runners=runners, ring_capacity=setup.canary.ring_capacity),
        token_table=token_table,
        kv=_kv_bytes(setup),
    )


def _kv_bytes(setup: Setup) -> int | None:
    """Bytes of the KV pool; None where the shape is not known in full, or layers are split over stages."""
    model = setup.model
    element_bytes = _ELEMENT_BYTES.get(setup.kv_dtype or "")
    if None in (model.layers, model.kv_heads, model.head_dim, element_bytes) or setup.parallel.pp > 1:
        return None
    swa_layers = 0
    if setup.window.tokens is not None:
        if model.swa_layers is None:
            return None
        swa_layers = model.swa_layers
    return formula.kv_bytes(
        kv_heads=model.kv_heads or 0,
        head_dim=model.head_dim or 0,
        element_bytes=element_bytes or 0,
        attn_tp=setup.parallel.attn_tp,
        full_layers=(model.layers or 0) - swa_layers,
        tokens=setup.pool.tokens,
        swa_layers=swa_layers,
        swa_tokens=setup.window.tokens or 0,
    )
