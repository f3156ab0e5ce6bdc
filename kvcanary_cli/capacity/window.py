"""The sliding-window pool of a hybrid model, beside the full one."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.formula import floor_page, swa_pool_tokens
from kvcanary_cli.capacity.inputs import Inputs
from kvcanary_cli.capacity.model import ModelChoice
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.pool import Pool

_DEFAULT_RATIO = 0.8
# Tokens a draft adds to a request's window, where running requests size the pool
_DRAFT_ROOM = 128


class Window(NamedTuple):
    """A sliding window with a pool of its own, in tokens: both None where there is none."""

    size: int | None
    tokens: int | None


class RequestCap(NamedTuple):
    """What sizes the pool where a limit of requests is given, the prefix cache is off and prompts are cut."""

    requests: int
    draft_tokens: int
    chunk: int


def resolve_window(inputs: Inputs, model: ModelChoice, pool: Pool, cap: RequestCap | None) -> Window:
    """The sliding-window pool of a hybrid model.

    Args:
        cap: where the server sizes it by running requests and not by the ratio.
    Raises: UsageError or InputError where the pool does not hold one window and a page.
    """
    is_off = inputs.is_on("--disable-hybrid-swa-memory") or model.family.window == "never"
    if model.window is None or is_off:
        return Window(size=None, tokens=None)
    config, log = inputs.request.config, inputs.request.log
    if log is not None and log.swa_tokens is not None:
        swa_tokens = log.swa_tokens.value
        inputs.note("swa_tokens", swa_tokens, log.origin, log.swa_tokens.source)
    elif config is not None and config.pool.swa_tokens is not None:
        swa_tokens = config.pool.swa_tokens
        inputs.note("swa_tokens", swa_tokens, Origin.FILE, f"{config.path}: pool.swa_tokens")
    elif cap is not None:
        swa_tokens = _capped_tokens(model.window, pool, cap)
        inputs.default("swa_tokens", swa_tokens, "server, by running requests; an estimate")
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


def _capped_tokens(window: int, pool: Pool, cap: RequestCap) -> int:
    """Each request's window, its drafts and its next step, and two chunks; never more than the full pool.

    What the server allocates ahead for a decode step is taken as its tokens in whole pages: an estimate.
    """
    page = pool.page_size
    step = -(-max(1, cap.draft_tokens) // page) * page
    each = window + _DRAFT_ROOM * cap.draft_tokens + page + step
    return floor_page(min(cap.requests * each + 2 * cap.chunk + page, pool.tokens), page)


def _swa_ratio(inputs: Inputs, model: ModelChoice) -> float:
    given = inputs.given("--swa-full-tokens-ratio")
    if given is not None:
        ratio = given.value
        if not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise given.place.error(f"`{given.spelled}` is {ratio}, it is above 0 and at most 1")
        inputs.note("swa_full_tokens_ratio", ratio, given.place.origin, given.place.name(given.spelled))
        return float(ratio)
    ratio_of_model = model.ratio if model.ratio is not None else model.family.ratio
    if ratio_of_model is None and (model.architecture or "").startswith("Step3p5"):
        ratio_of_model = 1.0 if inputs.is_on("--enable-hierarchical-cache") else None
    if ratio_of_model is not None:
        return ratio_of_model
    inputs.default("swa_full_tokens_ratio", _DEFAULT_RATIO, "server")
    return _DEFAULT_RATIO
