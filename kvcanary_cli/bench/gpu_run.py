"""Time every operation on every case on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kvcanary_cli.bench.cases import ORDERS, Case
from kvcanary_cli.bench.equality import differences
from kvcanary_cli.bench.gpu import GpuCase, Launch
from kvcanary_cli.bench.inputs import make_inputs
from kvcanary_cli.bench.peer import PeerCase
from kvcanary_cli.bench.rows import TIMED, WRONG, GpuRow
from kvcanary_cli.bench.timing import copy_bandwidth, time_graph

# slots of a prefill are written one chain after another: their order hardly shows
ORDERED = ("plan_verify", "verify", "verify_both")


def run_gpu(
    cases: Sequence[Case],
    *,
    index: int,
    replays: int,
    vs_sglang: bool,
) -> tuple[float, list[GpuRow]]:
    """Copy bandwidth in GB/s, and the rows.

    Args:
        index: number of the GPU.
        replays: samples a time.
        vs_sglang: whether the peer's kernels are timed too; the caller has asked `peer.peer_problem`.
    """
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    bandwidth = copy_bandwidth(device)
    rows: list[GpuRow] = []
    for case in cases:
        for order in ORDERS if case.num_verified else ORDERS[:1]:
            rows += _case_rows(case, order, device, replays, vs_sglang)
    return bandwidth, rows


def _case_rows(
    case: Case, order: str, device: torch.device, replays: int, vs_sglang: bool
) -> Iterator[GpuRow]:
    gpu_case = GpuCase(case, make_inputs(case, order), device)
    for operation, launch in gpu_case.launches().items():
        if order == ORDERS[0] or operation in ORDERED:
            yield _row(gpu_case, order, operation, launch, replays)
    if vs_sglang and order == ORDERS[0]:
        peer = PeerCase(gpu_case)
        yield _row(gpu_case, order, "plan_verify", peer.plan_and_verify, replays, prefix="sglang_")
        yield _row(gpu_case, order, "write_each", peer.write_each, replays, prefix="sglang_")
    if order == ORDERS[0] and not gpu_case.kv:
        affine = GpuCase(case, make_inputs(case, order, is_affine=True), device, is_affine=True)
        for operation, launch in affine.launches().items():
            yield _row(affine, order, operation, launch, replays)


def _row(
    gpu_case: GpuCase, order: str, operation: str, launch: Launch, replays: int, *, prefix: str = ""
) -> GpuRow:
    """One row; `prefix` tells whose kernels they are, empty for our own."""
    name, problem = gpu_case.case.name, differences(gpu_case, operation, launch)
    if problem:
        return GpuRow(case=name, order=order, operation=prefix + operation, result=WRONG, problem=problem)
    timing = time_graph(launch, replays=replays)
    return GpuRow(
        case=name,
        order=order,
        operation=prefix + operation,
        result=TIMED,
        median_us=timing.median_us,
        p20_us=timing.p20_us,
        p80_us=timing.p80_us,
        moved_bytes=gpu_case.moved_bytes(operation),
    )
