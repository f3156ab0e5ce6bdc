"""Tokens of the pool where nobody states them: what is left on the GPU, over the bytes of a token.

The server measures free memory after loading the weights; here both are estimated, so the result comes with
the smallest and the largest value that are plausible. A stated size or a log always wins.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity import formula
from kvcanary_cli.capacity.model import ModelChoice
from kvcanary_cli.capacity.numbers import MAX_COUNT
from kvcanary_cli.capacity.parallel import Parallel

_MIB = 2**20
_DEFAULT_RATIO = 0.8
# One layer of an EAGLE-type draft beside those of the target
_DRAFT_LAYERS = 1


class Budget(NamedTuple):
    """What the estimate rests on.

    Args:
        gpu_mib: memory of the smallest GPU.
        fraction: of it for weights and pool.
        is_fraction_given: whether a flag states it; the server's own default is known to about 0.01.
        has_draft: whether a draft model shares the pool.
        ratio: of window tokens to full tokens, where a flag states it.
    """

    gpu_mib: int | None
    fraction: float | None
    is_fraction_given: bool
    kv_dtype: str | None
    parallel: Parallel
    has_draft: bool
    ratio: float | None
    is_hybrid: bool


class Estimate(NamedTuple):
    """Tokens of the pool; `smallest` and `largest` are plausible, all in whole pages."""

    tokens: int
    smallest: int
    largest: int


class _Guess(NamedTuple):
    """One view of what the GPU holds beside weights and pool, in MiB, and how heavy the weights are."""

    used_mib: int
    weights_percent: int
    fraction: float


_MIDDLE = _Guess(1024, 100, 0.0)
_LOW = _Guess(3072, 110, -0.01)
_HIGH = _Guess(256, 97, 0.01)


def estimate_tokens(budget: Budget, model: ModelChoice, page_size: int) -> Estimate | None:
    """The estimate; None where the GPU, the shape or the size of the model is not known."""
    cell = cell_bytes(budget, model)
    if budget.gpu_mib is None or budget.fraction is None or cell is None or model.weight_bytes is None:
        return None
    low, middle, high = (
        _tokens(budget, budget.gpu_mib, budget.fraction, model.weight_bytes, cell, page_size, guess)
        for guess in (_LOW, _MIDDLE, _HIGH)
    )
    return Estimate(tokens=middle, smallest=low, largest=high)


def cell_bytes(budget: Budget, model: ModelChoice) -> float | None:
    """Bytes that one token of the full pool takes on one rank, its share of a window pool included."""
    units = formula.element_units(budget.kv_dtype)
    if units is None or model.layers is None:
        return None
    if model.latent_dim is not None:
        elements = model.latent_dim
    elif model.kv_heads is not None and model.head_dim is not None:
        elements = formula.row_elements(
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            v_head_dim=model.v_head_dim,
            attn_tp=budget.parallel.attn_tp,
        )
    else:
        return None
    pp, layers = budget.parallel.pp, float(model.layers)
    if budget.is_hybrid and model.window is not None and model.swa_layers is not None:
        ratio = budget.ratio or model.ratio or model.family.ratio or _DEFAULT_RATIO
        layers = model.layers - model.swa_layers + ratio * model.swa_layers
    if budget.has_draft:
        layers *= 1 + _DRAFT_LAYERS / model.layers
    return elements * units / formula.ELEMENT_UNIT * layers / pp


def _tokens(
    budget: Budget, gpu_mib: int, fraction: float, weights: int, cell: float, page_size: int, guess: _Guess
) -> int:
    free = (gpu_mib - guess.used_mib) * _MIB
    share = fraction + (0 if budget.is_fraction_given else guess.fraction)
    own_weights = weights * guess.weights_percent / 100 / (budget.parallel.tp * budget.parallel.pp)
    left = free * share - own_weights
    return formula.floor_page(min(max(0, int(left / cell)), MAX_COUNT), page_size)
