"""Share of the GPU's memory that the server takes for weights and pool, where no flag says it.

Source: the server's GPU memory defaults (0.5.23); accurate to about 0.01, as some features reserve more.
"""

from __future__ import annotations

from typing import NamedTuple

# MiB; what the server reserves whatever the launch
_BASE_MIB = 512
_PER_TOKEN_MIB = 1.5
_LEAST_TOKENS = 2048
_PER_EIGHT_RANKS_MIB = 1024
_PER_GRAPH_BATCH_MIB = 2
_PER_GROUP_BATCH_MIB = 3
_MANY_BATCHES = 300
_PER_BUCKET_MIB = 8
_MLA_PREFILL_MIB = 1536
_LARGE_GPU_MIB = 60 * 1024
_LARGE_LEAST_MIB = 10240
_MULTIMODAL = 0.95


class Reserve(NamedTuple):
    """What the reservation depends on.

    Args:
        tokens: of a forward: chunk before it is split over groups, else max prefill; of a decode server its
            requests x draft tokens.
        graph_batch: largest decode graph, 0 where there is none.
        prefill_buckets: sizes of the prefill graph, 0 where there is none.
    """

    gpu_mib: int
    tokens: int
    ranks: int
    attn_dp: int
    graph_batch: int
    prefill_buckets: int
    is_mla: bool
    is_multimodal: bool


def default_fraction(reserve: Reserve) -> float:
    """The server's `--mem-fraction-static` by default; below 0 where the GPU is too small."""
    graphs = float(_PER_GRAPH_BATCH_MIB * reserve.graph_batch)
    if reserve.attn_dp > 1:
        groups = _PER_GROUP_BATCH_MIB * reserve.graph_batch * reserve.attn_dp
        graphs += groups * (1.5 if reserve.graph_batch > _MANY_BATCHES else 1)
    if reserve.prefill_buckets:
        graphs += _MLA_PREFILL_MIB if reserve.is_mla else _PER_BUCKET_MIB * reserve.prefill_buckets
    tokens = max(reserve.tokens, _LEAST_TOKENS)
    reserved = _BASE_MIB + _PER_TOKEN_MIB * tokens + reserve.ranks / 8 * _PER_EIGHT_RANKS_MIB + graphs
    if reserve.gpu_mib > _LARGE_GPU_MIB:
        reserved = max(reserved, _LARGE_LEAST_MIB)
    fraction = round((reserve.gpu_mib - reserved) / reserve.gpu_mib, 3)
    return round(fraction * _MULTIMODAL, 3) if reserve.is_multimodal else fraction
