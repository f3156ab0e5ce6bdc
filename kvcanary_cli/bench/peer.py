"""SGLang's own canary kernels on the same inputs, where a package `sglang` has them (0.5.20 and newer)."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import torch

from kvcanary_cli.bench.gpu import GpuCase
from kvcanary_cli.kernels.consts import HashMode

_MODULE = "sglang.kernels.ops.kv_canary"
MAX_LANES = 4096  # the peer refuses to plan more in one launch


def peer_problem() -> str:
    """Why the peer's kernels can't be run here; empty when they can."""
    try:
        for name in ("plan.api", "verify", "write"):
            importlib.import_module(f"{_MODULE}.{name}")
    except Exception as error:  # a foreign package may fail in any way; that is the answer
        return f"{_MODULE} can't be imported: {type(error).__name__}: {error}"
    return ""


class PeerCase:
    """The peer's plan, verify and write on the tensors of a case.

    A case of more than `MAX_LANES` lanes takes a planning launch for each `MAX_LANES` of them. Verification and
    writing are one launch a buffer all the same.
    """

    def __init__(self, gpu_case: GpuCase) -> None:
        self._case = gpu_case
        self._plan_module = importlib.import_module(f"{_MODULE}.plan.api")
        self._verify_module = importlib.import_module(f"{_MODULE}.verify")
        self._write_module = importlib.import_module(f"{_MODULE}.write")
        self._consts = importlib.import_module(f"{_MODULE}.consts")
        case, device = gpu_case.case, gpu_case.device
        self._verify_plan = self._verify_module.VerifyPlan.allocate(
            verify_capacity=max(case.num_verified, 1), device=device
        )
        self._write_plan = self._write_module.WritePlan.allocate(write_req_capacity=case.lanes, device=device)
        whole = (slice(0, case.lanes), self._verify_plan, self._write_plan)
        self._parts = [whole] if case.lanes <= MAX_LANES else self._split()
        self._contexts = [self._context(target) for target in gpu_case.targets.items]
        self.plan()
        self._verify_plan.verify_num_valid.item()  # waits: the operations are timed on another stream

    def plan(self) -> None:
        """The peer's plan of verify and write entries."""
        sent = self._case.sent
        for lanes, verify_plan, write_plan in self._parts:
            self._plan_module.launch_canary_plan_kernels(
                verify_plan_out=verify_plan,
                write_plan_out=write_plan,
                req_pool_indices=sent["rows"][lanes],
                prefix_lens=sent["prefix_lens"][lanes],
                extend_seq_lens=sent["extend_lens"][lanes],
                req_to_token=sent["table"],
                swa_window_size=0,
                full_to_swa_index_mapping=None,
                verify_capacity=len(verify_plan.verify_slot_indices),
                req_to_verify_expected_tokens=None,
                req_to_verify_expected_tokens_valid_lens=None,
                kv_token_id_vs_position_offset=0,
            )

    def plan_and_verify(self) -> None:
        """Plan, then verification of the buffer whose verification is timed."""
        self.plan()
        self._verify_module.launch_canary_verify_kernel(
            context=self._contexts[1 if self._case.kv else 0],
            plan=self._verify_plan,
            check_verify_expected_token=False,
        )

    def write_each(self) -> None:
        """Stamps of HEAD, then of TAIL."""
        sent = self._case.sent
        for context in self._contexts:
            self._write_module.launch_canary_write_kernel(
                context=context,
                plan=self._write_plan,
                input_ids=sent["tokens"],
                positions=sent["positions"],
                out_cache_loc=sent["slots"],
                enable_write_input_assert=False,
                expected_input_tokens=None,
                expected_input_positions=None,
            )

    def _split(self) -> list[tuple[slice, Any, Any]]:
        """Lanes of each planning launch, and the plans that it fills: verify entries end up in the whole plan.

        The counts, and the offsets of what is written, are each launch's own; the whole plans get the case's.
        """
        case, device, right = self._case.case, self._case.device, self._case.plan
        self._verify_plan.verify_num_valid.fill_(case.num_verified)
        self._write_plan.write_offsets.copy_(right.write_offsets)
        self._write_plan.write_seed_slot_indices.copy_(right.write_seed_slot_indices)
        self._write_plan.write_num_valid_reqs.copy_(right.write_num_valid_reqs)
        columns = ("slot_indices", "expected_tokens", "expected_positions", "prev_slot_indices")
        names = [f"verify_{column}" for column in columns]
        parts = []
        for first in range(0, case.lanes, MAX_LANES):
            lanes = slice(first, min(first + MAX_LANES, case.lanes))
            entries = slice(lanes.start * case.prefix, max(lanes.stop * case.prefix, 1))
            verify_plan = replace(
                self._verify_module.VerifyPlan.allocate(verify_capacity=1, device=device),
                **{name: getattr(self._verify_plan, name)[entries] for name in names},
            )
            write_plan = self._write_module.WritePlan.allocate(
                write_req_capacity=lanes.stop - lanes.start, device=device
            )
            parts.append((lanes, verify_plan, write_plan))
        return parts

    def _context(self, target: Any) -> Any:
        mode = HashMode.ALL if target.sources else HashMode.NONE
        return self._verify_module.VerifyOrWriteContext(
            canary_buf=target.canary_buf.view(torch.uint8),
            kernel_kind=self._verify_module.CanaryLaunchTag(int(target.launch_tag)),
            violation_ring=target.log.ring,
            violation_write_index=target.log.write_index,
            slot_run_counter=target.log.slot_run_counter,
            kernel_run_counter=target.log.kernel_run_counter,
            real_kv_sources=tuple(
                self._verify_module.RealKvSource(
                    tensor=source.tensor,
                    page_size=source.page_size,
                    num_bytes_per_token=source.num_bytes_per_token,
                    read_bytes=source.read_bytes,
                )
                for source in target.sources
            ),
            real_kv_hash_mode=self._consts.RealKvHashMode(int(mode)),
            enable_chain_position_assert=torch.ones(1, dtype=torch.int32, device=self._case.device),
        )
