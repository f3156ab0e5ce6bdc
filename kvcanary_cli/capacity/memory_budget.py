"""What of the GPU's memory is for weights and pool, and what an estimate of the pool rests on."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvcanary_cli.capacity.estimate import Budget
from kvcanary_cli.capacity.gpu import GpuChoice
from kvcanary_cli.capacity.graphs import Graph
from kvcanary_cli.capacity.inputs import Inputs
from kvcanary_cli.capacity.mem_fraction import Reserve, default_fraction
from kvcanary_cli.capacity.model import ModelChoice
from kvcanary_cli.capacity.parallel import Parallel
from kvcanary_cli.capacity.prefill import Prefill
from kvcanary_cli.capacity.prefill_graph import PrefillGraph
from kvcanary_cli.capacity.speculative import Speculation

MEMORY_FRACTION = "--mem-fraction-static"


class Launch(NamedTuple):
    """What is resolved before memory is sized; `limit` is that of running requests, where a flag gives it."""

    parallel: Parallel
    prefill: Prefill
    graph: Graph
    prefill_graph: PrefillGraph
    speculation: Speculation
    model: ModelChoice
    kv_dtype: str | None
    limit: int | None
    disaggregation: str

    def of_setup(self) -> dict[str, Any]:
        """The values that a setup has under the same names."""
        values = self._asdict()
        del values["limit"]
        return values


def memory_fraction(inputs: Inputs, gpu: GpuChoice, launch: Launch) -> float | None:
    """`--mem-fraction-static`, or what the server puts in its place; None where that needs an unknown GPU."""
    given = inputs.given(MEMORY_FRACTION)
    if given is not None:
        value = given.value
        if not isinstance(value, int | float) or not 0 < value < 1:
            raise given.place.error(f"`{given.spelled}` is {value}, it is above 0 and below 1")
        inputs.note("mem_fraction_static", value, given.place.origin, given.place.name(given.spelled))
        return float(value)
    if gpu.memory_mib is None:
        return None
    prefill, graph, model = launch.prefill, launch.graph, launch.model
    tokens = prefill.total_chunk if prefill.total_chunk > 0 else prefill.max_tokens
    if launch.disaggregation == "decode":
        tokens = (launch.limit or graph.max_batch or 1) * launch.speculation.draft_tokens
    return default_fraction(
        Reserve(
            gpu_mib=gpu.memory_mib,
            tokens=tokens,
            ranks=launch.parallel.tp * launch.parallel.pp,
            attn_dp=launch.parallel.attn_dp,
            graph_batch=graph.max_batch if graph.is_on else 0,
            prefill_buckets=len(launch.prefill_graph.sizes) if launch.prefill_graph.is_on else 0,
            is_mla=model.family.pool in ("mla", "dsa"),
            is_multimodal=not model.family.has_prefill_graph,
        )
    )


def pool_budget(inputs: Inputs, gpu: GpuChoice, fraction: float | None, launch: Launch) -> Budget:
    """What an estimate of the pool rests on, should nobody state it."""
    ratio = inputs.given("--swa-full-tokens-ratio")
    is_off = inputs.is_on("--disable-hybrid-swa-memory") or launch.model.family.window == "never"
    return Budget(
        gpu_mib=gpu.memory_mib,
        fraction=fraction,
        is_fraction_given=inputs.given(MEMORY_FRACTION) is not None,
        kv_dtype=launch.kv_dtype,
        parallel=launch.parallel,
        has_draft=launch.speculation.runners > 1,
        ratio=float(ratio.value) if ratio is not None and isinstance(ratio.value, int | float) else None,
        is_hybrid=not is_off,
    )
