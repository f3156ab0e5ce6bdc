"""Chunks to hashes: on the CPU in the memory they were read into, on a GPU after a copy."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from kvcanary_cli.errors import MissingError
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.scrub.chunks import BUFFERS, ChunkPlan, aligned
from kvcanary_cli.scrub.pool import Pool

HASH_BYTES = 8


class Backend(Protocol):
    """Buffers to read chunks into, and the hashes of what is in them.

    `kernel_seconds` is what hashing the slots took, without the hashes of each tensor; `copy_seconds` is None where
    nothing is copied.
    """

    buffers: list[np.ndarray]
    kernel_seconds: float
    copy_seconds: float | None

    def hash_rows(self, buffer: int, hashes: np.ndarray, part_hashes: np.ndarray | None) -> None:
        """Write the hashes of the first `len(hashes)` rows of a buffer.

        Args:
            hashes: [rows] int64.
            part_hashes: [tensors, rows] int64, each tensor hashed as if it were alone; None if not wanted.
        """

    def reset_times(self) -> None:
        """Forget what compiling and the first launch took."""


def device_bytes(plan: ChunkPlan) -> int:
    """GPU memory that `GpuBackend` takes."""
    # one hash a slot, and one a slot and tensor
    return plan.num_bytes + plan.rows * HASH_BYTES * (1 + len(plan.places))


class CpuBackend:
    """Numba, straight on the buffers."""

    def __init__(self, pool: Pool, plan: ChunkPlan) -> None:
        from kvcanary_cli.kernels.sweep_hash_cpu import sweep_hash_cpu  # deferred: numba takes a while

        self.buffers = [aligned(plan.num_bytes) for _ in range(BUFFERS)]
        self.kernel_seconds = 0.0
        self.copy_seconds: float | None = None
        self._launch = sweep_hash_cpu
        self._rows = plan.rows
        self._sources = [row_sources(plan.views(buffer, pool.parts)) for buffer in self.buffers]
        self._stacked = [row_sources(plan.stacked(buffer, pool.parts)) for buffer in self.buffers]

    def hash_rows(self, buffer: int, hashes: np.ndarray, part_hashes: np.ndarray | None) -> None:
        """As in `Backend`."""
        started = time.perf_counter()
        sources = self._sources[buffer]
        self._launch(sources=sources, out_hashes=hashes)
        self.kernel_seconds += time.perf_counter() - started
        if part_hashes is None:
            return
        number = 0
        for source in self._stacked[buffer]:
            out = np.empty(source.num_slots, np.int64)
            self._launch(sources=[source], out_hashes=out)
            number = _spread(out, part_hashes, number, self._rows)

    def reset_times(self) -> None:
        """As in `Backend`."""
        self.kernel_seconds = 0.0


class GpuBackend:
    """Triton; pinned buffers on the host, one chunk on the device."""

    def __init__(self, pool: Pool, plan: ChunkPlan, device: DeviceChoice) -> None:
        import torch  # deferred: takes seconds, and only a GPU needs it

        from kvcanary_cli.kernels.sweep_hash import launch_sweep_hash

        self._torch: Any = torch
        self._launch = launch_sweep_hash
        self._device = torch.device(device.label)
        free, _total = torch.cuda.mem_get_info(device.index)
        need = device_bytes(plan)
        if need > free:
            raise MissingError(
                f"this scrub takes {need / 2**20:,.1f} MiB of memory on {device.label}, "
                f"{free / 2**20:,.1f} MiB are free",
                hint="a smaller `--chunk-mib`, or `--device cpu`",
            )
        self._pinned = [
            torch.zeros(plan.num_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(BUFFERS)
        ]
        self.buffers = [pinned.numpy() for pinned in self._pinned]
        self.kernel_seconds = 0.0
        self.copy_seconds: float | None = 0.0
        on_device: Any = torch.zeros(plan.num_bytes, dtype=torch.uint8, device=self._device)
        self._on_device = on_device
        self._hashes = torch.empty(plan.rows, dtype=torch.int64, device=self._device)
        self._rows = plan.rows
        self._sources = row_sources(plan.views(on_device, pool.parts))
        self._stacked = row_sources(plan.stacked(on_device, pool.parts))

    def hash_rows(self, buffer: int, hashes: np.ndarray, part_hashes: np.ndarray | None) -> None:
        """As in `Backend`."""
        with self._torch.cuda.device(self._device):
            marks = [self._torch.cuda.Event(enable_timing=True) for _ in range(3)]
            marks[0].record()
            self._on_device.copy_(self._pinned[buffer], non_blocking=True)
            marks[1].record()
            out = self._hashes[: len(hashes)]
            self._launch(sources=self._sources, out_hashes=out)
            marks[2].record()
            hashes[:] = out.cpu().numpy()
            self.copy_seconds = (self.copy_seconds or 0.0) + marks[0].elapsed_time(marks[1]) / 1e3
            self.kernel_seconds += marks[1].elapsed_time(marks[2]) / 1e3
            number = 0
            for source in self._stacked if part_hashes is not None else ():
                out = self._torch.empty(source.num_slots, dtype=self._torch.int64, device=self._device)
                self._launch(sources=[source], out_hashes=out)
                number = _spread(out.cpu().numpy(), part_hashes, number, self._rows)

    def reset_times(self) -> None:
        """As in `Backend`."""
        self.kernel_seconds, self.copy_seconds = 0.0, 0.0


def _spread(out: np.ndarray, part_hashes: Any, number: int, rows: int) -> int:
    """Copy the hashes of stacked tensors to theirs, from number `number` on; returns the number after them."""
    found = out.reshape(-1, rows)
    part_hashes[number : number + len(found)] = found[:, : part_hashes.shape[1]]
    return number + len(found)


def row_sources(views: list[Any]) -> list[KvSource]:
    """Tensors [slots, stride] uint8 as sources of one slot a row."""
    return [KvSource(view, 1, int(view.shape[1]), int(view.shape[1])) for view in views]
