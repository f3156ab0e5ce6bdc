"""Rules about pools and memory: classes that the canary refuses, layouts that it gets wrong, what fits."""

from __future__ import annotations

from kvcanary_cli.capacity import features as names
from kvcanary_cli.capacity.changes import Change, leave_out, token_check_off
from kvcanary_cli.capacity.memory_budget import MEMORY_FRACTION
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule, no_changes
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes

_KV_DTYPE = "--kv-cache-dtype"
_NO_HYBRID = "--disable-hybrid-swa-memory"
_PP = "--pp-size"
_POOLS = {
    "mla": "the pool of MLA models",
    "dsa": "the pool of sparse-attention (DSA) models",
    "linear": "the pool of models with linear-attention or Mamba layers",
    "minimax": "the pool of MiniMax sparse attention",
}
_SWITCHES = {
    names.PAGE_MAJOR: "the page-major pool",
    names.UNIFIED_MEMORY: "the pool of unified memory",
    names.NO_KV_CACHE: "the empty pool of a prefill-only server",
}
_MIB = 2**20


def refused_pool(setup: Setup) -> tuple[str, str] | None:
    """(pool in words, its setting) where the canary has no patch for its class."""
    for flag, pool in _SWITCHES.items():
        if flag in setup.features.on:
            return pool, flag
    if setup.kv_dtype == "mxfp8":
        return "the MXFP8 pool", _KV_DTYPE
    family = setup.model.family.pool
    if setup.model.latent_dim is not None and family == "mha":
        family = "mla"
    return (_POOLS[family], "--model-path") if family in _POOLS else None


def _pool_class(setup: Setup, sizes: Sizes) -> Hit | None:
    pool = refused_pool(setup)
    if pool is None:
        return None
    return Hit(
        text=f"the canary does not know {pool[0]}: a NotImplementedError, the server does not start",
        when="at start-up",
        setting=pool[1],
    )


def _pool_class_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    pool = refused_pool(setup)
    if pool is None or pool[1] == "--model-path":
        return []
    if pool[1] == _KV_DTYPE:
        return [(Change(flag=_KV_DTYPE, value="fp8_e4m3", note="the same size, without block scales"),)]
    return [leave_out(request, pool[1])]


def _layout_hnd(setup: Setup, sizes: Sizes) -> Hit | None:
    page = setup.pool.page_size
    if names.HND not in setup.features.on or page == 1:
        return None
    return Hit(
        text=f"rows of this layout are pages: the canary's buffers are {page:,} times too small, and stamps are "
        "written beyond their end",
        when="silently",
        value=1,
        need=page,
        setting=names.HND,
    )


def _layout_hnd_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [leave_out(request, names.HND, "its default")]


def _layout_dcp(setup: Setup, sizes: Sizes) -> Hit | None:
    dcp = setup.features.dcp
    if dcp == 1:
        return None
    return Hit(
        text=f"request rows hold ids of all {dcp:,} ranks, the canary's buffers those of one: stamps may be "
        "written beyond their end",
        when="silently",
        value=1,
        need=dcp,
        setting=names.DCP,
    )


def _layout_dcp_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=names.DCP, value="1"),)]


def _layout_last_page(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.model.family.pool != "dsv4":
        return None
    return Hit(
        text="the highest slot of this pool lies one page behind the canary's buffer, if it is ever handed out",
        when="silently",
        setting="--model-path",
    )


def _lacks_kind(setup: Setup) -> bool:
    """Whether some pipeline stage has no full layer, or none with a window."""
    model, pp = setup.model, setup.parallel.pp
    if pp == 1 or setup.window.tokens is None or model.layers is None or model.swa_layers is None:
        return False
    full = model.layers - model.swa_layers
    if min(full, model.swa_layers) < pp:
        return True
    if model.layer_kinds is None:
        return False
    # the last stages take one layer more where they don't divide
    share, extra = divmod(model.layers, pp)
    at = 0
    for stage in range(pp):
        end = at + share + (1 if stage >= pp - extra else 0)
        if len(set(model.layer_kinds[at:end])) < 2:
            return True
        at = end
    return False


def _stage_window(setup: Setup, sizes: Sizes) -> Hit | None:
    if not _lacks_kind(setup):
        return None
    return Hit(
        text="a pipeline stage has no full layer or none with a window: an IndexError",
        when="at start-up",
        value=setup.model.layers,
        need=None,
        setting=_PP,
    )


def _stage_window_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=_NO_HYBRID, note="one full pool"),), (Change(flag=_PP, value="1"),)]


def memory_needed(setup: Setup, sizes: Sizes) -> int:
    """Bytes of one rank that the server's memory budget does not count."""
    memory = sizes.memory
    needed = memory.total + memory.fixed + (memory.token_table or 0)
    is_resized = names.POST_CAPTURE in setup.features.on and setup.version.subtracts_workspace
    if is_resized and setup.model.latent_dim is None:
        needed -= memory.runners * memory.buffers + memory.workspace
    return needed


def _memory(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.gpu_memory_mib is None or setup.memory_fraction is None:
        return None
    slack = int(setup.gpu_memory_mib * _MIB * (1 - setup.memory_fraction))
    needed = memory_needed(setup, sizes)
    if needed <= slack:
        return None
    return Hit(
        text=f"the canary takes {needed // _MIB:,} MiB, {slack // _MIB:,} MiB are left beside weights and pool: "
        "the server may run out of memory",
        when="under load",
        server_message="torch.OutOfMemoryError: CUDA out of memory",
        value=slack // _MIB,
        need=-(-needed // _MIB),
        setting=MEMORY_FRACTION,
    )


def _memory_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    gpu = (setup.gpu_memory_mib or 0) * _MIB
    thousandths = (gpu - memory_needed(setup, sizes)) * 1000 // gpu
    sets: ChangeSets = []
    if thousandths > 0:
        fraction = f"{thousandths / 1000:.3f}"
        sets.append((Change(flag=MEMORY_FRACTION, value=fraction, note="largest that works, to 0.001"),))
    if setup.canary.is_token_check_on:
        sets.append((token_check_off(),))
    return sets


LAYOUT_RULES = (
    Rule(
        "pool-class", "error", "the canary does not know this class of pool", _pool_class, _pool_class_changes
    ),
    Rule(
        "layout-hnd",
        "error",
        "buffer rows of this layout are pages, the canary counts tokens",
        _layout_hnd,
        _layout_hnd_changes,
        code="C6",
    ),
    Rule(
        "stage-window",
        "error",
        "a pipeline stage lacks one of two kinds of layers",
        _stage_window,
        _stage_window_changes,
    ),
    Rule(
        "layout-dcp",
        "warning",
        "request rows hold ids of all ranks, the canary's buffers those of one",
        _layout_dcp,
        _layout_dcp_changes,
        code="C6",
    ),
    Rule(
        "layout-last-page",
        "info",
        "the highest slot lies one page behind the canary's buffer",
        _layout_last_page,
        no_changes,
        code="C6",
    ),
    Rule(
        "memory",
        "warning",
        "the canary's memory is more than what is left beside weights and pool",
        _memory,
        _memory_changes,
    ),
)
