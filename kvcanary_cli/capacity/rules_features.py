"""Rules about switches that the canary does not work with, whatever the sizes are."""

from __future__ import annotations

from kvcanary_cli.capacity import features as names
from kvcanary_cli.capacity.changes import Change, disable_prefill_graph, leave_out
from kvcanary_cli.capacity.formula import floor_page
from kvcanary_cli.capacity.prefill import CHUNK
from kvcanary_cli.capacity.prefill_graph import PIECEWISE
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes
from kvcanary_cli.kernels import messages

# Bytes that a real-data row must be a multiple of
_ROW_UNIT = 16
_OWN_CACHES = ("unified", "auto", "default")


def _pdmux(setup: Setup, sizes: Sizes) -> Hit | None:
    if names.PDMUX not in setup.features.on:
        return None
    return Hit(
        text="split prefill goes around the forward that the canary wraps: the phase check on the device fails",
        when="at the first step",
        setting=names.PDMUX,
    )


def _pdmux_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [leave_out(request, names.PDMUX)]


def _warmup_autotune(setup: Setup, sizes: Sizes) -> Hit | None:
    attn_tp = setup.parallel.attn_tp
    rows = -(-setup.prefill.chunk // attn_tp) * attn_tp
    if names.AUTOTUNE not in setup.features.on or setup.prefill.chunk <= 0 or rows <= sizes.write_req:
        return None
    return Hit(
        text=f"the warm-up runs a batch as large as the chunk, {rows:,}, which would raise",
        when="at start-up",
        server_message=messages.write_req(rows, sizes.write_req, flag=setup.version.graph_batch_flag),
        value=sizes.write_req,
        need=rows,
        setting=names.AUTOTUNE,
    )


def _warmup_autotune_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    sets: ChangeSets = [leave_out(request, names.AUTOTUNE, "its default")]
    page, attn_tp = setup.pool.page_size, setup.parallel.attn_tp
    chunk = floor_page(sizes.write_req // attn_tp * attn_tp, page)
    if chunk > 0 and not setup.prefill.is_forced:
        sets.append((Change(flag=CHUNK, value=str(chunk * setup.parallel.attn_dp)),))
    return sets


def _warmup_deepgemm(setup: Setup, sizes: Sizes) -> Hit | None:
    if names.DEEPGEMM not in setup.features.on:
        return None
    return Hit(
        text="the warm-up runs a forward while no manager of the canary is active: an AssertionError",
        when="at start-up",
        setting=names.DEEPGEMM,
    )


def _warmup_deepgemm_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [leave_out(request, names.DEEPGEMM, "its default")]


def other_cache(setup: Setup) -> tuple[str, str] | None:
    """(prefix cache, its setting) where a sweep can't walk it; None for one that it can, and for none at all."""
    features, known = setup.features, setup.version.sweep_caches
    if not setup.is_radix_on:
        return None
    for flag, cache in ((names.LMCACHE, "LMCache"), (names.FLEXKV, "FlexKV")):
        if flag in features.on:
            return cache, flag
    backend = features.word(names.CACHE_BACKEND)
    if backend is not None and backend not in (*_OWN_CACHES, *known):
        return f"the cache `{backend}`", names.CACHE_BACKEND
    model = setup.model
    is_window_only = model.swa_layers is not None and model.swa_layers == model.layers
    if is_window_only and setup.window.tokens is not None and "swa" not in known:
        return "the cache of a model with window layers only", "--model-path"
    return None


def _sweep_cache(setup: Setup, sizes: Sizes) -> Hit | None:
    cache = other_cache(setup)
    if setup.features.sweep_interval <= 0 or cache is None:
        return None
    return Hit(
        text=f"a sweep can't walk {cache[0]}: a NotImplementedError",
        when="at the first sweep",
        setting=cache[1],
    )


def _sweep_cache_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    sets: ChangeSets = [(Change(flag=names.SWEEP, value="0", note="no sweeps"),)]
    cache = other_cache(setup)
    if cache is not None and cache[1] != "--model-path":
        sets.append(leave_out(request, cache[1]))
    return sets


def _prefill_cp(setup: Setup, sizes: Sizes) -> Hit | None:
    if names.PREFILL_CP not in setup.features.on:
        return None
    if not setup.version.wraps_prefill_cp:
        text = "this release does not wrap the forward of context-parallel prefill: its phase check may fail"
    elif setup.prefill_graph.is_on and setup.prefill_graph.backend == "breakable":
        text = "context-parallel prefill in a breakable graph may fail an assertion of the canary"
    else:
        return None
    return Hit(text=text, when="at first capture", setting=names.PREFILL_CP)


def _prefill_cp_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    sets: ChangeSets = [leave_out(request, names.PREFILL_CP)]
    if setup.version.wraps_prefill_cp:
        sets.append(tuple(disable_prefill_graph(request)))
    return sets


def _dllm(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.features.word(names.DLLM) is None:
        return None
    return Hit(
        text="a diffusion model writes a block of tokens for each request, the write entries count one",
        when="at a full batch",
        setting=names.DLLM,
    )


def _dllm_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [leave_out(request, names.DLLM)]


def _prefill_piecewise(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.prefill_graph.backend != PIECEWISE:
        return None
    return Hit(
        text="the canary asserts against the piecewise prefill graph when it is installed",
        when="at start-up",
        setting=setup.prefill_graph.setting,
    )


def _prefill_piecewise_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [tuple(disable_prefill_graph(request))]


def _device_graph(setup: Setup, sizes: Sizes) -> Hit | None:
    device = setup.features.word(names.DEVICE)
    if device is None or device.startswith("cuda") or not setup.graph.is_on:
        return None
    return Hit(
        text=f"the canary refuses a decode graph on the device `{device}`: a ValueError",
        when="at start-up",
        setting=names.DEVICE,
    )


def _device_graph_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag="--cuda-graph-backend-decode", value="disabled", note="no decode graph"),)]


FEATURE_RULES = (
    Rule("pdmux", "error", "split prefill is not wrapped by the canary", _pdmux, _pdmux_changes),
    Rule(
        "warmup-autotune",
        "error",
        "the autotune warm-up runs a larger batch than the write requests",
        _warmup_autotune,
        _warmup_autotune_changes,
        code="C1",
    ),
    Rule(
        "warmup-deepgemm",
        "error",
        "the DeepGEMM warm-up runs without a manager of the canary",
        _warmup_deepgemm,
        _warmup_deepgemm_changes,
    ),
    Rule("sweep-cache", "error", "the prefix cache can't be swept", _sweep_cache, _sweep_cache_changes),
    Rule(
        "prefill-piecewise",
        "error",
        "the canary refuses the piecewise prefill graph",
        _prefill_piecewise,
        _prefill_piecewise_changes,
    ),
    Rule(
        "device-graph",
        "error",
        "the canary refuses decode graphs on devices other than CUDA",
        _device_graph,
        _device_graph_changes,
        since="0.5.22",
    ),
    Rule(
        "prefill-cp",
        "warning",
        "context-parallel prefill may fail a check of the canary",
        _prefill_cp,
        _prefill_cp_changes,
    ),
    Rule("dllm", "warning", "a diffusion model writes blocks of tokens", _dllm, _dllm_changes, code="C2"),
)
