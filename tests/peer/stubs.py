"""Everything of SGLang that a machine without GPU needs replaced, in one place. Nothing else of it is.

| what | why |
| --- | --- |
| operators `torchvision::nms`, `qnms` | torchvision is built for CUDA, its import registers more than a CPU torch has |
| `ModelRunner.__init__`, `_forward_raw` | in `StandInRunner`: no weights, no kernels; `forward` itself is SGLang's |
| the canary's `create_device_stream`, `pin_memory=`, `flatten_arrays_to_int64_tensor` | CUDA streams, pinned memory |
| modules `vllm`, `vllm._custom_ops` | imported by name where no CUDA is, never called; only for the whole engine |
"""

from __future__ import annotations

import sys
import types
from typing import Any

_KEPT: list[Any] = []


def torchvision_operators() -> None:
    """Call before the first import of sglang."""
    import torch

    if torch.version.cuda is None and not _KEPT:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)


def vllm_operators() -> None:
    """For a whole engine; call before it is imported, in each of its processes."""
    package, operators = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    operators.rotary_embedding = None  # type: ignore[attr-defined]
    package._custom_ops = operators  # type: ignore[attr-defined]
    sys.modules.setdefault("vllm", package)
    sys.modules.setdefault("vllm._custom_ops", operators)


def stand_in_runner(pool: Any, allocator: Any, kv_pool: Any) -> Any:
    """SGLang's model runner without a model: its `forward` is real, what it launches is `model.forward`."""
    import torch
    from sglang.srt.model_executor.model_runner import ModelRunner, ModelRunnerOutput

    class Model(torch.nn.Module):
        def forward(self, input_ids: Any, positions: Any, forward_batch: Any) -> None:
            """A layer that writes the K and V of each token, made from id and position."""
            if len(input_ids):
                value = (input_ids * 131 + positions).to(kv_pool.dtype)[:, None, None]
                for layer in range(len(kv_pool.k_buffer)):
                    slots = forward_batch.out_cache_loc
                    kv_pool.k_buffer[layer][slots] = value + layer
                    kv_pool.v_buffer[layer][slots] = value - layer

    class StandInRunner(ModelRunner):
        def __init__(self) -> None:
            self.device = "cpu"
            self.forward_pass_id = 0
            self.msprobe_debugger = self.eplb_manager = self.decode_cuda_graph_runner = None
            self.is_draft_worker = self.enable_elastic_ep = False
            self.canary_manager = None
            self.model = Model()
            self.req_to_token_pool, self.token_to_kv_pool_allocator = pool, allocator
            self.token_to_kv_pool = kv_pool
            self.max_total_num_tokens = allocator.size
            self.sliding_window_size = None

        def _forward_raw(self, forward_batch: Any, *args: Any, **options: Any) -> Any:
            self.model.forward(forward_batch.input_ids, forward_batch.positions, forward_batch)
            return ModelRunnerOutput(logits_output=None, can_run_graph=False)

    return StandInRunner()


def real_canary(runner: Any, tree: Any, server_args: Any) -> Any:
    """SGLang's own canary around the runner's model."""
    from sglang.srt.kv_canary.api import install_canary

    canary_without_gpu()
    manager = install_canary(server_args=server_args, model_runner=runner)
    manager.attach_radix_cache(tree)
    manager.mark_init_finished()
    runner.canary_manager = manager
    return manager


def canary_without_gpu() -> None:
    """Replace what the canary needs of CUDA; call before it is installed."""
    import torch
    from sglang.srt.kv_canary import req_to_expected_token_ids_manager as expected
    from sglang.srt.kv_canary.runner import canary_manager, future_tensor

    canary_manager.create_device_stream = lambda *args, **options: torch.cpu.Stream()
    unpinned = _without_pinning(torch)
    future_tensor.torch = expected.torch = unpinned
    flatten = expected.flatten_arrays_to_int64_tensor
    if not getattr(flatten, "is_stub", False):

        def flatten_unpinned(*args: Any, **options: Any) -> Any:
            return flatten(*args, **(options | {"pin": False}))

        flatten_unpinned.is_stub = True  # type: ignore[attr-defined]
        expected.flatten_arrays_to_int64_tensor = flatten_unpinned


def note_all_ids(batch: Any, reqs: Any) -> None:
    """The tokens of all requests, which the canary wants in a batch; call after `real_canary`."""
    from sglang.srt.kv_canary.req_to_expected_token_ids_manager import compute_req_all_ids_info

    batch.req_all_ids_flat, batch.req_all_ids_lens = compute_req_all_ids_info(reqs)


def _without_pinning(torch: Any) -> Any:
    class Unpinned(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            found = getattr(torch, name)
            if name not in ("empty", "zeros", "tensor"):
                return found

            def make(*args: Any, **options: Any) -> Any:
                options.pop("pin_memory", None)
                return found(*args, **options)

            return make

    return Unpinned("torch")
