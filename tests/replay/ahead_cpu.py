"""A CPU runtime that runs stretches ahead: what is not the GPU's own in them, at the speed of Numba."""

from __future__ import annotations

import copy

import numpy as np

from kvcanary_cli.kernels.consts import RING_WORDS
from kvcanary_cli.runtime.calls import ForwardCall, IntArray
from kvcanary_cli.runtime.cpu import CpuRuntime
from kvcanary_cli.runtime.stretch import Stretch


class CpuAhead(CpuRuntime):
    """Runs each step of a stretch as a forward of its own, on a table that is filled for the stretch alone.

    Attributes:
        stretches: steps of each stretch, and whether nothing was found in it.
    """

    max_stretch = 16

    def __init__(self, *masters) -> None:
        super().__init__(*masters)
        self.stretches: list[tuple[int, bool]] = []
        self._steps_ahead = 0
        self._was_ahead = False

    def start_stretch(self, stretch: Stretch) -> None:
        before = self._counted()
        stamps = {key: value.copy() for key, value in self.stamps.items()}
        cells = stretch.cells(self.table.width)
        entries = self.table.entries[cells].copy()
        self.table.entries[cells] = stretch.full_slots.reshape(-1)
        found = 0
        for step in range(stretch.num_steps):
            super().forward(self._call_of(stretch, step))
            found += super().drain()[0].shape[0]
        self.table.entries[cells] = entries
        self.stretches.append((stretch.num_steps, not found))
        self._steps_ahead = 0 if found else stretch.num_steps
        if found:
            for key, value in stamps.items():
                self.stamps[key][:] = value
            self._count_as(before)

    def end_stretch(self) -> bool:
        return self.stretches[-1][1]

    def forward(self, call: ForwardCall) -> None:
        self._was_ahead = self._steps_ahead > 0
        if self._was_ahead:
            self._steps_ahead -= 1
        else:
            super().forward(call)

    def drain(self) -> tuple[IntArray, int]:
        if not self._was_ahead:
            return super().drain()
        self._was_ahead = False
        return np.zeros((0, RING_WORDS), np.int64), 0

    def _call_of(self, stretch: Stretch, step: int) -> ForwardCall:
        return ForwardCall(
            rows=stretch.rows,
            prefix=stretch.prefix[step],
            lens=np.ones(stretch.num_lanes, np.int64),
            tokens=stretch.tokens[step],
            positions=stretch.prefix[step],
            slots=stretch.full_slots[step],
            valid_lens=stretch.valid_lens,
            chain_positions=stretch.chain_positions,
        )

    def _counted(self) -> tuple:
        logs = [(log.kernel_run_counter.copy(), log.slot_run_counter.copy()) for log in self._tag_logs]
        return copy.deepcopy(self.counters), logs

    def _count_as(self, counted: tuple) -> None:
        self.counters, logs = counted
        for log, (launches, entries) in zip(self._tag_logs, logs, strict=True):
            log.kernel_run_counter[:], log.slot_run_counter[:] = launches, entries
