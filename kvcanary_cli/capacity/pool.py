"""The token pool: its size, page size, and the context a request may have."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.arguments import Given
from kvcanary_cli.capacity.estimate import Budget, Estimate, estimate_tokens
from kvcanary_cli.capacity.formula import floor_page
from kvcanary_cli.capacity.inputs import Inputs, as_int, check_range
from kvcanary_cli.capacity.model import ModelChoice
from kvcanary_cli.capacity.origin import COMMAND_LINE, Origin, Place
from kvcanary_cli.capacity.tables import forced_page_size

ESTIMATE = "an estimate"
_MAX_TOTAL = "--max-total-tokens"
_CONTEXT = "--context-length"
_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


class Pool(NamedTuple):
    """The full pool of one rank.

    Args:
        tokens: max_total_num_tokens, in whole pages.
        setting: the option, flag or config key that decides them.
        page_size: tokens a page.
        context_length: tokens a request may have.
    """

    tokens: int
    setting: str
    page_size: int
    context_length: int
    estimate: Estimate | None = None


def resolve_pool(inputs: Inputs, model: ModelChoice, budget: Budget, *, is_blackwell: bool) -> Pool:
    """The pool as it is stated, capped by `--max-total-tokens`; where nobody states it, an estimate."""
    page_size = resolve_page_size(inputs, model, is_blackwell=is_blackwell)
    estimate = estimate_tokens(budget, model, page_size) if _is_wanted(inputs) else None
    if estimate is None:
        tokens, setting = resolve_tokens(inputs, page_size)
    else:
        tokens, setting = _estimated(inputs, estimate, page_size), ESTIMATE
    return Pool(
        tokens=tokens,
        setting=setting,
        page_size=page_size,
        context_length=resolve_context(inputs, model),
        estimate=estimate,
    )


def _is_wanted(inputs: Inputs) -> bool:
    """Whether the pool is to be estimated: the model is described, and nobody states the pool."""
    config, log = inputs.request.config, inputs.request.log
    is_described = config is not None and config.model.weight_bytes is not None
    if inputs.request.hf_model is None and not is_described:
        return False
    return not (
        inputs.request.options.pool_tokens is not None
        or (log is not None and log.tokens is not None)
        or (config is not None and config.pool.tokens is not None)
        or inputs.given(_MAX_TOTAL) is not None
    )


def _estimated(inputs: Inputs, estimate: Estimate, page_size: int) -> int:
    """The tokens of an estimate, or of the end of its range that an option asks for."""
    if estimate.tokens < 2 * page_size:
        raise inputs.place("--mem-fraction-static", "--tp-size").error(
            "by the estimate the weights leave no room for a pool on this GPU",
            hint="more ranks (`--tp-size`), a larger GPU, or the pool's own size with `--pool-tokens`",
        )
    end = inputs.request.options.estimate_end
    tokens = {"": estimate.tokens, "smallest": estimate.smallest, "largest": estimate.largest}[end]
    tokens = max(tokens, 2 * page_size)
    source = f"estimate: {estimate.smallest:,} to {estimate.largest:,} are plausible"
    inputs.default("pool_tokens", tokens, source)
    return tokens


def resolve_page_size(inputs: Inputs, model: ModelChoice, *, is_blackwell: bool) -> int:
    """Tokens a page: the flag or the config, unless the attention backend sets its own."""
    config = inputs.request.config
    wanted = inputs.integer("page_size", "--page-size", low=1)
    if wanted is None and config is not None and config.pool.page_size is not None:
        wanted = config.pool.page_size
        inputs.note("page_size", wanted, Origin.FILE, f"{config.path}: pool.page_size")
        # a config states the pool as it is, after the backend had its say
        return wanted
    of_model = model.family.page_size
    if of_model is not None:
        inputs.default("page_size", of_model, f"server: {model.architecture}")
        return of_model
    given = inputs.given("--attention-backend")
    backend = str(given.value) if given is not None else ("trtllm_mha" if is_blackwell else None)
    forced = None if backend is None else forced_page_size(backend, wanted, is_blackwell=is_blackwell)
    if forced is not None and forced != wanted:
        inputs.default("page_size", forced, f"server: {backend}")
        return forced
    if wanted is None:
        inputs.default("page_size", 1, "server")
        return 1
    return wanted


def resolve_tokens(inputs: Inputs, page_size: int) -> tuple[int, str]:
    """(tokens of the pool, the setting that decides them): as stated, capped by the flag, whole pages."""
    config, options, log = inputs.request.config, inputs.request.options, inputs.request.log
    stated: int | None = None
    setting, origin, source = "", Origin.FLAG, ""
    if options.pool_tokens is not None:
        stated, setting, source = options.pool_tokens, "--pool-tokens", "--pool-tokens"
    elif log is not None and log.tokens is not None:
        stated, setting = log.tokens.value, "max_total_num_tokens"
        origin, source = log.origin, log.tokens.source
    elif config is not None and config.pool.tokens is not None:
        stated, setting = config.pool.tokens, "pool.tokens"
        origin, source = Origin.FILE, f"{config.path}: pool.tokens"
    given = inputs.given(_MAX_TOTAL)
    if given is not None:
        cap = as_int(given)
        check_range(given, cap, low=1)
        if stated is None or cap < stated:
            stated, setting = cap, _MAX_TOTAL
            origin, source = given.place.origin, given.place.name(given.spelled)
    if stated is None:
        inputs.lack(
            "the tokens of the pool (`--pool-tokens`, max_total_num_tokens in the server's start-up log)"
        )
        return 2 * page_size, "--pool-tokens"
    tokens = floor_page(stated, page_size)
    if tokens < 2:
        raise _place(inputs, setting).error(
            f"`{setting}` is {stated:,}, a pool needs at least 2 tokens and one whole page of {page_size:,}"
        )
    inputs.note("pool_tokens", tokens, origin, source)
    return tokens, setting


def resolve_context(inputs: Inputs, model: ModelChoice) -> int:
    """Tokens a request may have: `--context-length` of kvcanary or the server, else log, config or model.

    Raises: UsageError or InputError where kvcanary's option and the server's flag disagree.
    """
    config, option = inputs.request.config, inputs.request.options.context_length
    given, log = inputs.given(_CONTEXT), inputs.request.log
    is_logged = log is not None and log.context is not None
    if given is not None and (inputs.beats_log(_CONTEXT) or not is_logged):
        value = as_int(given)
        check_range(given, value, low=1)
        _check_context(inputs, model, given, value)
        if option is not None and option != value:
            raise COMMAND_LINE.error(
                f"`{_CONTEXT}` is {option:,} for kvcanary and {value:,} for the server", hint="give it once"
            )
        inputs.note("context_length", value, given.place.origin, given.place.name(given.spelled))
        return value
    if option is not None:
        inputs.note("context_length", option, Origin.FLAG, _CONTEXT)
        return option
    if log is not None and log.context is not None:
        inputs.note("context_length", log.context.value, log.origin, log.context.source)
        return log.context.value
    if config is not None and config.pool.context_length is not None:
        inputs.note(
            "context_length", config.pool.context_length, Origin.FILE, f"{config.path}: pool.context_length"
        )
        return config.pool.context_length
    if model.context is not None:
        inputs.default("context_length", model.context, "model table or config")
        return model.context
    inputs.lack(f"the context length (`{_CONTEXT}`)")
    return 1


def _check_context(inputs: Inputs, model: ModelChoice, given: Given, value: int) -> None:
    """Refuse a context beyond the model's own, as the server does; changed model settings may allow it."""
    env = inputs.request.arguments.env.get(_LONGER)
    is_allowed = env is not None and inputs.env_switch("allow_longer_context", _LONGER)
    if is_allowed or model.context is None or inputs.given("--json-model-override-args") is not None:
        return
    if value > model.context:
        raise given.place.error(
            f"`{given.spelled}` is {value:,}, the model's own context is {model.context:,}",
            hint=f"the server refuses it too, unless `{_LONGER}=1` stands before the command",
        )


def _place(inputs: Inputs, setting: str) -> Place:
    """Where the setting that decides the pool stands."""
    config = inputs.request.config
    if setting == "pool.tokens" and config is not None:
        return Place(file=config.path, line=config.file.line("$.pool.tokens"))
    return inputs.place(setting)
