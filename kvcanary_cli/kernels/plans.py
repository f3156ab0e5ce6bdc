"""Verify and write plans in torch memory, for the Triton kernels."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from kvcanary_cli.kernels._layout import VerifyPlanBase, WritePlanBase, Zeros


def torch_zeros(shape: tuple[int, ...], dtype: str, device: Any) -> torch.Tensor:
    """A contiguous tensor of zeros; `dtype` is a name such as "int64"."""
    return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)


class VerifyPlan(VerifyPlanBase):
    """`VerifyPlanBase` on torch tensors; `allocate(verify_capacity, device)`."""

    zeros: ClassVar[Zeros] = staticmethod(torch_zeros)


class WritePlan(WritePlanBase):
    """`WritePlanBase` on torch tensors; `allocate(write_req_capacity, device)`."""

    zeros: ClassVar[Zeros] = staticmethod(torch_zeros)
