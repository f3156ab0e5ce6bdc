"""CUDA graph of the prefill phase: the token counts that it was captured for, to which a prefill is padded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvcanary_cli.capacity.graphs import GRAPH_CONFIG, graph_config
from kvcanary_cli.capacity.inputs import Inputs, as_int, check_range
from kvcanary_cli.capacity.model import ModelChoice
from kvcanary_cli.capacity.parallel import Parallel
from kvcanary_cli.capacity.prefill import CHUNK, Prefill

MAX_BS_PREFILL = "--cuda-graph-max-bs-prefill"
BS_PREFILL = "--cuda-graph-bs-prefill"
BACKEND_PREFILL = "--cuda-graph-backend-prefill"
NO_PREFILL_GRAPH = "--disable-prefill-cuda-graph"
PIECEWISE = "tc_piecewise"
_MLA_LIMIT = 8192
# (last bucket, step) of the sizes that the server captures; beyond, every 512
_STEPS = ((32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256))
_LAST_STEP = 512


class PrefillGraph(NamedTuple):
    """Prefill graph settings of one rank.

    Args:
        sizes: tokens that graphs were captured for, rising; empty where there is none.
        backend: breakable, full or disabled; `tc_piecewise` in old releases.
        setting: the flag that decides the sizes.
    """

    sizes: tuple[int, ...]
    backend: str
    setting: str

    @property
    def is_on(self) -> bool:
        """Whether prefills are padded at all."""
        return self.backend != "disabled" and bool(self.sizes)

    def padded(self, tokens: int) -> int:
        """Tokens of a prefill's replay: the next size, or the prefill itself where none is as large."""
        at = bisect_left(self.sizes, tokens)
        return self.sizes[at] if at < len(self.sizes) else tokens

    def most_padded(self, tokens: int) -> int:
        """The largest replay that any prefill of up to `tokens` can have."""
        if not self.is_on:
            return tokens
        return max(tokens, self.padded(min(tokens, self.sizes[-1])))


def buckets(limit: int) -> tuple[int, ...]:
    """The sizes that the server captures up to `limit` tokens."""
    return tuple(_buckets(limit))


def _buckets(limit: int) -> Iterator[int]:
    size = 0
    for last, step in _STEPS:
        while size < last:
            size += step
            if size > limit:
                return
            yield size
    while size + _LAST_STEP <= limit:
        size += _LAST_STEP
        yield size


def resolve_prefill_graph(
    inputs: Inputs, prefill: Prefill, model: ModelChoice, parallel: Parallel, *, disaggregation: str
) -> PrefillGraph:
    """Strongest first: `--cuda-graph-config`, the flags of the phase, the switches that disable, the default.

    By default the sizes end at the chunk of one rank, for MLA models at 8,192 or that.
    """
    section = graph_config(inputs.given(GRAPH_CONFIG)).get("prefill", {})
    backend = _backend(inputs, section, model, parallel, disaggregation)
    listed = inputs.given(BS_PREFILL)
    if "bs" in section:
        return PrefillGraph(tuple(sorted(set(section["bs"]))), backend, GRAPH_CONFIG)
    if "max_bs" in section:
        return PrefillGraph(buckets(section["max_bs"]), backend, GRAPH_CONFIG)
    if listed is not None and isinstance(listed.value, tuple):
        sizes = {size for size in listed.value if isinstance(size, int)}
        check_range(listed, max(sizes), low=1)
        return PrefillGraph(tuple(sorted(sizes)), backend, BS_PREFILL)
    given = inputs.given(MAX_BS_PREFILL)
    if given is not None:
        check_range(given, as_int(given), low=0)
        return PrefillGraph(buckets(_tamed(as_int(given))), backend, MAX_BS_PREFILL)
    limit = max(0, prefill.chunk)
    if model.latent_dim is not None or model.family.pool in ("mla", "dsa"):
        limit = min(limit, _MLA_LIMIT)
    capped = inputs.given("--max-total-tokens")
    if capped is not None:
        limit = min(limit, as_int(capped))
    return PrefillGraph(buckets(_tamed(limit)), backend, CHUNK)


def _tamed(limit: int) -> int:
    """No pool is so large that more buckets mattered; a flag in the billions must not take memory here."""
    return min(limit, 1 << 22)


def _backend(
    inputs: Inputs, section: dict[str, Any], model: ModelChoice, parallel: Parallel, disaggregation: str
) -> str:
    if disaggregation == "decode":
        return "disabled"
    given = inputs.given(BACKEND_PREFILL)
    if "backend" in section:
        return str(section["backend"])
    if given is not None:
        return str(given.value)
    if inputs.is_on(NO_PREFILL_GRAPH) or inputs.is_on("--disable-cuda-graph"):
        return "disabled"
    device = inputs.given("--device")
    is_cuda = device is None or str(device.value).startswith("cuda")
    by_default = is_cuda and parallel.pp == 1 and model.family.has_prefill_graph
    return "breakable" if by_default else "disabled"
