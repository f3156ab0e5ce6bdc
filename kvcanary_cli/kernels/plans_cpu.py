"""Verify and write plans in NumPy memory, for the Numba kernels and the references."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvcanary_cli.kernels._layout import VerifyPlanBase, WritePlanBase, Zeros

ALIGNMENT = 64  # a stamp is half a cache line: unaligned buffers make every second gather touch two lines


def aligned_zeros(shape: tuple[int, ...], dtype: Any, device: Any = "cpu") -> np.ndarray:
    """A C-contiguous array of zeros that begins on a cache line. ValueError unless `device` is "cpu"."""
    if str(device) != "cpu":
        raise ValueError(f"kv-canary: NumPy arrays live on device cpu, got {device}")
    wanted = np.dtype(dtype)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
    raw = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + num_bytes].view(wanted).reshape(shape)


class VerifyPlan(VerifyPlanBase):
    """`VerifyPlanBase` on NumPy arrays; `allocate(verify_capacity, "cpu")`."""

    zeros: ClassVar[Zeros] = staticmethod(aligned_zeros)


class WritePlan(WritePlanBase):
    """`WritePlanBase` on NumPy arrays; `allocate(write_req_capacity, "cpu")`."""

    zeros: ClassVar[Zeros] = staticmethod(aligned_zeros)
