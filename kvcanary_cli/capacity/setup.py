"""From what was given to what the server resolves: every number the formulas need, each with its origin.

The order is the server's: data-parallel alias, graph settings, defaults by GPU memory, page size, division
over data-parallel ranks, speculative defaults, validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.capacity.features import Features, resolve_features
from kvcanary_cli.capacity.gpu import GpuChoice, resolve_gpu
from kvcanary_cli.capacity.graphs import Graph, needs_gpu_default, resolve_graph
from kvcanary_cli.capacity.inputs import Inputs, as_int
from kvcanary_cli.capacity.memory_budget import Launch, memory_fraction, pool_budget
from kvcanary_cli.capacity.model import ModelChoice, resolve_model
from kvcanary_cli.capacity.origin import Input
from kvcanary_cli.capacity.parallel import Parallel, resolve_parallel
from kvcanary_cli.capacity.pool import Pool, resolve_pool
from kvcanary_cli.capacity.prefill import CHUNK, Prefill, check_chunk, needs_gpu, resolve_prefill
from kvcanary_cli.capacity.prefill_graph import PrefillGraph, resolve_prefill_graph
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.speculative import DEFAULT_RUNNING, Speculation, resolve_speculation
from kvcanary_cli.capacity.tables import Tier, Version, find_tier
from kvcanary_cli.capacity.window import RequestCap, Window, resolve_window
from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:
    from kvcanary_cli.capacity.server_log import LogFacts
    from kvcanary_cli.capacity.workload import Workload

MAX_STATES = "--max-mamba-cache-size"
MAX_RUNNING = "--max-running-requests"
CANARY = "--kv-canary"
TOKEN_CHECK = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"
_RING = "SGLANG_KV_CANARY_RING_CAPACITY"
_DEFAULT_RING = 1024
_EXTRA_SLOTS = "--disaggregation-decode-extra-slots"
# A decode server has twice its limit of extra rows, for limits up to this
_EXTRA_UP_TO = 32


class MissingInputsError(UsageError):
    """Inputs that no flag, file or table gives."""


class Canary(NamedTuple):
    """Settings of the canary itself; the capacities don't depend on them.

    `is_off` where the launch says `none`; without the flag it is judged as if it were on.
    """

    mode: str
    is_off: bool
    is_token_check_on: bool
    ring_capacity: int


class Setup(NamedTuple):
    """A launch as the server would resolve it, for one rank.

    Args:
        max_states: Mamba states of one rank, which cap its running requests; None where nothing says it.
        is_mixed: whether decodes ride in the forwards of prefills.
        max_running: the limit over all data-parallel groups, None where the server estimates it.
        running_setting: the flag or algorithm that sets the limit.
        extra_rows: rows of the request table beyond those of running requests.
        inputs: all that was looked up, by name.
        num_given: flags and environment assignments that were given, unknown ones included.
        gpu_memory_mib: of the smallest GPU, None where it is not known.
        memory_fraction: share of it for weights and pool, None where neither flag nor GPU says it.
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
    is_mixed: bool
    canary: Canary
    model: ModelChoice
    kv_dtype: str | None
    inputs: Mapping[str, Input]
    unknown_flags: tuple[str, ...]
    num_given: int
    prefill_graph: PrefillGraph
    features: Features
    disaggregation: str
    log: LogFacts | None
    workload: Workload | None
    max_states: int | None
    gpu_memory_mib: int | None
    memory_fraction: float | None

    @property
    def groups(self) -> int:
        """Buffer groups: full, and the sliding window's where it has a pool; one of the two for DeepSeek-V4."""
        return 1 if self.window.tokens is None or self.model.family.pool == "dsv4" else 2

    @property
    def has_canary(self) -> bool:
        """Whether the launch has a canary, or leaves it open."""
        return not self.canary.is_off


def resolve(request: Request) -> Setup:
    """Resolve a launch.

    Raises: MissingInputsError naming every input that is missing and the flags that give it; UsageError or
        InputError for values that the server refuses or that contradict each other.
    """
    inputs = Inputs(request)
    gpu, launch = _launch(inputs)
    return _complete(inputs, gpu, launch)


def _launch(inputs: Inputs) -> tuple[GpuChoice, Launch]:
    """What the server knows before it sizes its memory."""
    parallel = resolve_parallel(inputs)
    disaggregation = inputs.text("disaggregation_mode", "--disaggregation-mode", default="null") or "null"
    gpu = resolve_gpu(inputs)
    limit = inputs.integer("max_running_requests", MAX_RUNNING, low=1)
    model = resolve_model(inputs)
    tier = _tier(inputs, gpu, parallel, model)
    graph = resolve_graph(inputs, tier, limit=limit, disaggregation=disaggregation)
    prefill = resolve_prefill(inputs, tier, parallel.attn_dp, model)
    speculation = resolve_speculation(inputs, model.architecture)
    prefill_graph = resolve_prefill_graph(inputs, prefill, model, parallel, disaggregation=disaggregation)
    kv_dtype = inputs.text("kv_cache_dtype", "--kv-cache-dtype", default="auto")
    return gpu, Launch(
        parallel=parallel,
        prefill=prefill,
        graph=graph,
        prefill_graph=prefill_graph,
        speculation=speculation,
        model=model,
        kv_dtype=model.dtype if kv_dtype == "auto" else kv_dtype,
        limit=limit,
        disaggregation=disaggregation,
    )


def _complete(inputs: Inputs, gpu: GpuChoice, launch: Launch) -> Setup:
    """The rest: pools, requests, the canary's own settings."""
    request, parallel, model = inputs.request, launch.parallel, launch.model
    fraction = memory_fraction(inputs, gpu, launch)
    budget = pool_budget(inputs, gpu, fraction, launch)
    pool = resolve_pool(inputs, model, budget, is_blackwell=gpu.is_blackwell)
    is_radix_on = not inputs.switch("disable_radix_cache", "--disable-radix-cache")
    max_running, running_setting = _running_limit(inputs, launch)
    window = resolve_window(inputs, model, pool, _request_cap(launch, pool, is_radix_on))
    canary = _canary(inputs)
    features = resolve_features(inputs)
    if inputs.missing:
        raise _missing(inputs)
    check_chunk(
        inputs,
        launch.prefill,
        page_size=pool.page_size,
        attn_dp=parallel.attn_dp,
        disaggregation=launch.disaggregation,
    )
    arguments = request.arguments
    return Setup(
        **launch.of_setup(),
        version=request.version,
        pool=pool,
        window=window,
        max_running=max_running,
        running_setting=running_setting,
        extra_rows=_extra_rows(inputs, launch),
        is_radix_on=is_radix_on,
        is_mixed=inputs.is_on("--enable-mixed-chunk"),
        canary=canary,
        inputs=inputs.noted,
        unknown_flags=arguments.unknown,
        num_given=len(arguments.values) + len(arguments.env) + len(arguments.unknown),
        features=features,
        log=request.log,
        workload=request.workload,
        max_states=_max_states(inputs, model, parallel),
        gpu_memory_mib=gpu.memory_mib,
        memory_fraction=fraction,
    )


def _tier(inputs: Inputs, gpu: GpuChoice, parallel: Parallel, model: ModelChoice) -> Tier | None:
    """Defaults by GPU memory; None where nothing needs them, or the GPU is missing."""
    needed_for = []
    if needs_gpu(inputs, model):
        needed_for.append(CHUNK)
    if needs_gpu_default(inputs):
        needed_for.append(inputs.request.version.graph_batch_flag)
    if gpu.memory_mib is not None:
        return find_tier(gpu.memory_mib, parallel.tp, inputs.request.version.name)
    if needed_for:
        flags = " and ".join(f"`{flag}`" for flag in needed_for)
        inputs.lack(f"the GPU, for the default of {flags} (`--gpu` or `--gpu-memory`)")
    return None


def _running_limit(inputs: Inputs, launch: Launch) -> tuple[int | None, str]:
    """The limit of running requests and what sets it; some launches get one from the server."""
    algorithm, model = launch.speculation.algorithm, launch.model
    if launch.limit is not None:
        return launch.limit, MAX_RUNNING
    if algorithm is not None:
        inputs.default("max_running_requests", DEFAULT_RUNNING, f"server: {algorithm}")
        return DEFAULT_RUNNING, "--speculative-algorithm"
    running = model.family.running
    if running is not None:
        inputs.default("max_running_requests", running, f"server: {model.architecture}")
        return running, "--model-path"
    return None, MAX_RUNNING


def _max_states(inputs: Inputs, model: ModelChoice, parallel: Parallel) -> int | None:
    """Mamba states of one rank: a request needs one. By default free memory decides, which flags don't say."""
    if model.family.pool != "linear":
        return None
    states = inputs.integer("max_mamba_cache_size", MAX_STATES, low=1)
    return None if states is None else max(1, states // parallel.attn_dp)


def _request_cap(launch: Launch, pool: Pool, is_radix_on: bool) -> RequestCap | None:
    """What sizes the sliding-window pool by requests; None where the ratio does."""
    chunk, speculation = launch.prefill.chunk, launch.speculation
    if launch.limit is None or is_radix_on or chunk <= 0:
        return None
    requests = min(max(1, launch.limit // launch.parallel.attn_dp), pool.tokens // 2)
    draft = 0 if speculation.algorithm is None else speculation.draft_tokens
    return RequestCap(requests=requests, draft_tokens=draft, chunk=chunk)


def _canary(inputs: Inputs) -> Canary:
    mode = inputs.text("kv_canary", CANARY, default="none") or "none"
    return Canary(
        mode=mode,
        is_off=mode == "none" and inputs.given(CANARY) is not None,
        is_token_check_on=inputs.env_switch("verify_token_check", TOKEN_CHECK),
        ring_capacity=inputs.env_count("ring_capacity", _RING, default=_DEFAULT_RING),
    )


def _extra_rows(inputs: Inputs, launch: Launch) -> int:
    """Rows of a decode server's request table beyond those of running requests."""
    if launch.disaggregation != "decode":
        return 0
    given = inputs.given(_EXTRA_SLOTS)
    if given is not None:
        return as_int(given)
    if launch.limit is None:
        return 0
    per_worker = max(1, launch.limit // launch.parallel.attn_dp)
    return 2 * per_worker if per_worker <= _EXTRA_UP_TO else 0


def _missing(inputs: Inputs) -> MissingInputsError:
    if len(inputs.missing) == 1:
        return MissingInputsError(f"launch flags don't say {inputs.missing[0]}", hint=_HINT)
    return MissingInputsError(
        f"launch flags don't say {len(inputs.missing)} things: {'; '.join(inputs.missing)}", hint=_HINT
    )


_HINT = "give it beside the launch flags, or in a config (`configs/` has examples); nothing is guessed"
