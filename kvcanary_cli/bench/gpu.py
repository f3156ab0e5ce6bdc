"""One case in GPU memory, and the launches that are timed on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvcanary_cli.bench.cases import Case
from kvcanary_cli.bench.inputs import Inputs
from kvcanary_cli.kernels.affine import affine_work_words, launch_write_affine
from kvcanary_cli.kernels.consts import HashMode, LaunchTag
from kvcanary_cli.kernels.fused import launch_verify_table
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.plan import launch_plan
from kvcanary_cli.kernels.plans import VerifyPlan, WritePlan
from kvcanary_cli.kernels.sources import KvSource
from kvcanary_cli.kernels.sweep_hash import launch_sweep_hash
from kvcanary_cli.kernels.targets import Target, Targets
from kvcanary_cli.kernels.verify import launch_verify
from kvcanary_cli.kernels.write import launch_write
from kvcanary_cli.kernels.write_all import launch_write_all

RING_ROWS = 4096

Launch = Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
    """HEAD and TAIL of one case: HEAD has no byte sources, as in the server."""

    stamps: tuple[torch.Tensor, torch.Tensor]
    logs: tuple[ViolationLog, ViolationLog]
    sources: tuple[list[KvSource], list[KvSource]]

    @property
    def targets(self) -> tuple[Target, Target]:
        """The buffers as one launch takes them."""
        tags = (LaunchTag.HEAD_K_FULL, LaunchTag.TAIL_K_FULL)
        head, tail = (
            Target(canary_buf=stamps, sources=sources, hash_mode=HashMode.ALL, launch_tag=tag, log=log)
            for stamps, sources, log, tag in zip(self.stamps, self.sources, self.logs, tags, strict=True)
        )
        return head, tail


class GpuCase:
    """Tensors of one case.

    Args:
        inputs: arrays of the case; `is_affine` says which chain its stamps hold.
        device: where everything is put.
    """

    def __init__(self, case: Case, inputs: Inputs, device: torch.device, *, is_affine: bool = False) -> None:
        self.case = case
        self.inputs = inputs
        self.device = device
        self.is_affine = is_affine
        names = ("table", "rows", "prefix_lens", "extend_lens", "tokens", "positions", "slots")
        self.sent: dict[str, torch.Tensor] = {name: self.put(getattr(inputs, name)) for name in names}
        self.plan = WritePlan.allocate(case.lanes, device)
        self.plan.write_offsets.copy_(self.put(inputs.write_offsets))
        self.plan.write_seed_slot_indices.copy_(self.put(inputs.seeds))
        self.plan.write_num_valid_reqs.fill_(case.lanes)
        self.verify_plan = VerifyPlan.allocate(max(case.num_verified, 1), device)
        self.plan_of_two_steps = WritePlan.allocate(case.lanes, device)
        self.kv = [self.put(source) for source in inputs.kv]
        self.buffers = self.new_buffers(inputs.stamps)
        self.targets = Targets(self.buffers.targets)
        self.head_only = Targets(self.buffers.targets[:1])
        self.tail_only = Targets(self.buffers.targets[1:])
        num_words = affine_work_words(case.num_written, case.lanes)
        self.work = torch.zeros(
            (2, max(num_words, case.num_written + case.lanes)), dtype=torch.int64, device=device
        )
        self.hashes = torch.zeros(len(inputs.stamps), dtype=torch.int64, device=device)

    def put(self, array: Any) -> torch.Tensor:
        """An array on the case's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, copy=True)

    def new_buffers(self, stamps: Any) -> Buffers:
        """HEAD and TAIL with these stamps; HEAD's byte hashes are 0."""
        head = self.put(stamps)
        head[:, 3] = 0
        sources = [KvSource(kv, 1, kv.shape[1], kv.shape[1]) for kv in self.kv]
        logs = (ViolationLog.allocate(RING_ROWS, self.device), ViolationLog.allocate(RING_ROWS, self.device))
        return Buffers(stamps=(head, self.put(stamps)), logs=logs, sources=([], sources))

    @property
    def timed_targets(self) -> Targets:
        """The one buffer whose verification is timed: TAIL where there are bytes to hash."""
        return self.tail_only if self.kv else self.head_only

    def launches(self) -> dict[str, Launch]:
        """Name of each operation and what runs it."""
        if self.is_affine:
            return {"verify_affine": self.verify_table, "write_affine": self.write_affine}
        launches: dict[str, Launch] = {
            "plan_verify": self.plan_and_verify,
            "verify": self.verify_table,
            "verify_both": self.verify_both,
            "write_each": self.write_each,
            "write": self.write_all,
        }
        if self.kv:
            launches["sweep_hash"] = self.sweep_hash
        return launches

    def moved_bytes(self, operation: str) -> int:
        """Fewest bytes that an operation has to read and write."""
        verified, written = self.case.num_verified, self.case.num_written
        hashed = self.case.num_sources * self.case.source_bytes
        amounts = {
            "plan_verify": verified * (4 + 32 + 32 + 64 + hashed),
            "verify": verified * (4 + 32 + hashed),
            "verify_both": verified * (4 + 64 + hashed),
            "write_each": written * (2 * 24 + 64 + hashed),
            "write": written * (24 + 64 + hashed),
            "verify_affine": verified * (4 + 32 + hashed),
            "write_affine": written * (24 + 64 + hashed),
            "sweep_hash": len(self.inputs.stamps) * (hashed + 8),
        }
        return amounts[operation]

    def plan_and_verify(self) -> None:
        """The two steps that a plan in memory takes."""
        launch_plan(
            verify_plan_out=self.verify_plan,
            write_plan_out=self.plan_of_two_steps,
            req_pool_indices=self.sent["rows"],
            prefix_lens=self.sent["prefix_lens"],
            extend_seq_lens=self.sent["extend_lens"],
            req_to_token=self.sent["table"],
            swa_window_size=0,
            full_to_swa=None,
            expected_tokens=None,
            expected_valid_lens=None,
            token_id_vs_position_offset=0,
        )
        target = self.timed_targets.items[0]
        launch_verify(
            canary_buf=target.canary_buf,
            plan=self.verify_plan,
            sources=target.sources,
            hash_mode=target.hash_mode,
            launch_tag=target.launch_tag,
            log=target.log,
            check_expected_token=False,
        )

    def verify_table(self, **launch: Any) -> None:
        """Verification of one buffer straight from the page table."""
        self._verify(self.timed_targets, **launch)

    def verify_both(self, **launch: Any) -> None:
        """Verification of HEAD and TAIL in one launch."""
        self._verify(self.targets, **launch)

    def _verify(self, targets: Targets, **launch: Any) -> None:
        launch_verify_table(
            targets=targets,
            req_pool_indices=self.sent["rows"],
            prefix_lens=self.sent["prefix_lens"],
            req_to_token=self.sent["table"],
            swa_window_size=0,
            full_to_swa=None,
            expected_tokens=None,
            expected_valid_lens=None,
            token_id_vs_position_offset=0,
            longest_prefix=self.case.prefix,
            is_affine=self.is_affine,
            **launch,
        )

    def write_each(self) -> None:
        """Stamps by one launch a buffer."""
        for target in self.targets.items:
            launch_write(
                canary_buf=target.canary_buf,
                plan=self.plan,
                input_ids=self.sent["tokens"],
                positions=self.sent["positions"],
                out_cache_loc=self.sent["slots"],
                sources=target.sources,
                hash_mode=target.hash_mode,
                launch_tag=target.launch_tag,
                log=target.log,
                expected_inputs=None,
                chain_position_assert=True,
            )

    def write_all(self, **launch: Any) -> None:
        """Stamps of both buffers at once."""
        launch_write_all(
            targets=self.targets,
            plan=self.plan,
            input_ids=self.sent["tokens"],
            positions=self.sent["positions"],
            out_cache_loc=self.sent["slots"],
            expected_inputs=None,
            chain_position_assert=True,
            longest_lane=self.case.extend,
            chains=self.work,
            **launch,
        )

    def write_affine(self, **launch: Any) -> None:
        """Stamps of both buffers with affine chains."""
        launch_write_affine(
            targets=self.targets,
            plan=self.plan,
            input_ids=self.sent["tokens"],
            positions=self.sent["positions"],
            out_cache_loc=self.sent["slots"],
            expected_inputs=None,
            chain_position_assert=True,
            work=self.work,
            **launch,
        )

    def sweep_hash(self, **launch: Any) -> None:
        """The byte hash of sweeps over all slots."""
        launch_sweep_hash(sources=self.buffers.sources[1], out_hashes=self.hashes, **launch)
