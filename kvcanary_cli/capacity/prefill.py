"""Prefill: tokens a forward may take, in one chunk and in all."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.inputs import Inputs
from kvcanary_cli.capacity.model import ModelChoice
from kvcanary_cli.capacity.tables import Tier

CHUNK = "--chunked-prefill-size"
MAX_PREFILL = "--max-prefill-tokens"
# Switches with which, beside some architectures, the server takes whole prompts whatever the chunk flag says
FORCES_WHOLE_PROMPTS = ("--enable-mis",)
_DEFAULT_PREFILL = 16384


class Prefill(NamedTuple):
    """Prefill limits of one rank.

    Args:
        chunk: tokens a chunk; 0 or below switches chunking off, but 0 counts as a limit in the capacity.
        max_tokens: tokens after which no more requests are admitted to a forward.
        is_forced: whether chunking is off whatever the flag says.
        forced_by: the switch or architecture that does so.
        total_chunk: before it is split over data-parallel groups.
    """

    chunk: int
    max_tokens: int
    is_forced: bool
    forced_by: str = ""
    total_chunk: int = 0


def needs_gpu(inputs: Inputs, model: ModelChoice) -> bool:
    """Whether the chunk comes from the GPU's default."""
    log = inputs.request.log
    is_logged = log is not None and log.chunk is not None
    return inputs.given(CHUNK) is None and not is_logged and not _forced_by(inputs, model)


def resolve_prefill(inputs: Inputs, tier: Tier | None, attn_dp: int, model: ModelChoice) -> Prefill:
    """Limits from the flags, else a log, else the GPU's tier; the chunk is split over data-parallel groups."""
    log = inputs.request.log
    max_tokens = inputs.count("max_prefill_tokens", MAX_PREFILL, default=_DEFAULT_PREFILL)
    if log is not None and log.max_prefill is not None and not inputs.beats_log(MAX_PREFILL):
        max_tokens = log.max_prefill.value
        inputs.note("max_prefill_tokens", max_tokens, log.origin, log.max_prefill.source)
    forced_by = _forced_by(inputs, model)
    if forced_by is not None:
        inputs.default("chunked_prefill_size", -1, f"server: {forced_by}")
        return Prefill(chunk=-1, max_tokens=max_tokens, is_forced=True, forced_by=forced_by, total_chunk=-1)
    if log is not None and log.chunk is not None and not inputs.beats_log(CHUNK):
        # the log states the share of one rank already
        chunk = log.chunk.value
        inputs.note("chunked_prefill_size", chunk, log.origin, log.chunk.source)
        return Prefill(chunk=chunk, max_tokens=max_tokens, is_forced=False, total_chunk=chunk * attn_dp)
    default = None if tier is None else tier.chunk
    total = (
        inputs.integer("chunked_prefill_size", CHUNK, default=default, source="server, by GPU memory") or 0
    )
    # floor division, as in the server: -1 stays -1, and a chunk below the number of groups becomes 0
    return Prefill(chunk=total // attn_dp, max_tokens=max_tokens, is_forced=False, total_chunk=total)


def check_chunk(
    inputs: Inputs, prefill: Prefill, *, page_size: int, attn_dp: int, disaggregation: str
) -> None:
    """Refuse a chunk that is not whole pages, as the server does at its start."""
    if prefill.chunk <= 0 or disaggregation == "decode" or prefill.chunk % page_size == 0:
        return
    given = inputs.given(CHUNK)
    share = (
        f" over {attn_dp:,} data-parallel groups is {prefill.chunk:,}"
        if attn_dp > 1
        else f" is {prefill.chunk:,}"
    )
    message = f"`{CHUNK}`{share}, which is not a multiple of the page size {page_size:,}"
    raise inputs.place(CHUNK if given is not None else "--page-size").error(
        message, hint="the server refuses to start so; change one of the two"
    )


def _forced_by(inputs: Inputs, model: ModelChoice) -> str | None:
    if model.family.takes_whole_prompts:
        return model.architecture
    return next((flag for flag in FORCES_WHOLE_PROMPTS if inputs.is_on(flag)), None)
