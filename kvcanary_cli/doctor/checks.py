"""The kernels run against the vectors, each backend in a process of its own.

Triton decides at import whether it interprets, and a compiler that crashes takes its process with it;
neither may happen to the process that writes the report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcanary_cli import settings
from kvcanary_cli.doctor.facts import FAIL, OK, SKIP, WARN, Row
from kvcanary_cli.errors import InputError, MissingError, UsageError, nearest
from kvcanary_cli.exits import Exit
from kvcanary_cli.report.text import count, name
from kvcanary_cli.runtime.devices import DeviceChoice, is_importable

BACKENDS = {"reference": ("numpy",), "numba": ("numpy", "numba"), "triton": ("numpy", "torch", "triton")}
"""Backends and the packages each one imports."""

TIMEOUT_SECONDS = 900

MAX_FAILURES = 3
"""Differing vectors that a row names; the JSON has all."""

PACKAGED_VECTORS = Path(__file__).parent.parent / "kernels" / "vectors"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRun:
    """Outcome of one backend.

    Args:
        device: `cpu`, `interpreter` or `cuda:N`.
        failures: one line per vector that differs.
        error: why the run ended without a result; empty if it has one.
    """

    backend: str
    device: str
    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRun:
    """Outcome of compiling every kernel for every target without a GPU."""

    kernels: list[str]
    targets: list[str]
    errors: list[str]


def select_backends(asked: Sequence[str]) -> list[str]:
    """The backends to run: those asked for, or all whose packages are here.

    Raises:
        UsageError: a name that is no backend.
        MissingError: a backend was asked for and one of its packages can't be imported.
    """
    for backend in asked:
        if backend not in BACKENDS:
            close = nearest(backend, BACKENDS)
            hint = f"`--backend {close}`" if close else None
            raise UsageError(f"`--backend` is {backend!r}, known are {', '.join(BACKENDS)}", hint=hint)
        for package in BACKENDS[backend]:
            if not is_importable(package):
                raise MissingError(
                    f"`--backend {backend}` needs {package}, which is not installed",
                    hint=f"`pip install {package}`",
                )
    wanted = list(dict.fromkeys(asked)) or list(BACKENDS)
    return [backend for backend in wanted if all(is_importable(package) for package in BACKENDS[backend])]


def vectors_folder(asked: str | None) -> Path:
    """The folder of vectors: the one asked for, or the one in the package.

    Raises: InputError if it is no folder or holds no vectors.
    """
    folder = PACKAGED_VECTORS if asked is None else Path(asked)
    if not folder.is_dir():
        raise InputError("`--vectors` needs a folder of *.npz files, this is none", where=name(folder))
    if not any(folder.glob("*.npz")):
        raise InputError("the folder holds no vectors: no file ends in .npz", where=name(folder))
    return folder


def run_all(
    folder: Path, backends: Sequence[str], choice: DeviceChoice
) -> tuple[list[VectorRun], CompileRun | None]:
    """Run the backends and, where Triton is among them, the compile check; two processes at a time.

    Raises: InputError for a file in the folder that is no vector.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        # the slowest first, so that it overlaps with all others
        order = sorted(backends, key=lambda backend: backend != "triton")
        runs = {backend: pool.submit(_run_vectors, folder, backend, choice) for backend in order}
        compiling = pool.submit(_run_compile) if "triton" in backends else None
        return [runs[backend].result() for backend in backends], compiling.result() if compiling else None


def _run_vectors(folder: Path, backend: str, choice: DeviceChoice) -> VectorRun:
    device = "cpu"
    if backend == "triton":
        device = choice.label if choice.kind == "cuda" else "interpreter"
    records, error, code = _run_module(
        "kvcanary_cli.kernels.vectors",
        str(folder.resolve()),
        backend,
        environment=settings.child_environment(
            interpret=device == "interpreter",
            gpu_index=choice.index if device.startswith("cuda") else None,
        ),
    )
    if code == Exit.USAGE:
        raise InputError(error)
    if not records:
        return VectorRun(backend=backend, device=device, error=error)
    last = records[-1]
    return VectorRun(
        backend=backend,
        device=device,
        passed=int(last["passed"]),
        failed=int(last["failed"]),
        failures=[_one_line(failure) for failure in last["failures"]],
    )


def _run_compile() -> CompileRun:
    environment = settings.child_environment(interpret=False)
    records, error, _ = _run_module("kvcanary_cli.kernels.compile_check", environment=environment)
    errors = [f"{r['kernel']} for {r['target']}: {_one_line(r['error'])}" for r in records if not r["ok"]]
    if not records:
        errors = [error]
    return CompileRun(
        kernels=list(dict.fromkeys(r["kernel"] for r in records)),
        targets=list(dict.fromkeys(r["target"] for r in records)),
        errors=errors,
    )


def _run_module(
    module: str, *arguments: str, environment: dict[str, str]
) -> tuple[list[dict[str, Any]], str, int | None]:
    """The JSON objects a module prints, what to say if there are none, and its exit code (None: stopped)."""
    # -P: a folder that happens to hold a numpy.py must not change what is checked
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"no result after {TIMEOUT_SECONDS} s", None
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    said = done.stderr.strip().splitlines()
    error = _one_line(said[-1]) if said else f"ended with exit code {done.returncode}, no result"
    return records, error, done.returncode


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def vector_rows(runs: Sequence[VectorRun], choice: DeviceChoice) -> list[Row]:
    """A row per backend, and one for the device that was or was not used."""
    rows = [_vector_row(run) for run in runs]
    if choice.kind == "cpu":
        rows.append(Row(name="on device", status=SKIP, text="needs a GPU"))
    elif not any(run.device == choice.label for run in runs):
        rows.append(Row(name="on device", status=SKIP, text="the triton backend was not run"))
    return rows


def _vector_row(run: VectorRun) -> Row:
    label = {"cpu": run.backend, "interpreter": "interpreter"}.get(run.device, "on device")
    what = f"{run.backend} on {run.device}" if label == "on device" else run.backend
    consequence = f"do not trust an audit of the {run.backend} backend on this machine"
    if run.error:
        return Row(name=label, status=FAIL, text=f"{what} did not run: {run.error}", consequence=consequence)
    total = run.passed + run.failed
    text = f"{count(run.passed)} of {count(total)} vectors equal"
    if run.failed:
        text += "; differ: " + "; ".join(run.failures[:MAX_FAILURES])
        if len(run.failures) > MAX_FAILURES:
            text += f"; ... {count(len(run.failures) - MAX_FAILURES)} more"
        return Row(name=label, status=FAIL, text=text, consequence=consequence)
    if total == 0:
        return Row(name=label, status=WARN, text="no vector fits", consequence="nothing was checked")
    return Row(name=label, status=OK, text=text + (f" on {run.device}" if label == "on device" else ""))


def compile_row(run: CompileRun | None) -> Row:
    """Whether every Triton kernel compiles for the GPUs it is meant for."""
    if run is None:
        missing = [package for package in ("torch", "triton") if not is_importable(package)]
        text = f"needs {' and '.join(missing)}" if missing else "the triton backend was not asked for"
        return Row(name="compile", status=SKIP, text=text)
    if run.errors:
        return Row(
            name="compile",
            status=FAIL,
            text="; ".join(run.errors[:3]),
            consequence="audits on a GPU can't run with this triton",
        )
    number = len(run.kernels)
    return Row(
        name="compile",
        status=OK,
        text=f"{number} of {number} Triton kernels compile for {' and '.join(run.targets)}",
    )
