"""From what was given to what the server resolves: every number the formulas need, each with its origin.

The order is the server's: data-parallel alias, graph settings, defaults by GPU memory, page size, division
over data-parallel ranks, speculative defaults, validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcanary_cli.capacity.gpu import GpuChoice, resolve_gpu
from kvcanary_cli.capacity.graphs import Graph, needs_gpu_default, resolve_graph
from kvcanary_cli.capacity.inputs import Inputs, as_int
from kvcanary_cli.capacity.model import ModelChoice, resolve_model
from kvcanary_cli.capacity.origin import Input
from kvcanary_cli.capacity.parallel import Parallel, resolve_parallel
from kvcanary_cli.capacity.pool import Pool, resolve_pool
from kvcanary_cli.capacity.prefill import CHUNK, Prefill, check_chunk, needs_gpu, resolve_prefill
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.speculative import DEFAULT_RUNNING, Speculation, resolve_speculation
from kvcanary_cli.capacity.tables import Tier, Version, find_tier
from kvcanary_cli.capacity.window import Window, resolve_window
from kvcanary_cli.errors import UsageError

MAX_RUNNING = "--max-running-requests"
TOKEN_CHECK = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"
_RING = "SGLANG_KV_CANARY_RING_CAPACITY"
_DEFAULT_RING = 1024
_EXTRA_SLOTS = "--disaggregation-decode-extra-slots"
# A decode server has twice its limit of extra rows, for limits up to this
_EXTRA_UP_TO = 32


class MissingInputsError(UsageError):
    """Inputs that no flag, file or table gives."""


class Canary(NamedTuple):
    """Settings of the canary itself; the capacities don't depend on them."""

    mode: str
    is_token_check_on: bool
    ring_capacity: int


class Setup(NamedTuple):
    """A launch as the server would resolve it, for one rank.

    Args:
        max_running: the limit over all data-parallel groups, None where the server estimates it.
        running_setting: the flag or algorithm that sets the limit.
        extra_rows: rows of the request table beyond those of running requests.
        inputs: all that was looked up, by name.
        num_given: flags and environment assignments that were given, unknown ones included.
    """

    version: Version
    parallel: Parallel
    pool: Pool
    window: Window
    prefill: Prefill
    graph: Graph
    speculation: Speculation
    max_running: int | None
    running_setting: str
    extra_rows: int
    is_radix_on: bool
    canary: Canary
    model: ModelChoice
    kv_dtype: str | None
    inputs: Mapping[str, Input]
    unknown_flags: tuple[str, ...]
    num_given: int

    @property
    def groups(self) -> int:
        """Buffer groups: full, and the sliding window's where it has a pool."""
        return 1 if self.window.tokens is None else 2


def resolve(request: Request) -> Setup:
    """Resolve a launch.

    Raises: MissingInputsError naming every input that is missing and the flags that give it; UsageError or
        InputError for values that the server refuses or that contradict each other.
    """
    inputs = Inputs(request)
    parallel = resolve_parallel(inputs)
    disaggregation = inputs.text("disaggregation_mode", "--disaggregation-mode", default="null") or "null"
    gpu = resolve_gpu(inputs)
    limit = inputs.integer("max_running_requests", MAX_RUNNING, low=1)
    tier = _tier(inputs, gpu, parallel)
    graph = resolve_graph(inputs, tier, limit=limit, disaggregation=disaggregation)
    prefill = resolve_prefill(inputs, tier, parallel.attn_dp)
    model = resolve_model(inputs)
    speculation = resolve_speculation(inputs, model.architecture)
    pool = resolve_pool(inputs, is_blackwell=gpu.is_blackwell)
    is_radix_on = not inputs.switch("disable_radix_cache", "--disable-radix-cache")
    is_capped = limit is not None and not is_radix_on and prefill.chunk > 0
    window = resolve_window(inputs, model, pool, is_capped_by_requests=is_capped)
    max_running, running_setting = _running_limit(inputs, limit, speculation)
    canary = _canary(inputs)
    kv_dtype = inputs.text("kv_cache_dtype", "--kv-cache-dtype", default="auto")
    if inputs.missing:
        raise _missing(inputs)
    check_chunk(
        inputs, prefill, page_size=pool.page_size, attn_dp=parallel.attn_dp, disaggregation=disaggregation
    )
    arguments = request.arguments
    return Setup(
        version=request.version,
        parallel=parallel,
        pool=pool,
        window=window,
        prefill=prefill,
        graph=graph,
        speculation=speculation,
        max_running=max_running,
        running_setting=running_setting,
        extra_rows=_extra_rows(inputs, limit, parallel.attn_dp) if disaggregation == "decode" else 0,
        is_radix_on=is_radix_on,
        canary=canary,
        model=model,
        kv_dtype=model.dtype if kv_dtype == "auto" else kv_dtype,
        inputs=inputs.noted,
        unknown_flags=arguments.unknown,
        num_given=len(arguments.values) + len(arguments.env) + len(arguments.unknown),
    )


def _tier(inputs: Inputs, gpu: GpuChoice, parallel: Parallel) -> Tier | None:
    """Defaults by GPU memory; None where nothing needs them, or the GPU is missing."""
    needed_for = []
    if needs_gpu(inputs):
        needed_for.append(CHUNK)
    if needs_gpu_default(inputs):
        needed_for.append(inputs.request.version.graph_batch_flag)
    if gpu.memory_mib is not None:
        return find_tier(gpu.memory_mib, parallel.tp, inputs.request.version.name)
    if needed_for:
        flags = " and ".join(f"`{flag}`" for flag in needed_for)
        inputs.lack(f"the GPU, for the default of {flags} (`--gpu` or `--gpu-memory`)")
    return None


def _running_limit(inputs: Inputs, limit: int | None, speculation: Speculation) -> tuple[int | None, str]:
    """The limit of running requests and what sets it; the server sets one of its own where it speculates."""
    if limit is not None or speculation.algorithm is None:
        return limit, MAX_RUNNING
    inputs.default("max_running_requests", DEFAULT_RUNNING, f"server: {speculation.algorithm}")
    return DEFAULT_RUNNING, "--speculative-algorithm"


def _canary(inputs: Inputs) -> Canary:
    return Canary(
        mode=inputs.text("kv_canary", "--kv-canary", default="none") or "none",
        is_token_check_on=inputs.env_switch("verify_token_check", TOKEN_CHECK),
        ring_capacity=inputs.env_count("ring_capacity", _RING, default=_DEFAULT_RING),
    )


def _extra_rows(inputs: Inputs, limit: int | None, attn_dp: int) -> int:
    given = inputs.given(_EXTRA_SLOTS)
    if given is not None:
        return as_int(given)
    if limit is None:
        return 0
    per_worker = max(1, limit // attn_dp)
    return 2 * per_worker if per_worker <= _EXTRA_UP_TO else 0


def _missing(inputs: Inputs) -> MissingInputsError:
    if len(inputs.missing) == 1:
        return MissingInputsError(f"launch flags don't say {inputs.missing[0]}", hint=_HINT)
    return MissingInputsError(
        f"launch flags don't say {len(inputs.missing)} things: {'; '.join(inputs.missing)}", hint=_HINT
    )


_HINT = "give it beside the launch flags, or in a config (`configs/` has examples); nothing is guessed"
