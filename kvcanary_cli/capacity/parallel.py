"""Ranks: tensor, pipeline and attention data parallelism."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.inputs import Inputs, as_int

_TP, _DP, _ATTN_DP, _ATTN_CP, _PP = "--tp-size", "--dp-size", "--attn-dp-size", "--attn-cp-size", "--pp-size"
_ALIAS = "--enable-dp-attention"


class Parallel(NamedTuple):
    """Sizes; `attn_tp` ranks share the heads of one attention, `attn_dp` groups split the requests."""

    tp: int
    pp: int
    attn_dp: int
    attn_tp: int


def resolve_parallel(inputs: Inputs) -> Parallel:
    """Sizes of the launch. Replicas (`--dp-size` alone) divide nothing and are only checked.

    Raises: UsageError or InputError for sizes that don't divide each other or exclude each other.
    """
    tp = inputs.count("tp_size", _TP, default=1)
    pp = inputs.count("pp_size", _PP, default=1)
    attn_dp = _attention_dp(inputs)
    attn_cp = inputs.integer("attn_cp_size", _ATTN_CP, low=1) or 1
    if tp % attn_dp:
        raise inputs.place(_ATTN_DP, _DP, _TP).error(
            f"`{_TP}` is {tp:,}, which {attn_dp:,} attention data-parallel groups do not divide"
        )
    if (tp // attn_dp) % attn_cp:
        raise inputs.place(_ATTN_CP).error(
            f"`{_ATTN_CP}` is {attn_cp:,}, it does not divide the {tp // attn_dp:,} ranks of a group"
        )
    return Parallel(tp=tp, pp=pp, attn_dp=attn_dp, attn_tp=tp // attn_dp // attn_cp)


def _attention_dp(inputs: Inputs) -> int:
    """Attention data parallelism under both of its spellings."""
    replicas, given = inputs.given(_DP), inputs.given(_ATTN_DP)
    attn_dp = inputs.count("attn_dp_size", _ATTN_DP, default=1)
    alias = inputs.given(_ALIAS)
    if alias is None:
        dp = inputs.integer("dp_size", _DP, low=1) or 1
        if attn_dp > 1 and dp > 1:
            raise inputs.place(_DP).error(
                f"`{_DP}` is {dp:,} and `{_ATTN_DP}` is {attn_dp:,}, only one of them may be above 1"
            )
        return attn_dp
    dp = 1 if replicas is None else as_int(replicas)
    if given is not None and attn_dp != dp:
        raise given.place.error(
            f"`{_ATTN_DP}` is {attn_dp:,}, but `{_ALIAS}` makes it `{_DP}`, which is {dp:,}",
            hint=f"leave `{_ALIAS}` out",
        )
    return inputs.integer("attn_dp_size", _DP, low=1, default=1) or 1
