"""Switches of a launch that change nothing in the sizes and yet decide whether the canary works at all.

A feature is noted among the inputs only where it is given: most launches have none of them.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.inputs import Inputs, as_int
from kvcanary_cli.capacity.origin import Origin

ADAPTIVE = "--speculative-adaptive"
MULTI_LAYER = "--enable-multi-layer-eagle"
PDMUX = "--enable-pdmux"
DYNAMIC_CHUNKING = "--enable-dynamic-chunking"
PREFILL_CP = "--enable-prefill-cp"
DLLM = "--dllm-algorithm"
PAGE_MAJOR = "--enable-page-major-kv-layout"
UNIFIED_MEMORY = "--enable-unified-memory"
NO_KV_CACHE = "--prefill-only-disable-kv-cache"
LMCACHE = "--enable-lmcache"
FLEXKV = "--enable-flexkv"
CACHE_BACKEND = "--radix-cache-backend"
DCP = "--dcp-size"
SWEEP = "--kv-canary-sweep-interval"
REAL_DATA = "--kv-canary-real-data"
DEVICE = "--device"
AUTOTUNE = "SGLANG_FLASHINFER_AUTOTUNE_EXTEND"
DEEPGEMM = "SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP"
HND = "SGLANG_USE_HND_KVCACHE"
GEMMA_POSITIONS = "SGLANG_GEMMA_OUT_OF_PLACE_POSITION_MUTATION"
INPUT_CHECK = "SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT"
TOKEN_ORACLE = "SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE"
TARGET_GROUP = "SGLANG_KV_CANARY_PERTURB_TARGET_GROUP"
POST_CAPTURE = "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"
PERTURBATIONS = tuple(
    f"SGLANG_KV_CANARY_PERTURB_{what}_PROB"
    for what in (
        "REQ_TO_TOKEN",
        "REAL_KV_USED",
        "REAL_KV_UNUSED_CACHE",
        "REAL_KV_POST_FORWARD",
        "NEXT_TOKEN_SWAP",
    )
)
"""Variables that make the canary damage data on purpose."""

_SWITCHES = (
    ADAPTIVE,
    MULTI_LAYER,
    PDMUX,
    DYNAMIC_CHUNKING,
    PREFILL_CP,
    PAGE_MAJOR,
    UNIFIED_MEMORY,
    NO_KV_CACHE,
    LMCACHE,
    FLEXKV,
)
_WORDS = (DLLM, CACHE_BACKEND, DEVICE, REAL_DATA)
_VARIABLES = (AUTOTUNE, DEEPGEMM, HND, GEMMA_POSITIONS, INPUT_CHECK, TOKEN_ORACLE, POST_CAPTURE)


class Features(NamedTuple):
    """What is given of the above.

    Args:
        on: switches and boolean variables that are on, under the names of this module.
        words: values of the flags that take a word.
        dcp: ranks that decode context parallelism splits a request over.
        sweep_interval: steps between sweeps, 0 for none.
        perturbations: variables of a probability above 0.
        target_group: which group they damage.
    """

    on: frozenset[str]
    words: dict[str, str]
    dcp: int
    sweep_interval: int
    perturbations: tuple[str, ...]
    target_group: str | None

    def word(self, flag: str) -> str | None:
        """The word given for a flag."""
        return self.words.get(flag)


def resolve_features(inputs: Inputs) -> Features:
    """Features from flags and from variables in front of the command.

    Raises: UsageError or InputError for a variable that is not what its type wants.
    """
    on = {flag for flag in _SWITCHES if inputs.is_on(flag)}
    for flag in on:
        given = inputs.given(flag)
        if given is not None:
            inputs.note(_named(flag), True, given.place.origin, given.place.name(given.spelled))
    on |= {name for name in _VARIABLES if _is_variable_on(inputs, name)}
    words = {flag: inputs.text(_named(flag), flag, default=None) for flag in _WORDS}
    dcp = inputs.integer("dcp_size", DCP, low=1)
    return Features(
        on=frozenset(on),
        words={flag: word for flag, word in words.items() if word is not None},
        dcp=dcp or 1,
        sweep_interval=_sweep_interval(inputs),
        perturbations=tuple(name for name in PERTURBATIONS if _probability(inputs, name) > 0),
        target_group=_text(inputs, TARGET_GROUP),
    )


def _sweep_interval(inputs: Inputs) -> int:
    given = inputs.given(SWEEP)
    if given is None:
        return 0
    value = as_int(given)
    inputs.note("sweep_interval", value, given.place.origin, given.place.name(given.spelled))
    return max(0, value)


def _is_variable_on(inputs: Inputs, name: str) -> bool:
    return name in inputs.request.arguments.env and inputs.env_switch(_named(name), name)


def _probability(inputs: Inputs, name: str) -> float:
    given = inputs.request.arguments.env.get(name)
    if given is None:
        return 0.0
    try:
        value = float(str(given.value))
    except ValueError as error:
        raise given.place.error(f"`{name}` wants a number, found `{given.value}`") from error
    inputs.note(_named(name), value, Origin.ENVIRONMENT, given.place.name(name))
    return value


def _text(inputs: Inputs, name: str) -> str | None:
    given = inputs.request.arguments.env.get(name)
    if given is None:
        return None
    inputs.note(_named(name), given.value, Origin.ENVIRONMENT, given.place.name(name))
    return str(given.value)


def _named(spelled: str) -> str:
    """A flag or variable as the name of an input."""
    return spelled.removeprefix("--").removeprefix("SGLANG_").replace("-", "_").lower()
