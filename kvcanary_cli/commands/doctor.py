"""`kvcanary doctor`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    DeviceOption,
    ExitZeroOption,
    FormatOption,
    OutputOption,
    QuietOption,
    StrictOption,
    emit_options,
)
from kvcanary_cli.output import Format, emit


def doctor(
    vectors: Annotated[
        str | None,
        typer.Option(
            "--vectors", metavar="DIR", help="Folder of *.npz vectors; the packaged ones if not given."
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", metavar="NAME", help="reference, numba or triton; may be repeated. Default: all."
        ),
    ] = None,
    device: DeviceOption = "auto",
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Tell what this machine can do, and check the kernels.

    Example: kvcanary doctor --backend numba
    """
    # deferred: --help must not pay for them
    from kvcanary_cli.doctor import checks, facts
    from kvcanary_cli.report.doctor import build_doctor, render_doctor
    from kvcanary_cli.runtime.devices import pick_device, survey

    options = emit_options(
        output_format=output_format, output=output, quiet=quiet, exit_zero=exit_zero, strict=strict
    )
    started = time.monotonic()
    choice = pick_device(device)
    backends = checks.select_backends(backend or [])
    folder = checks.vectors_folder(vectors)
    rows = [facts.python_row(), *facts.package_rows(), facts.gpu_row(survey(), choice), facts.cache_row()]
    runs, compiled = checks.run_all(folder, backends, choice)
    rows += [*checks.vector_rows(runs, choice), checks.compile_row(compiled)]
    report = build_doctor(
        rows,
        runs,
        compiled,
        inputs={"vectors": vectors or "packaged", "backends": backends, "device": device},
        seconds=time.monotonic() - started,
    )
    emit(report, render_doctor, options)
