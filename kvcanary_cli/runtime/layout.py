"""What one run keeps in memory: groups, byte sources, stamp buffers, and how many bytes that takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcanary_cli.errors import MissingError
from kvcanary_cli.kernels.consts import PARTIAL_BYTES, RING_WORDS, STAMP_BYTES, HashMode, LaunchTag
from kvcanary_cli.trace.events import Header

FULL = "full"
SWA = "swa"
HEAD = "head"
TAIL = "tail"
SWEEP = "sweep"

_PHASE_ORDER = {HEAD: 0, TAIL: 2, SWEEP: 4}


def launch_tag(phase: str, half: str, group: str) -> LaunchTag:
    """Tag of the launch of `phase` over the `k` or `v` half of a group."""
    return LaunchTag(_PHASE_ORDER[phase] + (half == "v") + 6 * (group == SWA))


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLayout:
    """KV bytes of one source.

    Attributes:
        number: place in the header's list; part of the bytes that the model writes.
        bytes_per_slot: bytes a slot has.
        hashed_bytes: leading bytes that stamps cover; 0 when the source is not covered.
    """

    number: int
    name: str
    group: str
    half: str
    bytes_per_slot: int
    hashed_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLayout:
    """One buffer group: the full pool, or the window pool of a hybrid model."""

    kind: str
    num_slots: int
    window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Shapes of a run, from the trace's header and the options.

    Attributes:
        is_affine: whether stamps hold affine chains (`kernels/affine_ref.py`) instead of the server's.
    """

    num_slots: int
    page_size: int
    num_rows: int
    row_width: int
    groups: tuple[GroupLayout, ...]
    sources: tuple[SourceLayout, ...]
    halves: tuple[str, ...]
    hash_mode: HashMode
    token_offset: int
    ring_capacity: int
    is_affine: bool = False

    @property
    def maps_window(self) -> bool:
        """Whether full slots reach the window pool through a map (both groups exist)."""
        return len(self.groups) == 2

    def group(self, kind: str) -> GroupLayout:
        """The group of that kind; the only one when the pool has a single group."""
        return next((group for group in self.groups if group.kind == kind), self.groups[0])

    def sources_of(self, kind: str, half: str | None = None) -> list[SourceLayout]:
        """Sources of a group, of one half or of both."""
        return [s for s in self.sources if s.group == kind and (half is None or s.half == half)]

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by purpose that a run takes on its device before the first event."""
        stamps = sum(g.num_slots for g in self.groups) * STAMP_BYTES * 2 * len(self.halves)
        kv = sum(self.group(s.group).num_slots * s.bytes_per_slot for s in self.sources)
        table = self.num_rows * self.row_width * 4
        swa_map = self.num_slots * 8 if self.maps_window else 0
        return {
            "stamps": stamps,
            "kv": kv,
            "page_table": table,
            "expected_tokens": table,
            "swa_map": swa_map,
            "ring": self.ring_capacity * RING_WORDS * 8,
        }


def layout_of(
    header: Header,
    *,
    hash_mode: HashMode = HashMode.ALL,
    ring_capacity: int | None = None,
    is_affine: bool = False,
) -> Layout:
    """Layout of a run of the trace with this header.

    Args:
        hash_mode: which bytes of a source stamps cover; the trace's `hashed_bytes` is the upper limit.
        ring_capacity: rows of the violation log; the header's when None.
        is_affine: whether stamps hold affine chains.
    """
    pool = header.pool
    groups = tuple(
        GroupLayout(kind=g.kind, num_slots=g.slots or pool.slots, window=g.window or 0) for g in header.groups
    )
    kinds = {g.kind for g in groups}
    sources = tuple(
        SourceLayout(
            number=number,
            name=s.name,
            group=s.group if s.group in kinds else groups[0].kind,
            half=s.half,
            bytes_per_slot=s.bytes_per_slot,
            hashed_bytes=_covered(s.hashed_bytes, hash_mode),
        )
        for number, s in enumerate(header.sources or ())
    )
    return Layout(
        num_slots=pool.slots,
        page_size=pool.page_size,
        num_rows=pool.rows,
        row_width=pool.row_width,
        groups=groups,
        sources=sources,
        halves=("k", "v") if any(s.half == "v" for s in sources) else ("k",),
        hash_mode=hash_mode if any(s.hashed_bytes for s in sources) else HashMode.NONE,
        token_offset=header.token_position_offset,
        ring_capacity=ring_capacity if ring_capacity is not None else header.ring_capacity,
        is_affine=is_affine,
    )


def _covered(hashed_bytes: int, mode: HashMode) -> int:
    if mode is HashMode.NONE:
        return 0
    return min(hashed_bytes, PARTIAL_BYTES) if mode is HashMode.PARTIAL else hashed_bytes


def require_memory(layout: Layout, available: int, place: str) -> None:
    """Refuse a run that does not fit.

    Args:
        available: free bytes at `place`, such as "host memory" or "cuda:0".

    Raises:
        MissingError: with both numbers and the largest part.
    """
    parts = layout.memory_bytes()
    need = sum(parts.values())
    if need <= available:
        return
    largest = max(parts, key=lambda name: parts[name])
    gib = float(np.float64(2**30))
    raise MissingError(
        f"this run needs {need / gib:.2f} GiB of {place}, {available / gib:.2f} GiB are free; "
        f"the largest part is {largest} with {parts[largest] / gib:.2f} GiB",
        hint="run on a machine with more memory, or cut the trace's pool, rows or row_width",
    )
