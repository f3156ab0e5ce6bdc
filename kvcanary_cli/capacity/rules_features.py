"""Rules about switches that the canary does not work with, whatever the sizes are."""

from __future__ import annotations

from kvcanary_cli.capacity import features as names
from kvcanary_cli.capacity.changes import Change, disable_prefill_graph, leave_out
from kvcanary_cli.capacity.formula import ELEMENT_UNIT, floor_page
from kvcanary_cli.capacity.prefill import CHUNK
from kvcanary_cli.capacity.prefill_graph import PIECEWISE
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule
from kvcanary_cli.capacity.setup import CANARY, Setup
from kvcanary_cli.capacity.sizes import Sizes, row_units
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


def _sweep_off(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.features.sweep_interval <= 0 or setup.canary.mode != "none":
        return None
    return Hit(
        text="sweeps need the canary on: the server refuses the flags",
        when="at start-up",
        setting=names.SWEEP,
    )


def _sweep_off_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=CANARY, value="log"),), (Change(flag=names.SWEEP, value="0", note="no sweeps"),)]


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


def _input_oracle(setup: Setup, sizes: Sizes) -> Hit | None:
    on = setup.features.on
    if names.INPUT_CHECK not in on or names.TOKEN_ORACLE in on:
        return None
    return Hit(
        text="the check of inputs needs the token oracle", when="at start-up", setting=names.INPUT_CHECK
    )


def _input_oracle_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    oracle = Change(
        flag=names.TOKEN_ORACLE, value="1", note="a test of sampling, not for traffic", is_env=True
    )
    return [leave_out(request, names.INPUT_CHECK, "its default"), (oracle,)]


def _damages_kv(setup: Setup) -> bool:
    return any("REAL_KV" in name for name in setup.features.perturbations)


def _perturb_group(setup: Setup, sizes: Sizes) -> Hit | None:
    if not _damages_kv(setup) or setup.features.target_group in ("full", "swa"):
        return None
    return Hit(
        text="damage to the KV is asked for, and no group (full or swa) is named",
        when="at start-up",
        setting=names.TARGET_GROUP,
    )


def _perturb_group_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    group = Change(flag=names.TARGET_GROUP, value="full", is_env=True)
    return [*_perturb_changes(request, setup, sizes), (group,)]


def _perturb(setup: Setup, sizes: Sizes) -> Hit | None:
    if not setup.features.perturbations:
        return None
    return Hit(
        text="the canary damages data on purpose: a self-test, not for traffic",
        when="under load",
        setting=setup.features.perturbations[0],
    )


def _perturb_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [tuple(Change(flag=name, value="0", is_env=True) for name in setup.features.perturbations)]


def _gemma_positions(setup: Setup, sizes: Sizes) -> Hit | None:
    is_gemma = (setup.model.architecture or "").startswith("Gemma4")
    if not is_gemma or names.GEMMA_POSITIONS in setup.features.on:
        return None
    return Hit(
        text="this model changes its positions in place, which the canary reports as violations",
        when="silently",
        setting=names.GEMMA_POSITIONS,
    )


def _gemma_positions_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=names.GEMMA_POSITIONS, value="1", is_env=True),)]


def _real_data_rows(setup: Setup, sizes: Sizes) -> Hit | None:
    model, units = setup.model, row_units(setup)
    if (
        setup.features.word(names.REAL_DATA) in (None, "none")
        or units is None
        or model.latent_dim is not None
    ):
        return None
    # one row is the K of one layer; V has the same or its own width
    halves = (model.head_dim or 0, model.v_head_dim or model.head_dim or 0)
    heads = max(1, (model.kv_heads or 0) // setup.parallel.attn_tp)
    per_element = units // (heads * sum(halves))
    odd = [width for width in halves if heads * width * per_element % (_ROW_UNIT * ELEMENT_UNIT)]
    if not odd:
        return None
    return Hit(
        text=f"a row of {heads * odd[0] * per_element // ELEMENT_UNIT:,} B is no multiple of {_ROW_UNIT} B, "
        "which hashing of real data needs",
        when="at start-up",
        setting=names.REAL_DATA,
    )


def _real_data_rows_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=names.REAL_DATA, value="none", note="stamps only"),)]


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
        "sweep-off",
        "error",
        "sweeps are asked for while the canary is off",
        _sweep_off,
        _sweep_off_changes,
        needs_canary=False,
    ),
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
        "real-data-rows",
        "error",
        "rows of real data are no multiple of 16 bytes",
        _real_data_rows,
        _real_data_rows_changes,
    ),
    Rule(
        "input-oracle",
        "error",
        "the check of inputs lacks the token oracle",
        _input_oracle,
        _input_oracle_changes,
    ),
    Rule(
        "perturb-group",
        "error",
        "damage to the KV is asked for without a group",
        _perturb_group,
        _perturb_group_changes,
    ),
    Rule("perturb", "warning", "the canary damages data on purpose", _perturb, _perturb_changes),
    Rule(
        "prefill-cp",
        "warning",
        "context-parallel prefill may fail a check of the canary",
        _prefill_cp,
        _prefill_cp_changes,
    ),
    Rule("dllm", "warning", "a diffusion model writes blocks of tokens", _dllm, _dllm_changes, code="C2"),
    Rule(
        "gemma-positions",
        "warning",
        "positions changed in place give false alarms",
        _gemma_positions,
        _gemma_positions_changes,
    ),
)
