"""The GPU: which one, how much memory, and the defaults that the server takes from it."""

from __future__ import annotations

from typing import NamedTuple

from kvcanary_cli.capacity.inputs import Inputs
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.tables import Gpu, find_gpu, unknown_gpu_hint
from kvcanary_cli.errors import UsageError

# Cards of one name differ (an H100 NVL has 17% more than an H100), but not by more than this
_MOST_OVER_NAME = 1.25


class GpuChoice(NamedTuple):
    """What is known of the GPU; memory in MiB, None where neither it nor the name is given."""

    memory_mib: int | None
    is_blackwell: bool


def resolve_gpu(inputs: Inputs) -> GpuChoice:
    """The GPU from `--gpu` and `--gpu-memory`, else from the config; an option replaces the whole section.

    Raises: UsageError or InputError for an unknown name without memory, or more memory than the GPU has.
    """
    options, config = inputs.request.options, inputs.request.config
    if options.gpu is not None or options.gpu_memory_mib is not None:
        return _choice(
            inputs, options.gpu, options.gpu_memory_mib, Origin.FLAG, ("--gpu", "--gpu-memory"), None
        )
    if config is None:
        return GpuChoice(memory_mib=None, is_blackwell=False)
    labels = (f"{config.path}: gpu.name", f"{config.path}: gpu.memory_mib")
    return _choice(inputs, config.gpu.name, config.gpu.memory_mib, Origin.FILE, labels, config.path)


def _choice(
    inputs: Inputs,
    name: str | None,
    memory_mib: int | None,
    origin: Origin,
    labels: tuple[str, str],
    path: str | None,
) -> GpuChoice:
    gpu = None if name is None else find_gpu(name)
    if name is not None and gpu is None and memory_mib is None:
        raise _error(inputs, path, f"the GPU `{name}` is not in the table of GPUs", unknown_gpu_hint(name))
    if gpu is not None and memory_mib is not None and memory_mib > gpu.memory_mib * _MOST_OVER_NAME:
        raise _error(
            inputs,
            path,
            f"the GPU {gpu.name} has {gpu.memory_mib:,} MiB, but its memory is given as {memory_mib:,} MiB",
            "leave one of the two out",
        )
    if name is not None:
        inputs.note("gpu", name if gpu is None else gpu.name, origin, labels[0])
    _note_memory(inputs, gpu, memory_mib, origin, labels[1])
    known = memory_mib if memory_mib is not None else (None if gpu is None else gpu.memory_mib)
    return GpuChoice(memory_mib=known, is_blackwell=gpu is not None and gpu.is_blackwell)


def _note_memory(inputs: Inputs, gpu: Gpu | None, memory_mib: int | None, origin: Origin, label: str) -> None:
    if memory_mib is not None:
        inputs.note("gpu_memory_mib", memory_mib, origin, label)
    elif gpu is not None:
        inputs.default("gpu_memory_mib", gpu.memory_mib, f"GPU table: {gpu.name}")


def _error(inputs: Inputs, path: str | None, message: str, hint: str) -> Exception:
    config = inputs.request.config
    if path is None or config is None:
        return UsageError(message, hint=hint)
    return config.file.error(message, at="$.gpu", hint=hint)
