"""Memory of a run on a GPU, forwards by the Triton kernels.

Host and device work on one stream: a forward's arrays go over in one copy (`staging.py`), its kernels follow,
and the host waits once, for the number of violations. Prefixes are verified straight from the page table, one launch
for all buffers whose turn has come, and stamps are written likewise. Where no bytes are hashed that is all buffers of
a group: TAIL then depends on nothing that happens between the phases. With `torch_device="cpu"` the same code runs in
Triton's interpreter, slowly, for tests on machines without a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels.consts import (
    RING_WORDS,
    STAMP_WORDS,
    WORD_KV_HASH,
    HashMode,
    LaunchTag,
)
from kvcanary_cli.kernels.fused import launch_verify_table
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.plans import VerifyPlan, WritePlan
from kvcanary_cli.kernels.verify import launch_verify
from kvcanary_cli.kernels.write import launch_write
from kvcanary_cli.kernels.write_all import launch_write_all
from kvcanary_cli.runtime.base import NUM_TAGS, Counters, Phase
from kvcanary_cli.runtime.bytes_cpu import has_conflict
from kvcanary_cli.runtime.calls import ForwardCall, IntArray, SweepCall
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.lane_plan import ForwardSize, forward_size, plan_lanes
from kvcanary_cli.runtime.layout import HEAD, SWA, TAIL, GroupLayout, Layout, launch_tag
from kvcanary_cli.runtime.layout_gpu import RING_ROWS
from kvcanary_cli.runtime.memory_gpu import DeviceMemory
from kvcanary_cli.runtime.mirrors import Mirrors
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.runtime.staging import Staging, last_of_each
from kvcanary_cli.runtime.step_graphs import StepGraphs
from kvcanary_cli.runtime.targets_gpu import group_targets

# Prefixes are rounded up to this many tokens when launches are sized, so that steps share a graph.
LENGTH_GRAIN = 512


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
        # asked for once: torch takes longer to tell the current stream than to use it
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._mirrors = Mirrors(layout, table, swa_map, expected, device)
        self._staging = Staging(device)
        self._sent: dict[str, torch.Tensor] = {}
        self._slots: dict[str, IntArray] = {}
        self._log = ViolationLog.allocate(RING_ROWS, device)
        self._found = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        # two words a tag, so that every tag's counters are aligned alike: others would be compiled for anew
        self._tag_counters = torch.zeros((NUM_TAGS, 2), dtype=torch.int64, device=device)
        self._tag_logs = [self._tag_log(tag) for tag in range(NUM_TAGS)]
        self._write_plans: dict[str, WritePlan] = {}
        self._planned_from: dict[str, dict[str, torch.Tensor]] = {}
        self._seeds: dict[str, IntArray] = {}
        self._offsets: IntArray = np.zeros(1, np.int64)
        self._longest_prefix = self._longest_lane = 0
        self._sizes: dict[str, ForwardSize] = {}
        self._targets = group_targets(layout, self._stamps, self._hashed, self._tag_logs)
        self._graphs = StepGraphs(device)
        self._enabled = torch.ones(1, dtype=torch.int32, device=device)
        self._mark = {group.kind: np.zeros(group.num_slots, np.int64) for group in layout.groups}
        self._serial = 1
        self._seed_stamps = self._zeros(max(group.num_slots for group in layout.groups), STAMP_WORDS)

    # ---- the forward

    def note_swa_map(self, full: IntArray) -> None:
        self._mirrors.note_swa_map(full)

    def forward(self, call: ForwardCall) -> None:
        if self.layout.sources:
            super().forward(call)
            return
        # no bytes: nothing happens between the phases, and steps of one shape are one graph
        self._expect_phase(Phase.IDLE, "forward")
        self._call = call
        self._send(call)
        for group in self.layout.groups:
            self._plan(group)
        conflicts = {group.kind: self._has_conflict(group) for group in self.layout.groups}
        if any(conflicts.values()):
            self._conflicts = conflicts
            self._mirrors.store(self._sent)
            for phase in (HEAD, TAIL):
                for group in self.layout.groups:
                    self._check_and_stamp(phase, group)
        else:
            for group in self.layout.groups:
                self._count_forward(group)
            self._graphs.run(self._shape(), self._launch_forward)
        self._call = None

    def _launch_forward(self) -> None:
        """Everything that a forward without bytes and conflicts launches."""
        self._mirrors.store(self._sent)
        for group in self.layout.groups:
            half = self.layout.halves[0]
            self._verify(group, HEAD, half, launch_tag(HEAD, half, group.kind))
            self._write(group, HEAD, half, launch_tag(HEAD, half, group.kind))

    def _count_forward(self, group: GroupLayout) -> None:
        size = self._sizes[group.kind]
        for phase in (HEAD, TAIL):
            for half in self.layout.halves:
                tag = launch_tag(phase, half, group.kind)
                self._count(tag, size.entries)
                self._count(tag, size.written)

    def _shape(self) -> tuple[object, ...]:
        """All that the launches of a forward depend on, beside what they read from memory."""
        lengths = (self._longest_prefix, self._longest_lane)
        return (self._staging.shape, self._staging.generation, lengths, self._active().chain_positions)

    def _prepare(self, call: ForwardCall) -> None:
        self._send(call)
        self._mirrors.store(self._sent)

    def _send(self, call: ForwardCall) -> None:
        self._slots = {group.kind: self.in_group(group, call.slots) for group in self.layout.groups}
        self._sizes = {
            group.kind: forward_size(call, group.window, self._slots[group.kind], group.num_slots)
            for group in self.layout.groups
        }
        size = next(iter(self._sizes.values()))
        self._longest_prefix = -(-size.longest_prefix // LENGTH_GRAIN) * LENGTH_GRAIN
        self._longest_lane = size.longest_lane
        self._offsets, self._seeds = plan_lanes(self.layout, self.table, self.swa_map, call)
        arrays = {
            "rows": call.rows,
            "prefix": call.prefix,
            "offsets": self._offsets,
            "num_lanes": np.array([call.rows.size]),
            "tokens": call.tokens,
            "positions": call.positions,
            **{f"slots_{kind}": slots for kind, slots in self._slots.items()},
            **{f"seeds_{kind}": seeds for kind, seeds in self._seeds.items()},
        }
        if call.expected_tokens is not None and call.expected_positions is not None:
            arrays["expected_tokens"] = call.expected_tokens
            arrays["expected_positions"] = call.expected_positions
        if call.valid_lens is not None:
            arrays["valid_lens"] = call.valid_lens
        self._sent = self._staging.send({**arrays, **self._mirrors.take_changes()})

    def _plan(self, group: GroupLayout) -> None:
        if self._planned_from.get(group.kind) is self._sent:
            return  # arrays of the same shape lie where the last ones lay
        self._planned_from[group.kind] = self._sent
        self._write_plans[group.kind] = WritePlan(
            write_offsets=self._sent["offsets"],
            write_seed_slot_indices=self._sent[f"seeds_{group.kind}"],
            # the low half of a small int64
            write_num_valid_reqs=self._sent["num_lanes"].view(torch.int32)[:1],
            verify_offsets=self._sent["offsets"],
        )

    def _has_conflict(self, group: GroupLayout) -> bool:
        lanes = self._active().rows.size
        seeds, offsets = self._seeds[group.kind][:lanes], self._offsets[: lanes + 1]
        self._serial += lanes + 1
        found = has_conflict(self._slots[group.kind], seeds, offsets, self._mark[group.kind], self._serial)
        return bool(found)

    def _verify(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        # the first buffer's turn is that of all buffers which are launched with it
        targets = self._targets.get((phase, half, group.kind))
        if targets is None:
            return
        checks_tokens = "valid_lens" in self._sent
        launch_verify_table(
            targets=targets,
            req_pool_indices=self._sent["rows"],
            prefix_lens=self._sent["prefix"],
            req_to_token=self._mirrors.table,
            swa_window_size=group.window,
            full_to_swa=self._mirrors.swa_map if group.kind == SWA else None,
            expected_tokens=self._mirrors.expected if checks_tokens else None,
            expected_valid_lens=self._sent["valid_lens"] if checks_tokens else None,
            token_id_vs_position_offset=self.layout.token_offset,
            longest_prefix=self._longest_prefix,
            is_affine=self.layout.is_affine,
        )

    def _write(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        targets = self._targets.get((phase, half, group.kind))
        if targets is None:
            return
        launch_write_all(
            targets=targets,
            plan=self._write_plans[group.kind],
            input_ids=self._sent["tokens"],
            positions=self._sent["positions"],
            out_cache_loc=self._sent[f"slots_{group.kind}"],
            expected_inputs=self._expected_inputs(),
            chain_position_assert=self._active().chain_positions,
            longest_lane=self._longest_lane,
            is_affine=self.layout.is_affine,
        )

    def _write_in_order(self, group: GroupLayout, phase: str, half: str, tag: LaunchTag) -> None:
        stamps = self._stamps[phase, half, group.kind]
        before = self._seed_stamps[: group.num_slots]
        before.copy_(stamps)
        # Rows, counters and byte hashes are the same in every order. Of a slot that several entries write,
        # the launch leaves the other words to chance; they are set to those of the last entry afterwards.
        self._stamp_lanes(group, phase, half, tag, seed_stamps=before)
        slots = self._slots[group.kind][: int(self._offsets[-1])]
        last = last_of_each(slots, group.num_slots)
        found, times = np.unique(slots, return_counts=True)
        contested = last[np.isin(slots[last], found[times > 1])]
        if contested.size:
            entries = self._stamps_of_entries(group, before)
            sent = self._events.send({"slots": slots[contested], "entries": contested})
            stamps[sent["slots"], :WORD_KV_HASH] = entries[sent["entries"], :WORD_KV_HASH]

    def _stamps_of_entries(self, group: GroupLayout, before: torch.Tensor) -> torch.Tensor:
        """[num_tokens + num_lanes, 4]: stamps as if every entry had its own slot, then the lanes' seeds."""
        seeds = self._seeds[group.kind]
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
            is_affine=self.layout.is_affine,
        )
        return entries

    def _stamp_lanes(
        self, group: GroupLayout, phase: str, half: str, tag: LaunchTag, *, seed_stamps: torch.Tensor | None
    ) -> None:
        sources = self._hashed[half, group.kind] if phase == TAIL else []
        launch_write(
            canary_buf=self._stamps[phase, half, group.kind],
            plan=self._write_plans[group.kind],
            input_ids=self._sent["tokens"],
            positions=self._sent["positions"],
            out_cache_loc=self._sent[f"slots_{group.kind}"],
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=self._tag_logs[tag],
            expected_inputs=self._expected_inputs(),
            chain_position_assert=self._active().chain_positions,
            seed_buf=seed_stamps,
            is_affine=self.layout.is_affine,
        )

    def _write_lane_bytes(self, group: GroupLayout) -> None:
        call = self._active()
        slots = self._sent[f"slots_{group.kind}"][: call.num_live_entries]
        contexts = torch.empty_like(slots)
        self._stamp_contexts(self._stamps[HEAD, "k", group.kind], slots, contexts)
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
            is_affine=self.layout.is_affine,
        )

    # ---- results

    def drain(self) -> tuple[IntArray, int]:
        self._found.copy_(self._log.write_index, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
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

    def _expected_inputs(self) -> ExpectedInputs | None:
        if "expected_tokens" not in self._sent:
            return None
        return ExpectedInputs(self._sent["expected_tokens"], self._sent["expected_positions"])

    def _tag_log(self, tag: int) -> ViolationLog:
        """A log that shares ring and counter with all tags and counts its own launches and entries."""
        return ViolationLog(
            ring=self._log.ring,
            write_index=self._log.write_index,
            slot_run_counter=self._tag_counters[tag, :1],
            kernel_run_counter=self._tag_counters[tag, 1:],
        )
