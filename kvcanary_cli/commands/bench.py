"""`kvcanary bench`."""

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


def bench(
    cases: Annotated[
        str | None,
        typer.Option("--cases", metavar="FILE", help="YAML file of cases; the packaged ones if not given."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="TEXT", help="Cases with TEXT in their name; may be repeated."),
    ] = None,
    replays: Annotated[
        int, typer.Option("--replays", metavar="N", min=3, help="Samples a time on the GPU.")
    ] = 50,
    vs_sglang: Annotated[
        bool, typer.Option("--vs-sglang", help="Time SGLang's own kernels too, where sglang is installed.")
    ] = False,
    device: DeviceOption = "auto",
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Time the kernels here, each checked before it is timed.

    Example: kvcanary bench --only decode
    """
    # deferred: --help must not pay for them
    from kvcanary_cli.bench.run import run_bench
    from kvcanary_cli.report.bench import build_bench, render_bench

    options = emit_options(
        output_format=output_format, output=output, quiet=quiet, exit_zero=exit_zero, strict=strict
    )
    started = time.monotonic()
    result = run_bench(
        cases,
        only=only or [],
        replays=replays,
        vs_sglang=vs_sglang,
        device=device,
    )
    inputs = {"cases": cases or "packaged", "only": only or [], "replays": replays, "vs_sglang": vs_sglang}
    report = build_bench(result, inputs={**inputs, "device": device}, seconds=time.monotonic() - started)
    emit(report, render_bench, options)
