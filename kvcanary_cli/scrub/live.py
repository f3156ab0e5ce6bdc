"""Hash the slots of a pool in memory: torch tensors on a GPU where they are, NumPy arrays, torch tensors on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvcanary_cli.kernels._checks import is_torch
from kvcanary_cli.kernels._sources import GRAIN, KvSource
from kvcanary_cli.scrub.backends import row_sources


def hash_slots(tensors: Sequence[Any], *, is_paged: bool = False) -> Any:
    """One hash a slot over the bytes of all tensors, equal to what `scrub` finds in a dump of them.

    The order of the tensors counts. `scrub` takes them in the natural order of their names (`k.2` before
    `k.10`). A row that is no multiple of 16 bytes, or a tensor not aligned to 16 bytes, is copied and padded with
    zeros first; all others are read where they are.

    Args:
        tensors: contiguous, any type, all torch on one device or all NumPy; the first dimension counts slots.
        is_paged: the first two dimensions count pages and slots of a page.

    Returns: [num_slots] int64, NumPy for NumPy, else torch on the device of the tensors. On a GPU the launch is
        not waited for.
    Raises: ValueError where tensors don't fit each other.
    """
    if not tensors:
        raise ValueError("hash_slots needs at least one tensor")
    rows = [_rows(number, tensor, 2 if is_paged else 1) for number, tensor in enumerate(tensors)]
    for number, view in enumerate(rows):
        if len(view) != len(rows[0]):
            raise ValueError(f"tensors[{number}] has {len(view)} slots, tensors[0] has {len(rows[0])}")
    if is_torch(rows[0]) and rows[0].device.type == "cuda":
        return _hash_on_gpu(row_sources(rows))
    from kvcanary_cli.kernels.sweep_hash_cpu import sweep_hash_cpu  # deferred: numba takes a while

    arrays = [view.numpy() if is_torch(view) else view for view in rows]
    hashes = np.empty(len(arrays[0]), np.int64)
    sweep_hash_cpu(sources=row_sources(arrays), out_hashes=hashes)
    if not is_torch(rows[0]):
        return hashes
    import torch

    return torch.from_numpy(hashes)


def _hash_on_gpu(sources: Sequence[KvSource]) -> Any:
    import torch

    from kvcanary_cli.kernels.sweep_hash import launch_sweep_hash

    view = sources[0].tensor
    with torch.cuda.device(view.device):
        hashes = torch.empty(view.shape[0], dtype=torch.int64, device=view.device)
        launch_sweep_hash(sources=sources, out_hashes=hashes)
    return hashes


def _rows(number: int, tensor: Any, slot_dims: int) -> Any:
    """[slots, bytes] uint8 over the memory of a tensor, or over a padded copy."""
    name = f"tensors[{number}]"
    if len(tensor.shape) < slot_dims:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, {slot_dims} dimensions count its slots")
    is_contiguous = tensor.is_contiguous() if is_torch(tensor) else tensor.flags.c_contiguous
    if not is_contiguous:
        raise ValueError(f"{name} is not contiguous")
    num_slots = 1
    for size in tensor.shape[:slot_dims]:
        num_slots *= int(size)
    num_bytes = int(tensor.nbytes)
    if num_slots == 0 or num_bytes == 0:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: no bytes in it")
    flat = tensor.reshape(-1)
    if is_torch(tensor):
        import torch

        view = flat.view(torch.uint8).reshape(num_slots, -1)
        address, zeros = view.data_ptr(), view.new_zeros
    else:
        view = flat.view(np.uint8).reshape(num_slots, -1)
        address, zeros = view.ctypes.data, None
    width = num_bytes // num_slots
    if width % GRAIN == 0 and address % GRAIN == 0:
        return view
    stride = -(-width // GRAIN) * GRAIN
    padded = zeros((num_slots, stride)) if zeros is not None else _aligned_rows(num_slots, stride)
    padded[:, :width] = view
    return padded


def _aligned_rows(num_slots: int, stride: int) -> np.ndarray:
    from kvcanary_cli.scrub.chunks import aligned

    return aligned(num_slots * stride).reshape(num_slots, stride)
