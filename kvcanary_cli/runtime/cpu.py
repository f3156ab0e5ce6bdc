"""Memory of a run in NumPy arrays, operations by Numba. Imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels.consts import STAMP_WORDS, WORD_KV_HASH, HashMode, LaunchTag
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.plan_cpu import plan_cpu
from kvcanary_cli.kernels.plans_cpu import VerifyPlan, WritePlan, aligned_zeros
from kvcanary_cli.kernels.sources_cpu import KvSource
from kvcanary_cli.kernels.verify_cpu import verify_cpu
from kvcanary_cli.kernels.write_cpu import write_cpu
from kvcanary_cli.runtime.base import NUM_TAGS, Counters, Runtime
from kvcanary_cli.runtime.bytes_cpu import fill_slots, has_conflict, stamp_contexts, word_keys
from kvcanary_cli.runtime.calls import ForwardCall, HostCopy, IntArray, SweepCall, WordArray
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.layout import HEAD, SWA, TAIL, GroupLayout, Layout, SourceLayout
from kvcanary_cli.runtime.page_table import PageTable

_FIRST_RING = 4096  # rows of the log that is drained after each forward; grows when a forward has more
_NO_MAP = None


class CpuRuntime(Runtime):
    """One run on the CPU."""

    def __init__(self, layout: Layout, table: PageTable, swa_map: IntArray, expected: ExpectedTokens) -> None:
        super().__init__(layout, table, swa_map, expected)
        self._stamps = {
            (phase, half, group.kind): aligned_zeros((group.num_slots, STAMP_WORDS), "int64")
            for phase in (HEAD, TAIL)
            for half in layout.halves
            for group in layout.groups
        }
        self._kv = {s.number: self._source_memory(s, layout.group(s.group).num_slots) for s in layout.sources}
        self._keys = {s.number: word_keys(s.number, s.bytes_per_slot // 8) for s in layout.sources}
        self._hashed = {
            (half, group.kind): self._hashed_sources(group.kind, half)
            for half in layout.halves
            for group in layout.groups
        }
        self._log = ViolationLog.allocate(_FIRST_RING, "cpu")
        self._tag_logs = [self._tag_log() for _ in range(NUM_TAGS)]
        # HEAD and TAIL of a forward use one plan, with the model's work between them: a plan a group
        self._verify_plans = {group.kind: VerifyPlan.allocate(4096, "cpu") for group in layout.groups}
        self._write_plans = {group.kind: WritePlan.allocate(64, "cpu") for group in layout.groups}
        self._mark = {group.kind: np.zeros(group.num_slots, np.int64) for group in layout.groups}
        self._serial = 1
        self._slots: dict[str, IntArray] = {}
        self._kernel_call: ForwardCall | None = None

    # ---- the forward

    def _prepare(self, call: ForwardCall) -> None:
        for group in self.layout.groups:
            if call.rows.size > self._write_plans[group.kind].write_req_capacity:
                self._write_plans[group.kind] = WritePlan.allocate(2 * call.rows.size, "cpu")
            entries = self.planned_entries(group, call)
            if entries > self._verify_plans[group.kind].verify_capacity:
                self._verify_plans[group.kind] = VerifyPlan.allocate(2 * entries, "cpu")
            self._slots[group.kind] = self.in_group(group, call.slots)

    def _plan(self, group: GroupLayout) -> None:
        call = self._active()
        is_mapped = group.kind == SWA and self.layout.maps_window
        checks_tokens = call.valid_lens is not None and self.expected.pool is not None
        plan_cpu(
            verify_plan_out=self._verify_plans[group.kind],
            write_plan_out=self._write_plans[group.kind],
            req_pool_indices=call.rows,
            prefix_lens=call.prefix,
            extend_seq_lens=call.lens,
            req_to_token=self.table.entries.reshape(self.table.num_rows, self.table.width),
            swa_window_size=group.window,
            full_to_swa=self.swa_map if is_mapped else _NO_MAP,
            expected_tokens=self.expected.pool if checks_tokens else None,
            expected_valid_lens=call.valid_lens if checks_tokens else None,
            token_id_vs_position_offset=self.layout.token_offset,
        )

    def _has_conflict(self, group: GroupLayout) -> bool:
        call = self._active()
        lanes = call.rows.size
        plan = self._write_plans[group.kind]
        self._serial += lanes + 1
        return bool(
            has_conflict(
                self._slots[group.kind],
                plan.write_seed_slot_indices[:lanes],
                plan.write_offsets[: lanes + 1],
                self._mark[group.kind],
                self._serial,
            )
        )

    def _verify(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        sources = self._hashed[half, group.kind] if phase == TAIL else []
        verify_cpu(
            canary_buf=self._stamps[phase, half, group.kind],
            plan=self._verify_plans[group.kind],
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=self._tag_logs[tag],
            check_expected_token=self._active().valid_lens is not None,
        )

    def _write(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        self._write_with(self._write_plans[group.kind], group, phase, half, tag)

    def _write_with(self, plan: WritePlan, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        call = self._active()
        sources = self._hashed[half, group.kind] if phase == TAIL else []
        expected = None
        if call.expected_tokens is not None and call.expected_positions is not None:
            expected = ExpectedInputs(call.expected_tokens, call.expected_positions)
        write_cpu(
            canary_buf=self._stamps[phase, half, group.kind],
            plan=plan,
            input_ids=call.tokens,
            positions=call.positions,
            out_cache_loc=self._slots[group.kind],
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=self._tag_logs[tag],
            expected_inputs=expected,
            chain_position_assert=call.chain_positions,
        )

    def _write_in_order(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        stamps = self._stamps[phase, half, group.kind]
        lanes = self._active().rows.size
        whole = self._write_plans[group.kind]
        seeds = whole.write_seed_slot_indices[:lanes].copy()
        offsets = whole.write_offsets[: lanes + 1].copy()
        inside = (seeds >= 0) & (seeds < group.num_slots)
        before = stamps[np.where(inside, seeds, 0)].copy()
        log = self._tag_logs[tag]
        launches = int(log.kernel_run_counter[0])
        for lane in range(lanes):
            if offsets[lane] == offsets[lane + 1]:
                continue
            plan = WritePlan.allocate(1, "cpu")
            # the plan's one lane covers this lane's entries only: entries before its offset belong to nobody
            plan.write_offsets[:] = offsets[lane : lane + 2]
            plan.write_seed_slot_indices[0] = seeds[lane]
            plan.write_num_valid_reqs[0] = 1
            own = self._slots[group.kind][offsets[lane] : offsets[lane + 1]]
            swap = bool(inside[lane])
            now = stamps[seeds[lane]].copy() if swap else None
            if swap:
                stamps[seeds[lane]] = before[lane]
            self._write_with(plan, group, phase, half, tag)
            if swap and seeds[lane] not in own:
                stamps[seeds[lane]] = now
        log.kernel_run_counter[0] = launches + 1  # one launch of the contract, however often it was split

    def _write_lane_bytes(self, group: GroupLayout) -> None:
        call = self._active()
        live = call.num_live_entries
        slots = self._slots[group.kind][:live]
        contexts = stamp_contexts(self._stamps[HEAD, "k", group.kind], slots)
        self.write_bytes(group.kind, slots, contexts, salt=call.byte_salt)

    def _verify_entries(self, group_kind: str, half: str, tag: LaunchTag, call: SweepCall) -> None:
        plan = VerifyPlan.allocate(call.slots.size, "cpu")
        plan.verify_slot_indices[:] = call.slots
        plan.verify_expected_positions[:] = call.positions
        plan.verify_prev_slot_indices[:] = call.predecessors
        plan.verify_expected_tokens[:] = -1
        plan.verify_num_valid[0] = call.slots.size
        plan.enable[0] = 1
        sources = self._hashed[half, group_kind]
        verify_cpu(
            canary_buf=self._stamps[TAIL, half, group_kind],
            plan=plan,
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=self._tag_logs[tag],
            check_expected_token=False,
        )

    # ---- memory outside of forwards

    def write_bytes(
        self,
        group_kind: str,
        slots: IntArray,
        contexts: WordArray,
        *,
        salt: int,
        sources: Sequence[int] | None = None,
    ) -> None:
        for source in self._named(group_kind, sources):
            fill_slots(
                self._words(source), slots, contexts, self._keys[source.number], np.uint64(salt & 2**64 - 1)
            )

    def zero_bytes(self, group_kind: str, slots: IntArray, sources: Sequence[int] | None = None) -> None:
        for source in self._named(group_kind, sources):
            self._words(source)[slots] = 0

    def flip_byte(
        self, group_kind: str, slots: IntArray, byte: int, xor: int, sources: Sequence[int] | None = None
    ) -> None:
        for source in self._named(group_kind, sources):
            if byte < source.bytes_per_slot:
                self._bytes(source)[slots, byte] ^= np.uint8(xor)

    def copy_bytes(
        self, group_kind: str, to_slots: IntArray, from_slots: IntArray, sources: Sequence[int] | None = None
    ) -> None:
        for source in self._named(group_kind, sources):
            words = self._words(source)
            words[to_slots] = words[from_slots].copy()

    def flip_stamp(self, group_kind: str, slot: int, word: int, xor: int, phases: Iterable[str]) -> None:
        for phase in phases:
            for half in self.layout.halves:
                stamps = self._stamps[phase, half, group_kind].view(np.uint64)
                stamps[slot, word] ^= np.uint64(xor & 2**64 - 1)

    def save(self, group_kind: str, slots: IntArray) -> HostCopy:
        return HostCopy(
            group=group_kind,
            kv={s.number: self._bytes(s)[slots] for s in self.layout.sources_of(group_kind)},
            stamps={
                (phase, half): self._stamps[phase, half, group_kind][slots]
                for phase in (HEAD, TAIL)
                for half in self.layout.halves
            },
        )

    def load(
        self, group_kind: str, slots: IntArray, copy: HostCopy, *, sources: Sequence[int] | None, stamps: bool
    ) -> None:
        for source in self._named(group_kind, sources):
            if source.number in copy.kv:
                self._bytes(source)[slots] = copy.kv[source.number][: slots.size]
        if stamps:
            for (phase, half), words in copy.stamps.items():
                self._stamps[phase, half, group_kind][slots] = words[: slots.size]

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
        rows = np.zeros((slots.size, STAMP_WORDS), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = tokens, positions, chains.view(np.int64)
        contexts = stamp_contexts(rows, np.arange(slots.size))
        if stamps:
            for half in self.layout.halves:
                self._stamps[HEAD, half, group_kind][slots] = rows
                sent = rows.copy()
                sent[:, WORD_KV_HASH] = self._hash_of_contexts(group_kind, half, contexts)
                self._stamps[TAIL, half, group_kind][slots] = sent
        self.write_bytes(group_kind, slots, contexts, salt=0, sources=sources)

    def read_stamp(self, group_kind: str, slot: int, phase: str = TAIL) -> IntArray:
        return self._stamps[phase, "k", group_kind][slot].copy()

    def drain(self) -> tuple[IntArray, int]:
        found = int(self._log.write_index[0])
        if found == 0:
            return np.zeros((0, 8), np.int64), 0
        kept = min(found, self._log.ring_capacity)
        rows = self._log.ring[:kept].copy()
        self._log.write_index[0] = 0
        return rows, found - kept

    def finish(self) -> Counters:
        self.counters.launches = [int(log.kernel_run_counter[0]) for log in self._tag_logs]
        self.counters.entries = [int(log.slot_run_counter[0]) for log in self._tag_logs]
        return self.counters

    # ---- inside

    def _source_memory(self, source: SourceLayout, num_slots: int) -> np.ndarray:
        page_size = self.layout.page_size
        pages = -(-num_slots // page_size)
        return aligned_zeros((pages, page_size * source.bytes_per_slot), "uint8")

    def _bytes(self, source: SourceLayout) -> np.ndarray:
        return self._kv[source.number].reshape(-1, source.bytes_per_slot)

    def _words(self, source: SourceLayout) -> np.ndarray:
        return self._kv[source.number].view(np.uint64).reshape(-1, source.bytes_per_slot // 8)

    def _hashed_sources(self, group_kind: str, half: str) -> list[KvSource]:
        return [
            KvSource(self._kv[s.number], self.layout.page_size, s.bytes_per_slot, s.hashed_bytes)
            for s in self.layout.sources_of(group_kind, half)
            if s.hashed_bytes
        ]

    def _hash_of_contexts(self, group_kind: str, half: str, contexts: WordArray) -> IntArray:
        """Byte hash of slots that a forward would have filled for these contexts."""
        from kvcanary_cli.kernels.hashing_cpu import hash_slot
        from kvcanary_cli.kernels.sources_cpu import source_table

        count = contexts.size
        sources = []
        for source in self.layout.sources_of(group_kind, half):
            if source.hashed_bytes and count:
                memory = aligned_zeros((count, source.bytes_per_slot), "uint8")
                words = memory.view(np.uint64).reshape(count, -1)
                fill_slots(words, np.arange(count), contexts, self._keys[source.number], np.uint64(0))
                sources.append(KvSource(memory, 1, source.bytes_per_slot, source.hashed_bytes))
        if not sources:
            return np.zeros(count, np.int64)
        table = source_table(sources, HashMode.ALL)
        return np.array([hash_slot(table, slot) for slot in range(count)], np.uint64).view(np.int64)

    def _named(self, group_kind: str, numbers: Sequence[int] | None) -> list[SourceLayout]:
        return [s for s in self.layout.sources_of(group_kind) if numbers is None or s.number in numbers]

    def _tag_log(self) -> ViolationLog:
        """A log that shares ring and counter with all tags and counts its own launches and entries."""
        own = ViolationLog.allocate(1, "cpu")
        return ViolationLog(
            ring=self._log.ring,
            write_index=self._log.write_index,
            slot_run_counter=own.slot_run_counter,
            kernel_run_counter=own.kernel_run_counter,
        )
