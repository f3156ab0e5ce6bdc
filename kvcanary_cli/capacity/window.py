"""The sliding-window pool of a hybrid model, beside the full one."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.formula import swa_pool_tokens
from kvcanary_cli.capacity.inputs import Inputs
from kvcanary_cli.capacity.model import ModelChoice
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.pool import Pool

# Sliding-window models for which the server keeps one full pool all the same
_NEVER_HYBRID = ("Gemma2", "Gemma3", "Olmo", "Exaone")
_DEFAULT_RATIO = 0.8


class Window(NamedTuple):
    """A sliding window with a pool of its own, in tokens: both None where there is none."""

    size: int | None
    tokens: int | None


def resolve_window(inputs: Inputs, model: ModelChoice, pool: Pool, *, is_capped_by_requests: bool) -> Window:
    """The sliding-window pool of a hybrid model.

    Args:
        is_capped_by_requests: the server then sizes it by running requests, which flags alone don't give.
    Raises: UsageError or InputError where the pool does not hold one window and a page.
    """
    is_off = inputs.is_on("--disable-hybrid-swa-memory") or (model.architecture or "").startswith(
        _NEVER_HYBRID
    )
    if model.window is None or is_off:
        return Window(size=None, tokens=None)
    config = inputs.request.config
    if config is not None and config.pool.swa_tokens is not None:
        swa_tokens = config.pool.swa_tokens
        inputs.note("swa_tokens", swa_tokens, Origin.FILE, f"{config.path}: pool.swa_tokens")
    elif is_capped_by_requests:
        inputs.lack(
            "the tokens of the sliding-window pool (`pool.swa_tokens` in a config, from the start-up log)"
        )
        return Window(size=model.window, tokens=pool.tokens)
    else:
        ratio = _swa_ratio(inputs, model)
        swa_tokens = swa_pool_tokens(pool.tokens, ratio, pool.page_size)
        inputs.default("swa_tokens", swa_tokens, f"{ratio} x pool tokens, whole pages")
    if swa_tokens <= model.window + pool.page_size and not inputs.missing:
        raise inputs.place("--swa-full-tokens-ratio", "--max-total-tokens").error(
            f"the sliding-window pool has {swa_tokens:,} tokens, it needs more than the "
            f"window {model.window:,} and a page of {pool.page_size:,}"
        )
    return Window(size=model.window, tokens=swa_tokens)


def _swa_ratio(inputs: Inputs, model: ModelChoice) -> float:
    given = inputs.given("--swa-full-tokens-ratio")
    if given is not None:
        ratio = given.value
        if not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise given.place.error(f"`{given.spelled}` is {ratio}, it is above 0 and at most 1")
        inputs.note("swa_full_tokens_ratio", ratio, given.place.origin, given.place.name(given.spelled))
        return float(ratio)
    if model.ratio is not None:
        return model.ratio
    inputs.default("swa_full_tokens_ratio", _DEFAULT_RATIO, "server")
    return _DEFAULT_RATIO
