"""A pool read piece by piece into bounded memory, the next piece while the last one is hashed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.scrub.pool import Part, Pool
from kvcanary_cli.trace.safetensors import read_into

BUFFERS = 2
ADDRESS_GRAIN = 256  # bytes; where a buffer begins
TASK_BYTES = 4 << 20  # what one thread reads at once
MAX_READERS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPlan:
    """How a pool is cut: `rows` slots at once, one tensor after the other in a buffer of `num_bytes`."""

    rows: int
    num_bytes: int
    places: tuple[int, ...]

    def views(self, buffer: np.ndarray, parts: Sequence[Part]) -> list[np.ndarray]:
        """Each tensor in a buffer, [rows, stride] uint8."""
        return [
            buffer[place : place + self.rows * part.stride].reshape(self.rows, part.stride)
            for place, part in zip(self.places, parts, strict=True)
        ]

    def stacked(self, buffer: np.ndarray, parts: Sequence[Part]) -> list[np.ndarray]:
        """Neighbouring tensors of equal stride as one, [tensors * rows, stride] uint8 each."""
        found, number = [], 0
        for stride, group in groupby(part.stride for part in parts):
            length = len(list(group))
            start = self.places[number]
            rows = buffer[start : start + length * self.rows * stride].reshape(length * self.rows, stride)
            found.append(rows)
            number += length
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Slots `first` to `first + num_slots - 1`, in buffer number `buffer`, each tensor from row 0 on."""

    first: int
    num_slots: int
    buffer: int


def plan_chunks(pool: Pool, chunk_bytes: int) -> ChunkPlan:
    """Cut a pool into pieces of at most `chunk_bytes`, but of one slot at least."""
    rows = max(1, min(pool.num_slots, chunk_bytes // pool.slot_bytes))
    places, end = [], 0
    for part in pool.parts:
        places.append(end)
        end += rows * part.stride
    return ChunkPlan(rows=rows, num_bytes=end, places=tuple(places))


def aligned(num_bytes: int) -> np.ndarray:
    """Zeros, [num_bytes] uint8, at an address that is a multiple of `ADDRESS_GRAIN`."""
    memory = np.zeros(num_bytes + ADDRESS_GRAIN, np.uint8)
    skipped = -memory.ctypes.data % ADDRESS_GRAIN
    return memory[skipped : skipped + num_bytes]


class ChunkReader:
    """The chunks of a pool in their order.

    A chunk's buffer is filled again as soon as the chunk after it has been asked for.

    Args:
        buffers: `BUFFERS` zeroed buffers of `plan.num_bytes`; what pads a row is never written.
    """

    def __init__(self, pool: Pool, plan: ChunkPlan, buffers: Sequence[np.ndarray]) -> None:
        self.read_seconds = 0.0
        self._pool = pool
        self._plan = plan
        self._views = [plan.views(buffer, pool.parts) for buffer in buffers]

    def __iter__(self) -> Iterator[Chunk]:
        path = self._pool.file.path
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"can't be opened ({error.strerror or error})", where=path) from None
        readers = min(MAX_READERS, os.cpu_count() or 1)
        try:
            with ThreadPoolExecutor(readers) as readers_pool, ThreadPoolExecutor(1) as ahead:
                yield from self._read_ahead(ahead, partial(self._fill, descriptor, readers_pool))
        finally:
            os.close(descriptor)

    def _read_ahead(self, ahead: ThreadPoolExecutor, fill: Callable[[Chunk], Chunk]) -> Iterator[Chunk]:
        waiting: Future[Chunk] | None = None
        for number, first in enumerate(range(0, self._pool.num_slots, self._plan.rows)):
            num_slots = min(self._plan.rows, self._pool.num_slots - first)
            chunk = Chunk(first=first, num_slots=num_slots, buffer=number % BUFFERS)
            # before the buffer is filled again, whoever had it last has come back for the next chunk
            following = ahead.submit(fill, chunk)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()

    def _fill(self, descriptor: int, readers: ThreadPoolExecutor, chunk: Chunk) -> Chunk:
        started = time.perf_counter()
        tasks = []
        for part, view in zip(self._pool.parts, self._views[chunk.buffer], strict=True):
            rows = max(1, TASK_BYTES // part.row_bytes)
            for first in range(0, chunk.num_slots, rows):
                out = view[first : min(first + rows, chunk.num_slots)]
                start = part.info.start + (chunk.first + first) * part.row_bytes
                tasks.append(readers.submit(_read_rows, descriptor, start, out, part, self._pool.file.path))
        for task in tasks:
            task.result()
        self.read_seconds += time.perf_counter() - started
        return chunk


def _read_rows(descriptor: int, start: int, out: np.ndarray, part: Part, where: str) -> None:
    if part.stride == part.row_bytes:
        read_into(descriptor, start, out.reshape(-1), where=where)
        return
    packed = np.empty((len(out), part.row_bytes), np.uint8)
    read_into(descriptor, start, packed.reshape(-1), where=where)
    out[:, : part.row_bytes] = packed
