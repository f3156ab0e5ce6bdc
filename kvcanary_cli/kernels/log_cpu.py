"""The violation log in NumPy memory, for the Numba kernels and the references."""

from __future__ import annotations

from typing import ClassVar

from kvcanary_cli.kernels._layout import ViolationLogBase, Zeros
from kvcanary_cli.kernels.plans_cpu import aligned_zeros


class ViolationLog(ViolationLogBase):
    """`ViolationLogBase` on NumPy arrays; `allocate(ring_capacity, "cpu")`."""

    zeros: ClassVar[Zeros] = staticmethod(aligned_zeros)

    def append(self, row: tuple[int, ...]) -> None:
        """Count one violation and keep its row if the ring has room. Used by the references."""
        index = int(self.write_index[0])
        # a counter that wrapped around is negative, and must not index from the end
        if 0 <= index < self.ring_capacity:
            self.ring[index] = row
        self.write_index[0] += 1
