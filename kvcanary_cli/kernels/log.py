"""The violation log in torch memory, for the Triton kernels."""

from __future__ import annotations

from typing import ClassVar

from kvcanary_cli.kernels._layout import ViolationLogBase, Zeros
from kvcanary_cli.kernels.plans import torch_zeros


class ViolationLog(ViolationLogBase):
    """`ViolationLogBase` on torch tensors; `allocate(ring_capacity, device)`."""

    zeros: ClassVar[Zeros] = staticmethod(torch_zeros)
