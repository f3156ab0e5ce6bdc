"""A scrub: a dump hashed slot by slot, looked through for zeros and copies, and compared with another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvcanary_cli.errors import MissingError
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.runtime.open import free_host_memory
from kvcanary_cli.scrub.backends import HASH_BYTES, Backend, CpuBackend, GpuBackend, device_bytes
from kvcanary_cli.scrub.chunks import BUFFERS, ChunkPlan, ChunkReader, plan_chunks
from kvcanary_cli.scrub.compare import (
    Comparison,
    Repeats,
    compare,
    find_repeats,
    parse_ranges,
    require_comparable,
)
from kvcanary_cli.scrub.hashes import PoolHashes, is_hashes, load_hashes, save_hashes
from kvcanary_cli.scrub.pool import Pool, Selection, open_pool
from kvcanary_cli.scrub.values import ValueCounter
from kvcanary_cli.trace.safetensors import open_safetensors

CHUNK_MIB = {"cpu": 16, "cuda": 256}
"""Measured: on a CPU a chunk that stays in the caches is hashed faster, to a GPU a large copy costs less."""

SORT_BYTES = 64
"""A slot's share of the arrays that finding copies takes."""

OnProgress = Callable[[int, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScrubRequest:
    """What to do.

    Args:
        path: the dump.
        device: where to hash.
        threads: Numba threads; all cores if None.
        chunk_mib: MiB read at once; None for what suits the device.
        values: whether to count NaN and infinity, on the CPU.
        against: a dump or saved hashes to compare with.
        only: ranges of slots to compare; all if empty.
        written: ranges of slots that may differ.
        write_hashes: file that gets the hashes.
    """

    path: str
    device: DeviceChoice
    selection: Selection = field(default_factory=Selection)
    threads: int | None = None
    chunk_mib: int | None = None
    values: bool = False
    against: str | None = None
    only: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    write_hashes: str | None = None


@dataclass(kw_only=True, slots=True)
class Times:
    """Wall time: reading (beside hashing), copying to a GPU, the kernel, and all from first byte to last hash."""

    start_seconds: float = 0.0
    read_seconds: float = 0.0
    copy_seconds: float | None = None
    kernel_seconds: float = 0.0
    hash_seconds: float = 0.0
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScrubResult:
    """What a scrub found; `other_pool` is None when saved hashes were compared with, or nothing."""

    pool: Pool
    hashes: PoolHashes
    repeats: Repeats
    values: ValueCounter | None
    other_pool: Pool | None
    other_hashes: PoolHashes | None
    comparison: Comparison | None
    host_bytes: int
    device_bytes: int
    times: Times
    saved_bytes: int | None


def scrub(request: ScrubRequest, *, on_progress: OnProgress = lambda done, total, slots: None) -> ScrubResult:
    """Hash a dump, and all else that was asked.

    Args:
        on_progress: gets chunks done, chunks in all, and slots hashed so far.

    Raises:
        InputError: a file can't be used, or two can't be compared.
        UsageError: ranges that don't fit the pool.
        MissingError: not enough memory.
    """
    pool = open_pool(request.path, request.selection)
    other_pool, other = _open_other(request)
    for expected in (other, _without_hashes(other_pool) if other_pool else None):
        if expected is not None:
            require_comparable(_without_hashes(pool), expected)
    only, written = (
        parse_ranges(texts, flag=flag, num_slots=pool.num_slots) if texts else None
        for texts, flag in ((request.only, "--only-slots"), (request.written, "--written"))
    )
    pools = [pool, *([other_pool] if other_pool else [])]
    with_parts = request.against is not None or request.write_hashes is not None
    run = _Run(request, pools, with_parts, on_progress)
    hashes = run.hash_pool(pool, count_values=request.values)
    repeats = find_repeats(hashes.slots, run.zero_hash)
    if other_pool is not None:
        other = run.hash_pool(other_pool, count_values=False)
    saved = save_hashes(request.write_hashes, hashes) if request.write_hashes is not None else None
    return ScrubResult(
        pool=pool,
        hashes=hashes,
        repeats=repeats,
        values=run.values,
        other_pool=other_pool,
        other_hashes=other,
        comparison=compare(hashes, other, only=only, written=written) if other is not None else None,
        host_bytes=run.host_bytes,
        device_bytes=run.device_bytes,
        times=run.times,
        saved_bytes=saved,
    )


def _open_other(request: ScrubRequest) -> tuple[Pool | None, PoolHashes | None]:
    """What to compare with: a pool still to be hashed, or hashes, or nothing."""
    if request.against is None:
        return None, None
    file = open_safetensors(request.against)
    if is_hashes(file):
        return None, load_hashes(file)
    return open_pool(request.against, request.selection), None


def _without_hashes(pool: Pool) -> PoolHashes:
    """What decides whether a pool can be compared, before it is read."""
    return PoolHashes(
        path=pool.file.path,
        slots=np.broadcast_to(np.int64(0), pool.num_slots),
        parts={},
        row_bytes={part.name: part.row_bytes for part in pool.parts},
        page_size=pool.page_size,
    )


class _Run:
    """One backend, used for one pool after the other: their tensors have the same sizes."""

    def __init__(
        self, request: ScrubRequest, pools: list[Pool], with_parts: bool, on_progress: OnProgress
    ) -> None:
        self.times = Times()
        self.values: ValueCounter | None = None
        self._with_parts = with_parts
        self._on_progress = on_progress
        chunk_mib = request.chunk_mib or CHUNK_MIB[request.device.kind]
        self._plan = plan_chunks(pools[0], chunk_mib << 20)
        self._num_chunks = sum(-(-pool.num_slots // self._plan.rows) for pool in pools)
        self._chunks_done = 0
        self._slots_done = 0
        self.host_bytes = host_bytes(self._plan, pools, with_parts=with_parts)
        self.device_bytes = device_bytes(self._plan) if request.device.kind == "cuda" else 0
        require_host_memory(self.host_bytes, self._plan)
        started = time.perf_counter()
        self._backend = _open_backend(request, pools[0], self._plan)
        zero = np.empty(1, np.int64)
        # the buffers are zero until something is read: this compiles the kernel, and tells the hash of nothing
        self._backend.hash_rows(0, zero, np.empty((len(pools[0].parts), 1), np.int64) if with_parts else None)
        self._backend.reset_times()
        self.zero_hash = int(zero[0])
        self.times.start_seconds = time.perf_counter() - started

    def hash_pool(self, pool: Pool, *, count_values: bool) -> PoolHashes:
        """Read and hash one pool."""
        started = time.perf_counter()
        slots = np.empty(pool.num_slots, np.int64)
        parts = np.empty((len(pool.parts) if self._with_parts else 0, pool.num_slots), np.int64)
        reader = ChunkReader(pool, self._plan, self._backend.buffers)
        values = ValueCounter(pool.parts) if count_values else None
        for chunk in reader:
            here = slice(chunk.first, chunk.first + chunk.num_slots)
            found = np.empty((len(parts), chunk.num_slots), np.int64) if self._with_parts else None
            self._backend.hash_rows(chunk.buffer, slots[here], found)
            if found is not None:
                parts[:, here] = found
            if values is not None:
                views = self._plan.views(self._backend.buffers[chunk.buffer], pool.parts)
                values.add(chunk.first, chunk.num_slots, views)
            self._chunks_done += 1
            self._slots_done += chunk.num_slots
            self._on_progress(self._chunks_done, self._num_chunks, self._slots_done)
        self.values = self.values or values
        self._add_times(pool, reader.read_seconds, time.perf_counter() - started)
        names = [part.name for part in pool.parts]
        return PoolHashes(
            path=pool.file.path,
            slots=slots,
            parts=dict(zip(names, parts, strict=True)) if self._with_parts else {},
            row_bytes={part.name: part.row_bytes for part in pool.parts},
            page_size=pool.page_size,
        )

    def _add_times(self, pool: Pool, read_seconds: float, seconds: float) -> None:
        self.times.read_seconds += read_seconds
        self.times.hash_seconds += seconds
        self.times.num_bytes += pool.num_bytes
        self.times.kernel_seconds = self._backend.kernel_seconds
        self.times.copy_seconds = self._backend.copy_seconds


def host_bytes(plan: ChunkPlan, pools: list[Pool], *, with_parts: bool) -> int:
    """Host memory that a scrub takes: buffers, hashes, and what finding copies needs."""
    kept = sum(pool.num_slots * (1 + (len(pool.parts) if with_parts else 0)) for pool in pools)
    return BUFFERS * plan.num_bytes + kept * HASH_BYTES + pools[0].num_slots * SORT_BYTES


def require_host_memory(need: int, plan: ChunkPlan, *, available: int | None = None) -> None:
    """MissingError, with numbers, when the host has not the room.

    Args:
        available: free bytes; by default what the system says, and nothing is refused where it says nothing.
    """
    free = free_host_memory() if available is None else available
    if free is None or need <= free:
        return
    raise MissingError(
        f"this scrub takes {need / 2**20:,.1f} MiB of host memory, {free / 2**20:,.1f} MiB are free; "
        f"{BUFFERS} chunks take {BUFFERS * plan.num_bytes / 2**20:,.1f} MiB of it",
        hint="a smaller `--chunk-mib`, or fewer `--tensors`",
    )


def _open_backend(request: ScrubRequest, pool: Pool, plan: ChunkPlan) -> Backend:
    if request.device.kind == "cuda":
        return GpuBackend(pool, plan, request.device)
    import numba

    if request.threads is not None:
        most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        if request.threads > most:
            raise MissingError(f"`--threads {request.threads}` was asked for, {most} cores are there")
        numba.set_num_threads(request.threads)
    return CpuBackend(pool, plan)
