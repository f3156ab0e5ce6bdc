"""A GPU runtime that runs stretches of decode steps before the host has followed them.

One transfer takes the arrays of all steps over, one CUDA graph runs them, and the host waits once. A stretch in
which any kernel found something is undone: stamps, counters and log are as before, and its forwards run one by one.
"""

from __future__ import annotations

import numpy as np
import torch

from kvcanary_cli.kernels.consts import RING_WORDS
from kvcanary_cli.kernels.plans import WritePlan
from kvcanary_cli.runtime.calls import ForwardCall, IntArray
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.gpu import GpuRuntime
from kvcanary_cli.runtime.layout import HEAD, TAIL, GroupLayout, Layout, launch_tag, require_memory
from kvcanary_cli.runtime.layout_gpu import device_layout
from kvcanary_cli.runtime.mirrors import launch_store_cells
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.runtime.staging import Staging
from kvcanary_cli.runtime.step_graphs import StepGraphs
from kvcanary_cli.runtime.stretch import Stretch

STRETCH_STEPS = 32  # more would gain little: at 64 lanes a transfer and a wait are then 2 us a step
LENGTH_GRAIN = 512  # shortest prefix that launches are sized for; longer ones are rounded to powers of two

_WORDS_APART = 16  # every step's arrays begin at a multiple of 128 bytes, see `staging.py`


def open_gpu(
    device: DeviceChoice, layout: Layout, table: PageTable, swa_map: IntArray, expected: ExpectedTokens
) -> AheadRuntime:
    """Memory of one run on a GPU.

    Raises:
        MissingError: the run does not fit the GPU's free memory.
    """
    torch.cuda.set_device(device.index)
    free, _total = torch.cuda.mem_get_info(device.index)
    require_memory(device_layout(layout), free, device.label)
    return AheadRuntime(layout, table, swa_map, expected, torch_device=device.label)


class AheadRuntime(GpuRuntime):
    """One run on a GPU; arguments as `GpuRuntime` takes them.

    Attributes:
        max_stretch: most steps of a stretch; 0 where bytes are written, as the host has a part in that.
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
        super().__init__(layout, table, swa_map, expected, torch_device=torch_device)
        self.max_stretch = 0 if layout.sources else STRETCH_STEPS
        self._stretch: Stretch | None = None
        self._stretch_staging = Staging(self.device)
        self._change_staging = Staging(self.device)
        self._stretch_graphs = StepGraphs(self.device, capture_after=1)
        self._before: dict[tuple[str, str, str], torch.Tensor] = {}
        self._stretch_sent: dict[str, torch.Tensor] = {}
        self._counters_before = self._tag_counters.clone()
        self._steps_ahead = 0
        self._was_ahead = False

    # ---- forwards that ran already

    def forward(self, call: ForwardCall) -> None:
        self._was_ahead = self._steps_ahead > 0
        if not self._was_ahead:
            super().forward(call)
            return
        self._steps_ahead -= 1
        if not self._steps_ahead and self.table.changed is not None:
            self.table.changed.clear()  # the device had these cells before the host filled them

    def drain(self) -> tuple[IntArray, int]:
        if not self._was_ahead:
            return super().drain()
        self._was_ahead = False
        return np.zeros((0, RING_WORDS), np.int64), 0

    # ---- stretches

    def start_stretch(self, stretch: Stretch) -> None:
        """Enqueue all steps of a stretch; `end_stretch` waits for them."""
        self._stretch = stretch
        self._send_stretch(stretch)
        self._counters_before.copy_(self._tag_counters)
        for (phase, half, kind), stamps in self._stamps.items():
            self._before[phase, half, kind] = stamps.index_select(0, self._stretch_sent[f"slots_{kind}"])
        longest = max(LENGTH_GRAIN, 1 << int(stretch.prefix[-1].max()).bit_length())
        shape = (
            self._stretch_staging.shape,
            self._stretch_staging.generation,
            stretch.num_steps,
            longest,
            stretch.chain_positions,
        )
        self._stretch_graphs.run(shape, lambda: self._launch_stretch(stretch, longest))
        self._found.copy_(self._log.write_index, non_blocking=True)

    def end_stretch(self) -> bool:
        """Whether nothing was found, so that the stretch's forwards are done; else it is undone."""
        stretch, self._stretch = self._stretch, None
        if self._stream is not None:
            self._stream.synchronize()
        if stretch is None:
            return False
        if int(self._found[0]):
            self._undo()
            return False
        self._steps_ahead = stretch.num_steps
        for group in self.layout.groups:
            self._count_stretch(stretch, group)
        return True

    def _send_stretch(self, stretch: Stretch) -> None:
        lanes = stretch.num_lanes
        arrays = {
            "rows": stretch.rows,
            "offsets": np.arange(lanes + 1),
            "num_lanes": np.array([lanes]),
            "prefix": _apart(stretch.prefix),
            "tokens": _apart(stretch.tokens),
        }
        for kind, slots in stretch.slots.items():
            arrays[f"slots_{kind}"] = _apart(slots)
            arrays[f"seeds_{kind}"] = _apart(np.concatenate((stretch.seeds[kind][None], slots[:-1])))
        if stretch.valid_lens is not None:
            arrays["valid_lens"] = stretch.valid_lens
        self._stretch_sent = self._stretch_staging.send(arrays)
        changes = {
            "stretch_cells": stretch.cells(self.table.width),
            "stretch_values": stretch.full_slots.reshape(-1),
        }
        sent = self._change_staging.send({**self._mirrors.take_changes(), **changes})
        self._mirrors.store(sent)
        launch_store_cells(
            cells=sent["stretch_cells"],
            values=sent["stretch_values"],
            out_memory=self._mirrors.table.view(-1),
        )

    def _launch_stretch(self, stretch: Stretch, longest_prefix: int) -> None:
        """All steps, on the arrays that were sent."""
        half = self.layout.halves[0]
        self._longest_prefix, self._longest_lane = longest_prefix, 1
        self._call = _first_step(stretch)
        for step in range(stretch.num_steps):
            self._sent = self._step_arrays(stretch, step)
            for group in self.layout.groups:
                self._write_plans[group.kind] = WritePlan(
                    write_offsets=self._sent["offsets"],
                    write_seed_slot_indices=self._sent[f"seeds_{group.kind}"],
                    write_num_valid_reqs=self._sent["num_lanes"].view(torch.int32)[:1],
                    verify_offsets=self._sent["offsets"],
                )
                self._verify(group, HEAD, half, launch_tag(HEAD, half, group.kind))
                self._write(group, HEAD, half, launch_tag(HEAD, half, group.kind))
        self._call = None
        self._planned_from.clear()

    def _step_arrays(self, stretch: Stretch, step: int) -> dict[str, torch.Tensor]:
        """Arrays of one step, as a forward of its own would have sent them."""
        lanes = stretch.num_lanes
        start = step * _room(lanes)
        arrays = {
            name: array
            if name in ("rows", "offsets", "num_lanes", "valid_lens")
            else array[start : start + lanes]
            for name, array in self._stretch_sent.items()
        }
        arrays["positions"] = arrays["prefix"]
        return arrays

    def _undo(self) -> None:
        for (phase, half, kind), before in self._before.items():
            self._stamps[phase, half, kind].index_copy_(0, self._stretch_sent[f"slots_{kind}"], before)
        self._tag_counters.copy_(self._counters_before)
        self._log.write_index.zero_()

    def _count_stretch(self, stretch: Stretch, group: GroupLayout) -> None:
        prefix = np.minimum(stretch.prefix, group.window) if group.window > 0 else stretch.prefix
        entries, written, steps = int(prefix.sum()), stretch.prefix.size, stretch.num_steps
        for phase in (HEAD, TAIL):
            for half in self.layout.halves:
                tag = launch_tag(phase, half, group.kind)
                self.counters.planned_launches[tag] += 2 * steps
                self.counters.planned_entries[tag] += entries + written


def _room(num_lanes: int) -> int:
    """Words that one step's array takes."""
    return -(-num_lanes // _WORDS_APART) * _WORDS_APART


def _apart(steps: IntArray) -> IntArray:
    """[num_steps * room] int64: every step's values from an aligned place on, zeros between them."""
    num_steps, num_lanes = steps.shape
    out = np.zeros((num_steps, _room(num_lanes)), np.int64)
    out[:, :num_lanes] = steps
    return out.reshape(-1)


def _first_step(stretch: Stretch) -> ForwardCall:
    """The forward that launches ask for what all steps have in common."""
    return ForwardCall(
        rows=stretch.rows,
        prefix=stretch.prefix[0],
        lens=np.ones(stretch.num_lanes, np.int64),
        tokens=stretch.tokens[0],
        positions=stretch.prefix[0],
        slots=stretch.full_slots[0],
        valid_lens=stretch.valid_lens,
        chain_positions=stretch.chain_positions,
    )
