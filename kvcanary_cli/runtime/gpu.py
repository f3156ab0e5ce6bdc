"""Memory of a run on a GPU, forwards by the Triton kernels.

Host and device work on one stream: a forward's arrays go over in one copy (`staging.py`), its kernels follow,
and the host waits once, for the number of violations. With `torch_device="cpu"` the same code runs in
Triton's interpreter, slowly, for tests on machines without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from kvcanary_cli.errors import MissingError
from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels.consts import (
    RING_WORDS,
    STAMP_BYTES,
    STAMP_WORDS,
    WORD_KV_HASH,
    HashMode,
    LaunchTag,
)
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.plan import launch_plan
from kvcanary_cli.kernels.plans import VerifyPlan, WritePlan
from kvcanary_cli.kernels.verify import launch_verify
from kvcanary_cli.kernels.write import launch_write
from kvcanary_cli.runtime.base import NUM_TAGS, Counters
from kvcanary_cli.runtime.bytes_cpu import has_conflict
from kvcanary_cli.runtime.bytes_gpu import launch_stamp_contexts
from kvcanary_cli.runtime.calls import ForwardCall, IntArray, SweepCall
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.layout import HEAD, SWA, TAIL, GroupLayout, Layout, require_memory
from kvcanary_cli.runtime.memory_gpu import DeviceMemory
from kvcanary_cli.runtime.mirrors import Mirrors
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.runtime.staging import Staging, last_of_each

# The log is emptied after each forward and can't grow while kernels write it; these 4 MiB hold more rows than
# a forward of a few thousand lanes has tokens to complain about.
RING_ROWS = 65_536

FIRST_ENTRIES = 65_536  # verify entries the plan has room for until a forward has more
FIRST_LANES = 1024

_PLAN_BYTES = FIRST_ENTRIES * 4 * 8 + FIRST_LANES * 3 * 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLayout(Layout):
    """A layout whose memory includes what the kernels need beside a run's own buffers."""

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by purpose on a GPU before the first event."""
        largest = max(group.num_slots for group in self.groups)
        return {
            **Layout.memory_bytes(self),
            "ring": RING_ROWS * RING_WORDS * 8,
            "plans": len(self.groups) * _PLAN_BYTES,
            "seeds": largest * STAMP_BYTES,
        }


def device_layout(layout: Layout) -> DeviceLayout:
    """The same layout, with the memory that it takes on a GPU."""
    return DeviceLayout(**{field.name: getattr(layout, field.name) for field in fields(layout)})


def open_gpu(
    device: DeviceChoice, layout: Layout, table: PageTable, swa_map: IntArray, expected: ExpectedTokens
) -> GpuRuntime:
    """Memory of one run on a GPU.

    Raises:
        MissingError: the run does not fit the GPU's free memory.
    """
    torch.cuda.set_device(device.index)
    free, _total = torch.cuda.mem_get_info(device.index)
    require_memory(device_layout(layout), free, device.label)
    return GpuRuntime(layout, table, swa_map, expected, torch_device=device.label)


class GpuRuntime(DeviceMemory):
    """One run on a GPU.

    Args:
        table, expected: masters made with `track_changes`; the device's copies follow them.
        torch_device: "cuda:N", or "cpu" with Triton's interpreter.
    """

    def __init__(
        self,
        layout: Layout,
        table: PageTable,
        swa_map: IntArray,
        expected: ExpectedTokens,
        *,
        torch_device: str = "cuda:0",
    ) -> None:
        device = torch.device(torch_device)
        if device.type == "cuda":
            device = torch.device("cuda", device.index or 0)
            torch.cuda.set_device(device)  # Triton launches on the current device
        super().__init__(layout, table, swa_map, expected, device)
        self._mirrors = Mirrors(layout, table, swa_map, expected, device)
        self._staging = Staging(device)
        self._sent: dict[str, torch.Tensor] = {}
        self._slots: dict[str, IntArray] = {}
        self._log = ViolationLog.allocate(RING_ROWS, device)
        self._found = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        # two words a tag, so that every tag's counters are aligned alike: others would be compiled for anew
        self._tag_counters = torch.zeros((NUM_TAGS, 2), dtype=torch.int64, device=device)
        self._tag_logs = [self._tag_log(tag) for tag in range(NUM_TAGS)]
        # a plan for each group: TAIL reads it after the other groups were planned
        self._verify_room = {g.kind: VerifyPlan.allocate(FIRST_ENTRIES, device) for g in layout.groups}
        self._write_room = {g.kind: WritePlan.allocate(FIRST_LANES, device) for g in layout.groups}
        self._verify_plans = dict(self._verify_room)
        self._write_plans = dict(self._write_room)
        self._enabled = torch.ones(1, dtype=torch.int32, device=device)
        self._mark = {group.kind: np.zeros(group.num_slots, np.int64) for group in layout.groups}
        self._serial = 1
        self._seed_stamps = self._zeros(max(group.num_slots for group in layout.groups), STAMP_WORDS)

    # ---- the forward

    def note_swa_map(self, full: IntArray) -> None:
        self._mirrors.note_swa_map(full)

    def _prepare(self, call: ForwardCall) -> None:
        self._slots = {group.kind: self.in_group(group, call.slots) for group in self.layout.groups}
        arrays = {
            "rows": call.rows,
            "prefix": call.prefix,
            "lens": call.lens,
            "tokens": call.tokens,
            "positions": call.positions,
            **{_slots_of(kind): slots for kind, slots in self._slots.items()},
        }
        if call.expected_tokens is not None and call.expected_positions is not None:
            arrays["expected_tokens"] = call.expected_tokens
            arrays["expected_positions"] = call.expected_positions
        if call.valid_lens is not None:
            arrays["valid_lens"] = call.valid_lens
        self._sent = self._staging.send({**arrays, **self._mirrors.take_changes()})
        self._mirrors.store(self._sent)
        for group in self.layout.groups:
            self._make_room(group, max(call.rows.size, 1), max(self.planned_entries(group, call), 1))

    def _plan(self, group: GroupLayout) -> None:
        checks_tokens = "valid_lens" in self._sent
        launch_plan(
            verify_plan_out=self._verify_plans[group.kind],
            write_plan_out=self._write_plans[group.kind],
            req_pool_indices=self._sent["rows"],
            prefix_lens=self._sent["prefix"],
            extend_seq_lens=self._sent["lens"],
            req_to_token=self._mirrors.table,
            swa_window_size=group.window,
            full_to_swa=self._mirrors.swa_map if group.kind == SWA else None,
            expected_tokens=self._mirrors.expected if checks_tokens else None,
            expected_valid_lens=self._sent["valid_lens"] if checks_tokens else None,
            token_id_vs_position_offset=self.layout.token_offset,
        )

    def _has_conflict(self, group: GroupLayout) -> bool:
        # decided by the host's own table, which the device's copy equals: asking the device would cost a wait
        seeds, offsets = self._seeds(group), self._offsets()
        self._serial += seeds.size + 1
        found = has_conflict(self._slots[group.kind], seeds, offsets, self._mark[group.kind], self._serial)
        return bool(found)

    def _verify(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        sources = self._hashed[half, group.kind] if phase == TAIL else []
        launch_verify(
            canary_buf=self._stamps[phase, half, group.kind],
            plan=self._verify_plans[group.kind],
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=self._tag_logs[tag],
            check_expected_token="valid_lens" in self._sent,
        )

    def _write(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        self._stamp_lanes(group, phase, half, tag, seed_stamps=None)

    def _write_in_order(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        stamps = self._stamps[phase, half, group.kind]
        before = self._seed_stamps[: group.num_slots]
        before.copy_(stamps)
        # Rows, counters and byte hashes are the same in every order. Of a slot that several entries write,
        # the launch leaves the other words to chance; they are set to those of the last entry afterwards.
        self._stamp_lanes(group, phase, half, tag, seed_stamps=before)
        slots = self._slots[group.kind][: int(self._offsets()[-1])]
        last = last_of_each(slots, group.num_slots)
        found, times = np.unique(slots, return_counts=True)
        contested = last[np.isin(slots[last], found[times > 1])]
        if contested.size:
            entries = self._stamps_of_entries(group, before)
            sent = self._events.send({"slots": slots[contested], "entries": contested})
            stamps[sent["slots"], :WORD_KV_HASH] = entries[sent["entries"], :WORD_KV_HASH]

    def _stamps_of_entries(self, group: GroupLayout, before: torch.Tensor) -> torch.Tensor:
        """[num_tokens + num_lanes, 4]: stamps as if every entry had its own slot, then the lanes' seeds."""
        seeds = self._seeds(group)
        inside = (seeds >= 0) & (seeds < group.num_slots)
        num_lanes, num_tokens = seeds.size, self._slots[group.kind].size
        own = np.arange(num_tokens)
        sent = self._events.send(
            {
                "old_seeds": np.where(inside, seeds, 0),
                "new_seeds": np.where(inside, num_tokens + np.arange(num_lanes), -1),
                "slots": np.where(self._slots[group.kind] < 0, -1, own),
            }
        )
        entries = self._zeros(num_tokens + num_lanes, STAMP_WORDS)
        entries[num_tokens:] = before[sent["old_seeds"]]
        plan = replace(self._write_plans[group.kind], write_seed_slot_indices=sent["new_seeds"])
        launch_write(
            canary_buf=entries,
            plan=plan,
            input_ids=self._sent["tokens"],
            positions=self._sent["positions"],
            out_cache_loc=sent["slots"],
            sources=[],
            hash_mode=HashMode.NONE,
            launch_tag=LaunchTag.HEAD_K_FULL,
            log=ViolationLog.allocate(1, self.device),
            expected_inputs=None,
            chain_position_assert=False,
        )
        return entries

    def _stamp_lanes(
        self, group: GroupLayout, phase: str, half: str, tag: LaunchTag, *, seed_stamps: torch.Tensor | None
    ) -> None:
        sources = self._hashed[half, group.kind] if phase == TAIL else []
        expected = None
        if "expected_tokens" in self._sent:
            expected = ExpectedInputs(self._sent["expected_tokens"], self._sent["expected_positions"])
        launch_write(
            canary_buf=self._stamps[phase, half, group.kind],
            plan=self._write_plans[group.kind],
            input_ids=self._sent["tokens"],
            positions=self._sent["positions"],
            out_cache_loc=self._sent[_slots_of(group.kind)],
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=self._tag_logs[tag],
            expected_inputs=expected,
            chain_position_assert=self._active().chain_positions,
            seed_buf=seed_stamps,
        )

    def _write_lane_bytes(self, group: GroupLayout) -> None:
        call = self._active()
        slots = self._sent[_slots_of(group.kind)][: call.num_live_entries]
        contexts = torch.empty_like(slots)
        launch_stamp_contexts(stamps=self._stamps[HEAD, "k", group.kind], slots=slots, out_contexts=contexts)
        if call.byte_salt:
            contexts ^= call.byte_salt
        # entries of one slot find the same stamp there, so their order does not matter
        self._fill(group.kind, slots, contexts)

    def _verify_entries(self, group_kind: str, half: str, tag: LaunchTag, call: SweepCall) -> None:
        kind = self.layout.group(group_kind).kind
        sent = self._events.send(
            {"slots": call.slots, "positions": call.positions, "predecessors": call.predecessors}
        )
        plan = VerifyPlan(
            verify_slot_indices=sent["slots"],
            verify_expected_tokens=torch.full_like(sent["slots"], -1),
            verify_expected_positions=sent["positions"],
            verify_prev_slot_indices=sent["predecessors"],
            verify_num_valid=torch.full_like(self._enabled, call.slots.size),
            enable=self._enabled,
        )
        sources = self._hashed[half, kind]
        launch_verify(
            canary_buf=self._stamps[TAIL, half, kind],
            plan=plan,
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=self._tag_logs[tag],
            check_expected_token=False,
        )

    # ---- results

    def drain(self) -> tuple[IntArray, int]:
        self._found.copy_(self._log.write_index, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        found = int(self._found[0])
        if found == 0:
            return np.zeros((0, RING_WORDS), np.int64), 0
        kept = min(found, self._log.ring_capacity)
        rows = np.array(self._log.ring[:kept].cpu().numpy())
        self._log.write_index.zero_()
        return rows, found - kept

    def finish(self) -> Counters:
        done = self._tag_counters.cpu().tolist()
        self.counters.entries = [entries for entries, _launches in done]
        self.counters.launches = [launches for _entries, launches in done]
        return self.counters

    # ---- inside

    def _seeds(self, group: GroupLayout) -> IntArray:
        """[num_lanes] slot before each lane's first token, as the plan finds it; -1 without one."""
        call = self._active()
        entries = self.table.entries
        has_seed = self._is_live() & (call.lens > 0) & (call.prefix > 0)
        cells = np.where(has_seed, call.rows * self.table.width + call.prefix - 1, 0)
        is_stored = cells < entries.size
        slots = np.where(is_stored, entries[np.where(is_stored, cells, 0)].astype(np.int64), -1)
        return np.where(has_seed, self.in_group(group, slots), -1)

    def _offsets(self) -> IntArray:
        """[num_lanes + 1] first entry of each lane."""
        lens = np.where(self._is_live(), np.maximum(self._active().lens, 0), 0)
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(lens)))

    def _is_live(self) -> np.ndarray:
        rows = self._active().rows
        return (rows > 0) & (rows < self.table.num_rows)

    def _make_room(self, group: GroupLayout, lanes: int, entries: int) -> None:
        """Plans of just this size: launches have programs for all that a plan has room for."""
        kind = group.kind
        if lanes > self._write_room[kind].write_req_capacity:
            self._write_room[kind] = WritePlan.allocate(2 * lanes, self.device)
        if entries > self._verify_room[kind].verify_capacity:
            self._verify_room[kind] = self._larger_plan(2 * entries)
        verify, write = self._verify_room[kind], self._write_room[kind]
        self._verify_plans[kind] = VerifyPlan(
            verify_slot_indices=verify.verify_slot_indices[:entries],
            verify_expected_tokens=verify.verify_expected_tokens[:entries],
            verify_expected_positions=verify.verify_expected_positions[:entries],
            verify_prev_slot_indices=verify.verify_prev_slot_indices[:entries],
            verify_num_valid=verify.verify_num_valid,
            enable=verify.enable,
        )
        self._write_plans[kind] = WritePlan(
            write_offsets=write.write_offsets[: lanes + 1],
            write_seed_slot_indices=write.write_seed_slot_indices[:lanes],
            write_num_valid_reqs=write.write_num_valid_reqs,
            verify_offsets=write.verify_offsets[: lanes + 1],
        )

    def _larger_plan(self, entries: int) -> VerifyPlan:
        try:
            return VerifyPlan.allocate(entries, self.device)
        except torch.OutOfMemoryError as error:
            gib = entries * 4 * 8 / 2**30
            raise MissingError(
                f"the plan of a forward with {entries // 2} verify entries needs {gib:.2f} GiB, "
                f"which {self.device} does not have free",
                hint="run on a machine with more memory, or replay with `--device cpu`",
            ) from error

    def _tag_log(self, tag: int) -> ViolationLog:
        """A log that shares ring and counter with all tags and counts its own launches and entries."""
        return ViolationLog(
            ring=self._log.ring,
            write_index=self._log.write_index,
            slot_run_counter=self._tag_counters[tag, :1],
            kernel_run_counter=self._tag_counters[tag, 1:],
        )


def _slots_of(kind: str) -> str:
    return f"slots_{kind}"
