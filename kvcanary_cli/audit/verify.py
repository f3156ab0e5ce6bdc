"""One stamp buffer of a dump against its entries, by the kernels that a server's stamps were made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcanary_cli.audit.claims import Entries, IntArray
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.consts import RING_SLOT, STAMP_WORDS, WORD_KV_HASH, HashMode, LaunchTag
from kvcanary_cli.runtime.devices import DeviceChoice

MAX_CLAIMS = 64
"""Entries of one slot that are verified; more of them are counted as not checked."""

RING_ROWS = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferResult:
    """What the kernels found in one buffer.

    Attributes:
        launch: name of the launch tag.
        entries: [k] entries that failed, ascending; rows: [k, 8] what the kernel says of each.
        num_checked: entries that were looked at.
        stamps: [slots, 4] int64, for what is to be found out about the failed ones.
    """

    launch: str
    entries: IntArray
    rows: IntArray
    num_checked: int
    stamps: IntArray


def verify_buffer(
    stamps: np.ndarray,
    entries: Entries,
    *,
    sources: Sequence[KvSource],
    hash_mode: HashMode | None,
    launch: str,
    is_affine: bool,
    device: DeviceChoice,
) -> BufferResult:
    """Verify all entries against one buffer.

    Args:
        hash_mode: None: the bytes are not there, so what the stamps say of them is not compared.
    """
    if hash_mode is None:
        stamps = np.array(stamps[:, :STAMP_WORDS])
        stamps[:, WORD_KV_HASH] = 0
    kernel = _Gpu(device) if device.kind == "cuda" else _Cpu()
    found, rows, num_checked = [], [], 0
    checked = np.flatnonzero(entries.is_checked & (entries.occurrence < MAX_CLAIMS))
    turns = entries.occurrence[checked]
    memory = kernel.put(stamps, sources)
    # a row of the log names a slot: with each slot once in a launch, it names the entry too
    for turn in range(int(turns.max(initial=-1)) + 1):
        chosen = checked[turns == turn]
        got = kernel.verify(memory, entries, chosen, hash_mode or HashMode.NONE, LaunchTag[launch], is_affine)
        got = got[np.argsort(got[:, RING_SLOT], kind="stable")]
        at = chosen[np.searchsorted(entries.slot[chosen], got[:, RING_SLOT])]
        found.append(at)
        rows.append(got)
        num_checked += chosen.size
    failed = np.concatenate(found or [np.zeros(0, np.int64)])
    order = np.argsort(failed, kind="stable")
    all_rows = np.concatenate(rows or [np.zeros((0, 8), np.int64)])
    return BufferResult(
        launch=launch,
        entries=failed[order],
        rows=all_rows[order],
        num_checked=num_checked,
        stamps=np.ascontiguousarray(stamps[:, :STAMP_WORDS]),
    )


class _Cpu:
    """Numba."""

    def put(self, stamps: np.ndarray, sources: Sequence[KvSource]) -> tuple[Any, list[KvSource]]:
        """Stamps and sources where the kernel reads them."""
        return stamps, list(sources)

    def modules(self) -> tuple[Any, Any, Any]:
        """Launcher, plan and log."""
        from kvcanary_cli.kernels.log_cpu import ViolationLog
        from kvcanary_cli.kernels.plans_cpu import VerifyPlan
        from kvcanary_cli.kernels.verify_cpu import verify_cpu

        return verify_cpu, VerifyPlan, ViolationLog

    device: Any = "cpu"

    def array(self, values: IntArray) -> Any:
        """Integers where the kernel reads them."""
        return values

    def verify(
        self,
        memory: tuple[Any, list[KvSource]],
        entries: Entries,
        chosen: IntArray,
        hash_mode: HashMode,
        tag: LaunchTag,
        is_affine: bool,
    ) -> IntArray:
        """[violations, 8] int64, all of them: a log that was too short is made long enough and filled again."""
        launch, plans, logs = self.modules()
        plan = plans.allocate(max(chosen.size, 1), self.device)
        for name, values in (
            ("verify_slot_indices", entries.slot),
            ("verify_expected_tokens", entries.token),
            ("verify_expected_positions", entries.position),
            ("verify_prev_slot_indices", entries.predecessor),
        ):
            getattr(plan, name)[: chosen.size] = self.array(values[chosen])
        plan.verify_num_valid[0] = chosen.size
        plan.enable[0] = 1
        ring_rows = RING_ROWS
        while True:
            log = logs.allocate(ring_rows, self.device)
            launch(
                canary_buf=memory[0],
                plan=plan,
                sources=memory[1],
                hash_mode=hash_mode,
                launch_tag=tag,
                log=log,
                check_expected_token=True,
                is_affine=is_affine,
            )
            if log.count <= ring_rows:
                return self.fetch(log.rows())
            ring_rows = log.count

    def fetch(self, rows: Any) -> IntArray:
        """Rows of the log on the host."""
        return np.array(rows)


class _Gpu(_Cpu):
    """Triton, by the launchers that a server's tensors would go to."""

    def __init__(self, choice: DeviceChoice) -> None:
        import torch  # deferred: takes seconds, and only a GPU needs it

        self._torch = torch
        self.device = torch.device(choice.label)

    def put(self, stamps: np.ndarray, sources: Sequence[KvSource]) -> tuple[Any, list[KvSource]]:
        """Copies on the device."""
        moved = [
            KvSource(self.array(s.tensor), s.page_size, s.num_bytes_per_token, s.read_bytes) for s in sources
        ]
        return self.array(stamps), moved

    def modules(self) -> tuple[Any, Any, Any]:
        """Launcher, plan and log."""
        from kvcanary_cli.kernels.log import ViolationLog
        from kvcanary_cli.kernels.plans import VerifyPlan
        from kvcanary_cli.kernels.verify import launch_verify

        return launch_verify, VerifyPlan, ViolationLog

    def array(self, values: Any) -> Any:
        """A copy on the device."""
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def fetch(self, rows: Any) -> IntArray:
        """Rows of the log on the host."""
        found: IntArray = rows.cpu().numpy().copy()
        return found
