"""One benchmark: which cases run where, and what the machine is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcanary_cli import settings
from kvcanary_cli.bench.cases import Case, load_cases
from kvcanary_cli.bench.rows import NO_GPU, CpuRow, GpuRow
from kvcanary_cli.errors import UsageError
from kvcanary_cli.runtime.devices import DeviceChoice, pick_device, survey


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchResult:
    """What was measured.

    Attributes:
        choice: the device of the GPU rows; a CPU: they say that there was no GPU.
        driver: version of the NVIDIA driver, None without one.
        copy_gb_per_second: device-to-device copy in the same run, None without a GPU.
        peer: what became of `--vs-sglang`: empty when not asked for, `timed`, or why not.
    """

    cases: list[Case]
    choice: DeviceChoice
    driver: str | None
    copy_gb_per_second: float | None
    gpu_rows: list[GpuRow]
    cpu_rows: list[CpuRow]
    peer: str = ""


def run_bench(
    path: str | None, *, only: Sequence[str], replays: int, vs_sglang: bool, device: str
) -> BenchResult:
    """Time the cases of a file.

    Args:
        path: YAML file of cases; None: the packaged ones.
        only: a case runs if its name has one of these texts in it; empty: all run.
        replays: samples a time on the GPU.
        device: as `--device`.

    Raises InputError for the file, UsageError if no case is left, MissingError if the device can't be used.
    """
    cases = load_cases(path)
    chosen = [case for case in cases if not only or any(text in case.name for text in only)]
    if not chosen:
        names = "; ".join(case.name for case in cases)
        raise UsageError(f"no case has {' or '.join(only)} in its name", hint=f"the names are: {names}")
    choice = pick_device(device)
    copied, gpu_rows, peer = _on_gpu(chosen, choice, replays, vs_sglang)
    return BenchResult(
        cases=chosen,
        choice=choice,
        driver=survey().driver,
        copy_gb_per_second=copied,
        gpu_rows=gpu_rows,
        cpu_rows=_on_cpu(chosen),
        peer=peer,
    )


def _on_gpu(
    cases: list[Case], choice: DeviceChoice, replays: int, vs_sglang: bool
) -> tuple[float | None, list[GpuRow], str]:
    if choice.kind == "cpu":
        rows = [GpuRow(case=case.name, order="-", operation="-", result=NO_GPU) for case in cases]
        return None, rows, "there is no GPU to run it on" if vs_sglang else ""
    settings.prepare_triton_cache()
    # deferred: torch and triton take seconds, and a machine without a GPU needs neither
    from kvcanary_cli.bench.gpu_run import run_gpu
    from kvcanary_cli.bench.peer import peer_problem

    problem = peer_problem() if vs_sglang else ""
    copied, rows = run_gpu(cases, index=choice.index, replays=replays, vs_sglang=vs_sglang and not problem)
    return copied, rows, problem or ("timed" if vs_sglang else "")


def _on_cpu(cases: list[Case]) -> list[CpuRow]:
    settings.prepare_numba_cache()
    from kvcanary_cli.bench.cpu_run import run_cpu

    return run_cpu(cases)
