"""The order of launches in a forward, written once for every backend.

A forward runs in three phases that can't be exchanged: *begin* (expected tokens scattered; per group the plan,
HEAD verify, HEAD write), *model* (the bytes that the forward computes), *end* (TAIL verify, TAIL write).
The backends hold the memory and provide the operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.kernels.consts import LaunchTag
from kvcanary_cli.runtime.calls import ForwardCall, HostCopy, IntArray, SweepCall, WordArray
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.lane_plan import planned_entries
from kvcanary_cli.runtime.layout import HEAD, SWA, SWEEP, TAIL, GroupLayout, Layout, launch_tag
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.runtime.stretch import Stretch

NUM_TAGS = len(LaunchTag)


class Phase(Enum):
    """Where a runtime stands between the operations of one forward."""

    IDLE = "idle"
    BEGUN = "begun"
    MODELLED = "modelled"


@dataclass(slots=True)
class Counters:
    """Launches and verified or written entries by tag: what should have run, and what did."""

    planned_launches: list[int] = field(default_factory=lambda: [0] * NUM_TAGS)
    planned_entries: list[int] = field(default_factory=lambda: [0] * NUM_TAGS)
    launches: list[int] = field(default_factory=lambda: [0] * NUM_TAGS)
    entries: list[int] = field(default_factory=lambda: [0] * NUM_TAGS)

    def missing(self) -> list[str]:
        """Tags whose kernels did not run as planned, in words; empty when all did."""
        return [
            f"{LaunchTag(tag).name}: {self.launches[tag]} of {self.planned_launches[tag]} launches, "
            f"{self.entries[tag]} of {self.planned_entries[tag]} entries"
            for tag in range(NUM_TAGS)
            if self.launches[tag] != self.planned_launches[tag]
            or self.entries[tag] != self.planned_entries[tag]
        ]


class Runtime(ABC):
    """Memory of one run and the operations on it; `cpu.py` and `gpu.py` are its two forms.

    Attributes:
        table: the host's page table, which the runtime reads (and copies to its device).
        swa_map: [num_slots] int64, full slot to window slot; 0 is evicted. Identity for a single group.
        expected: tokens that rows are known to hold.
        counters: launches and entries, planned and done.
        max_stretch: most decode steps that `start_stretch` takes; 0: this runtime runs nothing ahead.
    """

    max_stretch = 0

    def __init__(self, layout: Layout, table: PageTable, swa_map: IntArray, expected: ExpectedTokens) -> None:
        self.layout = layout
        self.table = table
        self.swa_map = swa_map
        self.expected = expected
        self.counters = Counters()
        self.phase = Phase.IDLE
        self._call: ForwardCall | None = None
        self._conflicts: dict[str, bool] = {}

    # ---- decode steps ahead of the host

    def start_stretch(self, stretch: Stretch) -> None:
        """Begin to run the forwards of a stretch; `end_stretch` comes before any other operation."""
        raise PhaseError("this runtime runs nothing ahead")

    def end_stretch(self) -> bool:
        """Wait for the stretch. True: nothing was found, and `forward` has nothing left to do for its forwards.
        False: it was undone, they still have to run.
        """
        raise PhaseError("no stretch is under way")

    # ---- one forward

    def forward(self, call: ForwardCall) -> None:
        """Run the three phases of one forward."""
        self.begin_forward(call)
        self.write_model_bytes()
        self.end_forward()

    def begin_forward(self, call: ForwardCall) -> None:
        """Expected tokens, then per group plan, HEAD verify and HEAD stamps."""
        self._expect_phase(Phase.IDLE, "begin_forward")
        self._call = call
        self._prepare(call)
        for group in self.layout.groups:
            self._plan(group)
            self._conflicts[group.kind] = self._has_conflict(group)
            self._check_and_stamp(HEAD, group)
        self.phase = Phase.BEGUN

    def write_model_bytes(self) -> None:
        """The bytes that the model leaves in the written slots, then those of padded lanes."""
        self._expect_phase(Phase.BEGUN, "write_model_bytes")
        call = self._active()
        for group in self.layout.groups:
            if self.layout.sources_of(group.kind):
                self._write_lane_bytes(group)
        if call.pad_slots.size:
            for group in self.layout.groups:
                slots = self.in_group(group, call.pad_slots)
                self.write_bytes(group.kind, slots, call.pad_contexts, salt=0)
        self.phase = Phase.MODELLED

    def end_forward(self) -> None:
        """Per group TAIL verify and TAIL stamps."""
        self._expect_phase(Phase.MODELLED, "end_forward")
        for group in self.layout.groups:
            self._check_and_stamp(TAIL, group)
        self._call = None
        self.phase = Phase.IDLE

    def sweep(self, group_kind: str, call: SweepCall) -> None:
        """Verify entries of the prefix cache against the TAIL stamps of a group (no token check)."""
        self._expect_phase(Phase.IDLE, "sweep")
        for half in self.layout.halves:
            tag = launch_tag(SWEEP, half, group_kind)
            self._count(tag, call.slots.size)
            self._verify_entries(group_kind, half, tag, call)

    def note_swa_map(self, full: IntArray) -> None:  # noqa: B027 - only copies need it
        """Entries `full` of `swa_map` changed; a device that has a copy fetches them before it plans."""

    def planned_entries(self, group: GroupLayout, call: ForwardCall) -> int:
        """Verify entries that the plan of one group asks for."""
        return int(planned_entries(call.rows, call.prefix, group.window))

    def entry_counts(self, group: GroupLayout, call: ForwardCall) -> IntArray:
        """[num_lanes] verify entries of each lane."""
        counts = np.where(call.rows != 0, call.prefix, 0)
        return np.minimum(counts, group.window) if group.window > 0 else counts

    def _check_and_stamp(self, phase: str, group: GroupLayout) -> None:
        call = self._active()
        entries = self._verify_count(group, call)
        written = self._num_written(group)
        for half in self.layout.halves:
            tag = launch_tag(phase, half, group.kind)
            self._count(tag, entries)
            self._verify(group, phase, half, tag)
            self._count(tag, written)
            if self._conflicts[group.kind]:
                self._write_in_order(group, phase, half, tag)
            else:
                self._write(group, phase, half, tag)

    def _verify_count(self, group: GroupLayout, call: ForwardCall) -> int:
        """Entries that a verify launch of this forward will look at."""
        return self.planned_entries(group, call)

    def _count(self, tag: LaunchTag, entries: int) -> None:
        self.counters.planned_launches[tag] += 1
        self.counters.planned_entries[tag] += entries

    def _num_written(self, group: GroupLayout) -> int:
        """Stamps that one write launch of this forward stores."""
        call = self._active()
        slots = self.in_group(group, call.slots[: call.num_live_entries])
        return int(((slots >= 0) & (slots < group.num_slots)).sum())

    def in_group(self, group: GroupLayout, slots: IntArray) -> IntArray:
        """Full slots as slots of `group`: negative ones stay, those beyond the map become -1."""
        if group.kind != SWA or not self.layout.maps_window:
            return slots
        inside = (slots >= 0) & (slots < self.swa_map.size)
        mapped = self.swa_map[np.where(inside, slots, 0)]
        return np.where(inside, mapped, np.where(slots < 0, slots, -1))

    def _expect_phase(self, wanted: Phase, operation: str) -> None:
        if self.phase is not wanted:
            raise PhaseError(
                f"{operation} needs the phase {wanted.value}, the runtime is in {self.phase.value}"
            )

    def _active(self) -> ForwardCall:
        if self._call is None:
            raise PhaseError("no forward is under way")
        return self._call

    # ---- what a backend provides: the forward

    @abstractmethod
    def _prepare(self, call: ForwardCall) -> None:
        """Bring the call's arrays and the changed expected tokens to the device."""

    @abstractmethod
    def _plan(self, group: GroupLayout) -> None:
        """Plan the active call for one group; later operations of the forward use this plan."""

    @abstractmethod
    def _has_conflict(self, group: GroupLayout) -> bool:
        """Whether two entries write one slot, or a lane writes another lane's seed."""

    @abstractmethod
    def _verify(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        """Verify the plan's entries against one stamp buffer."""

    @abstractmethod
    def _write(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        """Stamp all lanes of the plan in one launch."""

    @abstractmethod
    def _write_in_order(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        """Stamp lane after lane, every seed as it was before the first."""

    @abstractmethod
    def _write_lane_bytes(self, group: GroupLayout) -> None:
        """Bytes of the written slots, made from the chain after each slot's HEAD stamp."""

    @abstractmethod
    def _verify_entries(self, group_kind: str, half: str, tag: LaunchTag, call: SweepCall) -> None:
        """Verify given entries against the TAIL stamps."""

    # ---- what a backend provides: memory outside of forwards

    @abstractmethod
    def write_bytes(
        self,
        group_kind: str,
        slots: IntArray,
        contexts: WordArray,
        *,
        salt: int,
        sources: Sequence[int] | None = None,
    ) -> None:
        """Write the model's bytes for given contexts; negative slots are skipped, `sources` None means all."""

    @abstractmethod
    def zero_bytes(self, group_kind: str, slots: IntArray, sources: Sequence[int] | None = None) -> None:
        """Zero the bytes of slots."""

    @abstractmethod
    def flip_byte(
        self, group_kind: str, slots: IntArray, byte: int, xor: int, sources: Sequence[int] | None = None
    ) -> None:
        """Exclusive-or one byte of each slot."""

    @abstractmethod
    def copy_bytes(
        self, group_kind: str, to_slots: IntArray, from_slots: IntArray, sources: Sequence[int] | None = None
    ) -> None:
        """Copy bytes between slots, as if all were read first."""

    @abstractmethod
    def flip_stamp(self, group_kind: str, slot: int, word: int, xor: int, phases: Iterable[str]) -> None:
        """Exclusive-or one word of a stamp in the buffers of these phases, both halves."""

    @abstractmethod
    def save(self, group_kind: str, slots: IntArray) -> HostCopy:
        """Bytes and stamps of slots, copied to the host."""

    @abstractmethod
    def load(
        self, group_kind: str, slots: IntArray, copy: HostCopy, *, sources: Sequence[int] | None, stamps: bool
    ) -> None:
        """Copy the first `len(slots)` slots of a host copy back."""

    @abstractmethod
    def deliver(
        self,
        group_kind: str,
        slots: IntArray,
        tokens: IntArray,
        positions: IntArray,
        chains: WordArray,
        *,
        sources: Sequence[int] | None,
        stamps: bool,
    ) -> None:
        """Lay down what a forward with these chains would have made.

        Args:
            chains: [n] chain value before each token (its stamp's prev_hash).
        """

    @abstractmethod
    def read_stamp(self, group_kind: str, slot: int, phase: str = TAIL) -> IntArray:
        """[4] int64 stamp of one slot (K half)."""

    @abstractmethod
    def drain(self) -> tuple[IntArray, int]:
        """Violation rows since the last call, [n, 8] int64, and how many more were lost (0 unless saturated)."""

    @abstractmethod
    def finish(self) -> Counters:
        """Wait for the device and return the counters."""
