"""Settings of a modelled server, from flags and a capacity config: a flag beats the config, the config a default."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcanary_cli.errors import UsageError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.costs import CostModel

LIMITS = {
    "sglang": ("max_running_requests", "chunked_prefill_size", "max_prefill_tokens"),
    "vllm": ("max_num_seqs", "max_num_batched_tokens"),
}
"""Settings that only one of the schedulers has."""
SCHEDULERS = tuple(LIMITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What flags say; None where they say nothing."""

    scheduler: str | None = None
    pool_tokens: int | None = None
    pool_slots: int | None = None
    page_size: int | None = None
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    no_prefix_cache: bool = False
    prefill_rate: float | None = None
    decode_step_ms: float | None = None
    seed: int | None = None


def server(asked: Asked, *, capacities: str | None = None, longest: int = 1) -> SimConfig:
    """The modelled server.

    Args:
        capacities: a capacity config.
        longest: tokens of the largest request; rows are that wide, unless `capacities` states a context length.

    Raises: UsageError for settings that don't fit together, InputError for a config that can't be used.
    """
    base, context = (SimConfig(), None) if capacities is None else _of_config(capacities)
    changes: dict[str, Any] = {}
    if asked.scheduler is not None:
        changes["scheduler"] = _known(asked.scheduler)
    scheduler = changes.get("scheduler", base.scheduler)
    _refuse_other_rules(asked, scheduler)
    page = asked.page_size or base.page_size
    if asked.pool_slots is not None and asked.pool_tokens is not None:
        raise UsageError("`--pool-slots` and `--pool-tokens` both say how large the pool is")
    tokens = base.pool_slots - base.page_size if asked.pool_tokens is None else asked.pool_tokens
    changes["page_size"] = page
    changes["pool_slots"] = tokens // page * page + page if asked.pool_slots is None else asked.pool_slots
    for name in (
        "max_running_requests",
        "max_prefill_tokens",
        "max_num_batched_tokens",
        "max_num_seqs",
        "seed",
    ):
        if getattr(asked, name) is not None:
            changes[name] = getattr(asked, name)
    chunk = base.chunk_tokens if asked.chunked_prefill_size is None else asked.chunked_prefill_size
    # vLLM's model does not look at it, and a default must not clash with a page size
    changes["chunk_tokens"] = chunk if chunk is not None and chunk > 0 and scheduler == "sglang" else None
    if asked.no_prefix_cache:
        changes["prefix_cache"] = False
    # a verify of the last step writes its drafts behind the last token that can stay
    columns = (max(longest, 1) if context is None else context) + base.step_tokens - 1
    changes["row_width"] = -(-columns // page) * page
    changes["costs"] = with_costs(base.costs, rate=asked.prefill_rate, step_ms=asked.decode_step_ms)
    config = replace(base, **changes)
    if scheduler != "sglang":
        return config
    return config.with_capacities(chunk_flag=asked.chunked_prefill_size)


def _refuse_other_rules(asked: Asked, scheduler: str) -> None:
    """A limit that the scheduler does not know would change nothing."""
    for other, names in LIMITS.items():
        for name in names:
            if other != scheduler and getattr(asked, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"`{flag}` is a limit of the {other} scheduler, this run has {scheduler}'s rules",
                    hint=f"`--scheduler {other}`, or a limit of {scheduler}: "
                    + ", ".join(f"`--{one.replace('_', '-')}`" for one in LIMITS[scheduler]),
                )


def with_costs(costs: CostModel, *, rate: float | None, step_ms: float | None) -> CostModel:
    """Costs with a prefill rate in tokens a second and a decode step in milliseconds, where they are given."""
    for flag, value in (("--prefill-rate", rate), ("--decode-step-ms", step_ms)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"`{flag}` is {value:g}, a number above 0 is needed")
    if rate is not None:
        costs = replace(costs, prefill_token_s=1 / rate)
    if step_ms is not None:
        costs = replace(costs, decode_step_s=step_ms / 1000)
    return costs


def _known(scheduler: str) -> str:
    if scheduler not in SCHEDULERS:
        raise UsageError(f"`--scheduler` is {scheduler!r}, known are {', '.join(SCHEDULERS)}")
    return scheduler


def _of_config(path: str) -> tuple[SimConfig, int | None]:
    """The server that a capacity config describes, as far as it does, and its context length in tokens."""
    from kvcanary_cli.capacity.request import make_request
    from kvcanary_cli.capacity.served import server_settings
    from kvcanary_cli.capacity.setup import MissingInputsError, resolve
    from kvcanary_cli.capacity.sizes import derive

    request = make_request(config_path=path)
    section = request.config.simulate if request.config is not None else None
    context = request.config.pool.context_length if request.config is not None else None
    try:
        setup = resolve(request)
    except MissingInputsError as error:
        # a pool is enough for the model, which has defaults for the rest; launch arguments must not get lost
        if request.config is None or request.config.pool.tokens is None or request.config.args:
            error.where = error.where or path
            raise
        page = request.config.pool.page_size or SimConfig().page_size
        config = replace(
            SimConfig(), page_size=page, pool_slots=request.config.pool.tokens // page * page + page
        )
    else:
        config = SimConfig(**server_settings(setup, derive(setup)))
        context = setup.pool.context_length
    if section is None:
        return config, context
    changes: dict[str, Any] = {
        "costs": with_costs(config.costs, rate=section.prefill_tokens_per_s, step_ms=section.step_ms)
    }
    if section.scheduler is not None:
        changes["scheduler"] = _known(section.scheduler)
    if section.mixed_chunk is not None:
        changes["mixed_chunk"] = section.mixed_chunk
    if section.seed is not None:
        changes["seed"] = section.seed
    return replace(config, **changes), context
