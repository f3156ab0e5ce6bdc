"""Stamp buffers that one launch works on, as a table of numbers that kernels walk.

A forward checks and stamps the same slots in up to four buffers (HEAD and TAIL, K and V half). Each has its own
bytes, tag and log; what is the same for all of them, the page table above all, is read once a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels import messages
from kvcanary_cli.kernels._checks import check_log, device_name, stamp_stride
from kvcanary_cli.kernels._sources import KvSource, check_sources
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.sources import source_table

COLUMNS = 9  # int64 words of a target's row
(
    COL_STAMPS,
    COL_SOURCES,
    COL_NUM_SOURCES,
    COL_TAG,
    COL_RING,
    COL_RING_CAPACITY,
    COL_WRITE_INDEX,
    COL_SLOT_RUN,
    COL_KERNEL_RUN,
) = range(COLUMNS)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One stamp buffer, what its byte hashes cover, and where its violations go.

    Attributes:
        canary_buf: [num_slots, >= 4] int64, rows contiguous, possibly further apart.
        sources, hash_mode: KV bytes that the stamps cover, as in `launch_verify`.
        launch_tag: `consts.LaunchTag`, copied into the rows.
        log: ring and counters; targets of one launch may share any of them.
    """

    canary_buf: torch.Tensor
    sources: Sequence[KvSource] = ()
    hash_mode: int = 0
    launch_tag: int
    log: ViolationLog


@dataclass(frozen=True)
class Targets:
    """Buffers for the same launches: equal in shape, stride and device.

    Make it once and launch with it often: making it copies to the device. It keeps the tensors alive.

    ValueError if there is no target, or if something does not fit.
    """

    items: tuple[Target, ...]
    stride: int = field(init=False)
    grain: int = field(init=False)
    table: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError(messages.broken_rule("targets", "have at least one buffer", 0))
        first = self.items[0].canary_buf
        stride = stamp_stride(first)
        for number, item in enumerate(self.items):
            same = tuple(item.canary_buf.shape) == tuple(first.shape)
            if not same or stamp_stride(item.canary_buf) != stride:
                rule = f"have the first buffer's shape {tuple(first.shape)} and strides"
                name = f"targets[{number}].canary_buf"
                raise ValueError(messages.broken_rule(name, rule, tuple(item.canary_buf.shape)))
            if device_name(item.canary_buf) != device_name(first):
                want, got = device_name(first), device_name(item.canary_buf)
                name = f"targets[{number}].canary_buf"
                raise ValueError(messages.wrong_device(name, "targets[0].canary_buf", want, got))
            check_log(item.log, ("canary_buf", first))
            check_sources(item.sources, item.hash_mode, int(first.shape[0]), first)
        tables = tuple(source_table(item.sources, item.hash_mode, first.device) for item in self.items)
        rows = [_row(item, table) for item, table in zip(self.items, tables, strict=True)]
        addresses = [row[COL_STAMPS] for row in rows]
        object.__setattr__(self, "stride", stride)
        # two words at once need every stamp to begin at a multiple of 16 bytes
        object.__setattr__(self, "grain", 16 if stride % 2 == 0 and not any(a % 16 for a in addresses) else 8)
        object.__setattr__(self, "table", torch.tensor(rows, dtype=torch.int64, device=first.device))
        object.__setattr__(self, "_tables", tables)

    @property
    def num_slots(self) -> int:
        """Stamps a buffer."""
        return int(self.items[0].canary_buf.shape[0])

    @property
    def has_sources(self) -> bool:
        """Whether any byte is hashed."""
        return any(item.sources and item.hash_mode for item in self.items)


def _row(item: Target, table: torch.Tensor) -> tuple[int, ...]:
    log = item.log
    return (
        item.canary_buf.data_ptr(),
        table.data_ptr() if table.shape[0] else 0,
        int(table.shape[0]),
        int(item.launch_tag),
        log.ring.data_ptr(),
        log.ring_capacity,
        log.write_index.data_ptr(),
        log.slot_run_counter.data_ptr(),
        log.kernel_run_counter.data_ptr(),
    )


_COLUMNS = tl.constexpr(COLUMNS)
_STAMPS = tl.constexpr(COL_STAMPS)
_SOURCES = tl.constexpr(COL_SOURCES)
_NUM_SOURCES = tl.constexpr(COL_NUM_SOURCES)
_TAG = tl.constexpr(COL_TAG)
_RING = tl.constexpr(COL_RING)
_RING_CAPACITY = tl.constexpr(COL_RING_CAPACITY)
_WRITE_INDEX = tl.constexpr(COL_WRITE_INDEX)
_SLOT_RUN = tl.constexpr(COL_SLOT_RUN)
_KERNEL_RUN = tl.constexpr(COL_KERNEL_RUN)


@triton.jit
def target_stamps(targets_ptr, target, GRAIN: tl.constexpr):
    """Pointer to the first stamp of a target, known to be aligned to GRAIN bytes."""
    address = tl.load(targets_ptr + target * _COLUMNS + _STAMPS)
    return tl.multiple_of(address.to(tl.pointer_type(tl.int64)), GRAIN)


@triton.jit
def target_sources(targets_ptr, target):
    """Pointer to a target's source table, and how many sources it has."""
    row_ptr = targets_ptr + target * _COLUMNS
    table_ptr = tl.load(row_ptr + _SOURCES).to(tl.pointer_type(tl.int64))
    return table_ptr, tl.load(row_ptr + _NUM_SOURCES).to(tl.int32)


@triton.jit
def target_log(targets_ptr, target):
    """What `append_rows` needs of a target: ring, write index, ring capacity, launch tag."""
    row_ptr = targets_ptr + target * _COLUMNS
    ring_ptr = tl.load(row_ptr + _RING).to(tl.pointer_type(tl.int64))
    write_index_ptr = tl.load(row_ptr + _WRITE_INDEX).to(tl.pointer_type(tl.int32))
    return ring_ptr, write_index_ptr, tl.load(row_ptr + _RING_CAPACITY), tl.load(row_ptr + _TAG)


@triton.jit
def count_entries(targets_ptr, target, num_entries):
    """Add to a target's counter of entries looked at or written."""
    counter_ptr = tl.load(targets_ptr + target * _COLUMNS + _SLOT_RUN).to(tl.pointer_type(tl.int64))
    tl.atomic_add(counter_ptr, num_entries, sem="relaxed")


@triton.jit
def count_launch(targets_ptr, target):
    """Add one to a target's counter of launches."""
    counter_ptr = tl.load(targets_ptr + target * _COLUMNS + _KERNEL_RUN).to(tl.pointer_type(tl.int64))
    tl.atomic_add(counter_ptr, 1, sem="relaxed")
