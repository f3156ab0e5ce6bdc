"""One run on the CPU: operations of a forward by Numba. Imports neither torch nor triton.

The kernels are called without their checks: everything they get is made here or was checked by the trace's
reader, and a replay makes thousands of launches a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvcanary_cli.kernels.consts import RING_SLOT, RING_TAG, LaunchTag
from kvcanary_cli.kernels.fused_cpu import PARALLEL_ENTRIES as PARALLEL_TABLE
from kvcanary_cli.kernels.fused_cpu import verify_table_parallel, verify_table_serial
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.memory_cpu import NO_POOL, NO_WORDS
from kvcanary_cli.kernels.plan_cpu import plan_writes
from kvcanary_cli.kernels.verify_cpu import PARALLEL_ENTRIES, verify_parallel, verify_serial
from kvcanary_cli.kernels.write_cpu import PARALLEL_ENTRIES as PARALLEL_TOKENS
from kvcanary_cli.kernels.write_cpu import write_parallel, write_serial
from kvcanary_cli.runtime.base import NUM_TAGS, Counters, Runtime
from kvcanary_cli.runtime.bytes_cpu import has_conflict, stamp_contexts
from kvcanary_cli.runtime.calls import ForwardCall, HostCopy, IntArray, SweepCall, WordArray
from kvcanary_cli.runtime.changes import Changes
from kvcanary_cli.runtime.dirty_plan import DirtyPlan
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.layout import HEAD, SWA, TAIL, GroupLayout, Layout
from kvcanary_cli.runtime.memory_cpu import CpuMemory
from kvcanary_cli.runtime.page_table import PageTable

RING_ROWS = 65_536  # rows of the log that is emptied after each forward, as many as the GPU's

_ONE_FLAG = np.ones(1, np.int32)


class CpuRuntime(CpuMemory, Runtime):
    """One run on the CPU.

    Args:
        changes: cells to verify again; None verifies every entry at every forward.
    """

    def __init__(
        self,
        layout: Layout,
        table: PageTable,
        swa_map: IntArray,
        expected: ExpectedTokens,
        changes: Changes | None = None,
    ) -> None:
        CpuMemory.__init__(self, layout)
        Runtime.__init__(self, layout, table, swa_map, expected)
        self._log = ViolationLog.allocate(RING_ROWS, "cpu")
        self._tag_logs = [self._tag_log() for _ in range(NUM_TAGS)]
        self._entries = table.entries.reshape(table.num_rows, table.width)
        self._mark = {group.kind: np.zeros(group.num_slots, np.int64) for group in layout.groups}
        self._identity = np.arange(layout.num_slots)
        self._serial = 1
        self._slots: dict[str, IntArray] = {}
        self._offsets: dict[str, IntArray] = {}
        self._seeds: dict[str, IntArray] = {}
        self._num_lanes = np.zeros(1, np.int32)
        self._changes = changes
        self._dirty = {group.kind: DirtyPlan() for group in layout.groups}
        self._to_settle = False

    # ---- the forward

    def _prepare(self, call: ForwardCall) -> None:
        lanes = call.rows.size
        self._num_lanes[0] = lanes
        for group in self.layout.groups:
            kind = group.kind
            self._slots[kind] = self.in_group(group, call.slots)
            if kind not in self._seeds or self._seeds[kind].size < lanes:
                self._offsets[kind] = np.zeros(2 * lanes + 1, np.int64)
                self._seeds[kind] = np.zeros(2 * lanes, np.int64)
            self._note_writes(kind, call)

    def _plan(self, group: GroupLayout) -> None:
        call = self._active()
        rows, width = self._entries.shape
        plan_writes(
            call.rows,
            call.prefix,
            call.lens,
            self.table.entries,
            rows,
            width,
            self._has_map(group),
            self._map(group),
            self._offsets[group.kind],
            self._seeds[group.kind],
            self._num_lanes,
        )
        if self._changes is not None:
            ends = call.prefix
            starts = ends - self.entry_counts(group, call)
            self._dirty[group.kind].fill(
                self._changes.dirty[group.kind],
                self.table.entries,
                self._map(group) if self._has_map(group) else NO_WORDS,
                call,
                starts,
                self.table.width,
                self._expected_pool(call),
                self.layout.token_offset,
            )
            self._to_settle = True

    def _verify_count(self, group: GroupLayout, call: ForwardCall) -> int:
        if self._changes is not None:
            return self._dirty[group.kind].count
        return self.planned_entries(group, call)

    def _has_conflict(self, group: GroupLayout) -> bool:
        call = self._active()
        lanes = call.rows.size
        self._serial += lanes + 1
        return bool(
            has_conflict(
                self._slots[group.kind],
                self._seeds[group.kind][:lanes],
                self._offsets[group.kind][: lanes + 1],
                self._mark[group.kind],
                self._serial,
            )
        )

    def _verify(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        call = self._active()
        if self._changes is not None:
            plan = self._dirty[group.kind]
            self._launch_verify(
                plan.slots, plan.tokens, plan.positions, plan.before, plan.num, phase, half, group, tag
            )
            return
        stamps, log = self.stamps[phase, half, group.kind], self._tag_logs[tag]
        checks_tokens = call.valid_lens is not None and self.expected.pool is not None
        is_small = self.planned_entries(group, call) < PARALLEL_TABLE
        verify = verify_table_serial if is_small else verify_table_parallel
        verify(
            stamps.reshape(-1),
            stamps.shape[1],
            stamps.shape[0],
            call.rows,
            call.prefix,
            self._entries,
            group.window,
            self._has_map(group),
            self._map(group),
            self._expected_pool(call),
            call.valid_lens if checks_tokens else NO_WORDS,
            self.layout.token_offset,
            -1,
            self.source_table(phase, half, group.kind),
            checks_tokens,
            self.layout.is_affine,
            int(tag),
            log.ring,
            log.write_index,
            log.slot_run_counter,
            log.kernel_run_counter,
        )

    def _write(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        is_small = self._active().tokens.size < PARALLEL_TOKENS
        self._launch_write(write_serial if is_small else write_parallel, group, phase, half, tag)

    def _write_in_order(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        # the serial kernel reads all seeds before it writes, and writes lane after lane
        self._launch_write(write_serial, group, phase, half, tag)

    def _write_lane_bytes(self, group: GroupLayout) -> None:
        call = self._active()
        slots = self._slots[group.kind][: call.num_live_entries]
        contexts = stamp_contexts(self.stamps[HEAD, "k", group.kind], slots, self.layout.is_affine)
        CpuMemory.write_bytes(self, group.kind, slots, contexts, salt=call.byte_salt)

    def _verify_entries(self, group_kind: str, half: str, tag: LaunchTag, call: SweepCall) -> None:
        unknown = np.full(call.slots.size, -1, np.int64)
        count = np.array([call.slots.size], np.int32)
        group = self.layout.group(group_kind)
        self._launch_verify(
            call.slots, unknown, call.positions, call.predecessors, count, TAIL, half, group, tag
        )  # fmt: skip

    def _launch_verify(
        self,
        slots: IntArray,
        tokens: IntArray,
        positions: IntArray,
        before: IntArray,
        num: np.ndarray,
        phase: str,
        half: str,
        group: GroupLayout,
        tag: LaunchTag,
    ) -> None:
        stamps, log = self.stamps[phase, half, group.kind], self._tag_logs[tag]
        verify = verify_serial if int(num[0]) < PARALLEL_ENTRIES else verify_parallel
        verify(
            stamps.reshape(-1),
            stamps.shape[1],
            stamps.shape[0],
            slots,
            tokens,
            positions,
            before,
            num,
            _ONE_FLAG,
            self.source_table(phase, half, group.kind),
            True,
            self.layout.is_affine,
            int(tag),
            log.ring,
            log.write_index,
            log.slot_run_counter,
            log.kernel_run_counter,
        )

    def _launch_write(self, write: object, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        call, kind = self._active(), group.kind
        stamps, log = self.stamps[phase, half, kind], self._tag_logs[tag]
        words, lanes = stamps.reshape(-1), call.rows.size
        has_expectation = call.expected_tokens is not None
        write(  # type: ignore[operator]
            words,
            stamps.shape[1],
            stamps.shape[0],
            words,
            self._offsets[kind][: lanes + 1],
            self._seeds[kind][:lanes],
            self._num_lanes,
            call.tokens,
            call.positions,
            self._slots[kind],
            self.source_table(phase, half, kind),
            int(tag),
            log.ring,
            log.write_index,
            log.slot_run_counter,
            log.kernel_run_counter,
            call.expected_tokens if has_expectation else NO_WORDS,
            call.expected_positions if has_expectation else NO_WORDS,
            call.chain_positions,
            self.layout.is_affine,
        )

    # ---- memory outside of forwards: what it changes has to be verified again

    def write_bytes(
        self,
        group_kind: str,
        slots: IntArray,
        contexts: WordArray,
        *,
        salt: int,
        sources: Sequence[int] | None = None,
    ) -> None:
        kind = self._kind(group_kind)
        CpuMemory.write_bytes(self, kind, slots, contexts, salt=salt, sources=sources)
        self._touch(kind, slots)

    def zero_bytes(self, group_kind: str, slots: IntArray, sources: Sequence[int] | None = None) -> None:
        CpuMemory.zero_bytes(self, self._kind(group_kind), slots, sources)
        self._touch(group_kind, slots)

    def flip_byte(
        self, group_kind: str, slots: IntArray, byte: int, xor: int, sources: Sequence[int] | None = None
    ) -> None:
        CpuMemory.flip_byte(self, self._kind(group_kind), slots, byte, xor, sources)
        self._touch(group_kind, slots)

    def copy_bytes(
        self, group_kind: str, to_slots: IntArray, from_slots: IntArray, sources: Sequence[int] | None = None
    ) -> None:
        CpuMemory.copy_bytes(self, self._kind(group_kind), to_slots, from_slots, sources)
        self._touch(group_kind, to_slots)

    def flip_stamp(self, group_kind: str, slot: int, word: int, xor: int, phases: Iterable[str]) -> None:
        CpuMemory.flip_stamp(self, self._kind(group_kind), slot, word, xor, phases)
        self._touch(group_kind, np.array([slot], np.int64))

    def save(self, group_kind: str, slots: IntArray) -> HostCopy:
        return CpuMemory.save(self, self._kind(group_kind), slots)

    def load(
        self, group_kind: str, slots: IntArray, copy: HostCopy, *, sources: Sequence[int] | None, stamps: bool
    ) -> None:
        CpuMemory.load(self, self._kind(group_kind), slots, copy, sources=sources, stamps=stamps)
        self._touch(group_kind, slots)

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
        kind = self._kind(group_kind)
        CpuMemory.deliver(self, kind, slots, tokens, positions, chains, sources=sources, stamps=stamps)
        self._touch(kind, slots)

    def read_stamp(self, group_kind: str, slot: int, phase: str = TAIL) -> IntArray:
        return CpuMemory.read_stamp(self, self._kind(group_kind), slot, phase)

    def note_swa_map(self, full: IntArray) -> None:
        if self._changes is not None:
            self._changes.window_mapped(full, self.swa_map)

    def drain(self) -> tuple[IntArray, int]:
        found = int(self._log.write_index[0])
        kept = min(found, self._log.ring_capacity)
        rows = self._log.ring[:kept].copy() if kept else _NO_ROWS
        self._log.write_index[0] = 0
        if self._to_settle:
            self._settle(rows, found - kept)
        return rows, found - kept

    def finish(self) -> Counters:
        self.counters.launches = [int(log.kernel_run_counter[0]) for log in self._tag_logs]
        self.counters.entries = [int(log.slot_run_counter[0]) for log in self._tag_logs]
        return self.counters

    # ---- inside

    def _settle(self, rows: IntArray, lost: int) -> None:
        """Entries of the forward that were found good need no check until something touches them."""
        self._to_settle = False
        if self._changes is None or lost:
            return  # which entries failed is not known: all of them stay dirty
        for group in self.layout.groups:
            plan = self._dirty[group.kind]
            if plan.count == 0:
                continue
            of_group = (rows[:, RING_TAG] >= LaunchTag.HEAD_K_SWA) == (group.kind == SWA)
            failed = np.ascontiguousarray(rows[of_group, RING_SLOT])
            verified = (plan.cells[: plan.count], plan.positions[: plan.count], plan.slots[: plan.count])
            self._changes.settle(group.kind, *verified, failed)
            # stamps were written after the checks, so their other readers have to look again
            self._touch(group.kind, self._slots[group.kind])

    def _note_writes(self, kind: str, call: ForwardCall) -> None:
        """Bytes that this forward writes change what TAIL sees of them."""
        if self._changes is not None:
            self._touch(kind, self._slots[kind])
            if call.pad_slots.size:
                self._touch(kind, self.in_group(self.layout.group(kind), call.pad_slots))

    def _touch(self, group_kind: str, slots: IntArray) -> None:
        if self._changes is not None:
            self._changes.written(group_kind, slots)

    def _kind(self, group_kind: str) -> str:
        """A lone window group is the pool, whatever an event calls it."""
        return self.layout.group(group_kind).kind

    def _has_map(self, group: GroupLayout) -> bool:
        return group.kind == SWA and self.layout.maps_window

    def _map(self, group: GroupLayout) -> IntArray:
        return self.swa_map if self._has_map(group) else self._identity

    def _expected_pool(self, call: ForwardCall) -> np.ndarray:
        pool = self.expected.pool
        return pool if call.valid_lens is not None and pool is not None else NO_POOL

    def _tag_log(self) -> ViolationLog:
        """A log that shares ring and counter with all tags and counts its own launches and entries."""
        own = ViolationLog.allocate(1, "cpu")
        return ViolationLog(
            ring=self._log.ring,
            write_index=self._log.write_index,
            slot_run_counter=own.slot_run_counter,
            kernel_run_counter=own.kernel_run_counter,
        )


_NO_ROWS = np.zeros((0, 8), np.int64)
