"""The capacities and memory of a setup: the formulas applied, and which setting decides each result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.capacity import formula
from kvcanary_cli.capacity.formula import Running
from kvcanary_cli.capacity.prefill import CHUNK, MAX_PREFILL
from kvcanary_cli.capacity.setup import MAX_STATES, Setup

if TYPE_CHECKING:
    from kvcanary_cli.capacity.server_log import Stated

BUILT_IN = "built in"
LOG = "--from-log"


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
    """What the server would derive; `*_by` are the settings that decide.

    Args:
        differing: (name, logged, computed) where a log states something else; the logged value then counts.
        flipping: rules that fire at one end of an estimated pool's range and not at the other.
    """

    running: Running
    running_by: str
    write_req: int
    write_req_by: str
    write_entry: int
    write_entry_by: str
    verify: int
    verify_by: str
    memory: Memory
    differing: tuple[tuple[str, int, int], ...] = ()
    flipping: tuple[str, ...] = ()


def derive(setup: Setup) -> Sizes:
    """Apply the formulas to a setup."""
    pool, prefill, graph = setup.pool, setup.prefill, setup.graph
    running = formula.running_requests(
        max_running=setup.max_running,
        attn_dp=setup.parallel.attn_dp,
        tokens=pool.tokens,
        context=pool.context_length,
    )
    if setup.max_states is not None and setup.max_states < running.requests:
        running = Running(requests=setup.max_states, by="states")
    log, stated = _LogCheck(setup), setup.log
    running_by = _running_by(setup, running)
    logged_running = log.checked("max_running_requests", stated and stated.running, running.requests)
    if logged_running != running.requests:
        running, running_by = Running(requests=logged_running, by="log"), LOG
    write_req = formula.write_requests(graph_batch=graph.max_batch, running=running.requests)
    write_req_by = graph.setting if graph.max_batch > running.requests else running_by
    write_req = log.checked("write_req_capacity", stated and stated.write_req, write_req)
    write_entry = formula.write_entries(
        write_req=write_req,
        draft_tokens=setup.speculation.draft_tokens,
        max_prefill=prefill.max_tokens,
        chunk=prefill.chunk,
    )
    write_entry = log.checked("write_entry_capacity", stated and stated.write_entry, write_entry)
    verify = log.checked("verify_capacity", stated and stated.verify, formula.verify_entries(pool.tokens))
    return Sizes(
        running=running,
        running_by=running_by,
        write_req=write_req,
        write_req_by=write_req_by,
        write_entry=write_entry,
        write_entry_by=_write_entry_by(setup, write_entry, write_req_by),
        verify=verify,
        verify_by=pool.setting,
        memory=_memory(setup, running.requests, write_req, write_entry),
        differing=tuple(log.differing),
    )


class _LogCheck:
    """Compares what a start-up log states with the flags and with what the formula gives.

    The log says what was, so its sizes count; not so where flags already say that this is another launch.
    """

    def __init__(self, setup: Setup) -> None:
        self.differing: list[tuple[str, int, int]] = []
        log = setup.log
        if log is None or log.is_past:
            self._is_same = True
            return
        for name, stated, used in (
            ("max_total_num_tokens", log.tokens, setup.pool.tokens),
            ("context_len", log.context, setup.pool.context_length),
            ("chunked_prefill_size", log.chunk, setup.prefill.chunk),
            ("max_prefill_tokens", log.max_prefill, setup.prefill.max_tokens),
        ):
            if stated is not None and stated.value != used:
                self.differing.append((name, stated.value, used))
        self._is_same = not self.differing

    def checked(self, name: str, stated: Stated | None, computed: int) -> int:
        """The value that counts."""
        if stated is None or stated.value == computed:
            return computed
        self.differing.append((name, stated.value, computed))
        return stated.value if self._is_same else computed


def _running_by(setup: Setup, running: Running) -> str:
    if running.by == "flag":
        return setup.running_setting
    if running.by == "pool":
        return setup.pool.setting
    if running.by == "states":
        return MAX_STATES
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
    if setup.model.family.pool == "dsv4" and swa_tokens is not None:
        buffers = formula.window_only_buffer_bytes(swa_tokens)
    else:
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


def row_units(setup: Setup) -> int | None:
    """What one layer keeps of a token on one rank, in 32nds of a byte; None where the shape is not known."""
    model = setup.model
    units = formula.element_units(setup.kv_dtype)
    if units is None:
        return None
    if model.latent_dim is not None:
        return model.latent_dim * units
    if model.kv_heads is None or model.head_dim is None:
        return None
    elements = formula.row_elements(
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        v_head_dim=model.v_head_dim,
        attn_tp=setup.parallel.attn_tp,
    )
    return elements * units


def _kv_bytes(setup: Setup) -> int | None:
    """Bytes of the KV pool on the rank with the most layers; None where the shape is not known in full."""
    model, units, pp = setup.model, row_units(setup), setup.parallel.pp
    has_window = setup.window.tokens is not None
    if units is None or model.layers is None or (has_window and model.swa_layers is None):
        return None
    swa_layers = (model.swa_layers or 0) if has_window else 0
    return formula.kv_bytes(
        row_units=units,
        full_layers=formula.stage_layers(model.layers - swa_layers, pp),
        tokens=setup.pool.tokens,
        swa_layers=formula.stage_layers(swa_layers, pp),
        swa_tokens=setup.window.tokens or 0,
    )
