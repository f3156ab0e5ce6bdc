"""`kvcanary record-events`: write what an engine publishes about its KV cache into a file."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    NoProgressOption,
    QuietOption,
    StrictOption,
    VerboseOption,
    check_output,
    emit_options,
)
from kvcanary_cli.output import Format, emit, start_progress


def record_events(
    endpoint: Annotated[
        str,
        typer.Argument(metavar="ENDPOINT", help="Where the engine publishes, such as tcp://localhost:5557."),
    ],
    output: Annotated[
        str, typer.Option("--output", metavar="FILE", help="File that gets the events, one batch a line.")
    ],
    topic: Annotated[
        str, typer.Option("--topic", metavar="TEXT", help="Only topics that begin so; all if not given.")
    ] = "",
    bind: Annotated[
        bool,
        typer.Option("--bind", help="Wait at ENDPOINT for an engine whose own endpoint names this host."),
    ] = False,
    replay: Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="ENDPOINT",
            help="The engine's replay socket; lost batches are asked for there.",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option("--duration", metavar="SECONDS", min=0.0, help="Stop after so long; else at Ctrl-C."),
    ] = None,
    max_batches: Annotated[
        int | None, typer.Option("--max-batches", metavar="N", min=1, help="Stop after so many batches.")
    ] = None,
    max_mb: Annotated[
        int | None, typer.Option("--max-mb", metavar="N", min=1, help="Begin a new file after so many MiB.")
    ] = None,
    output_format: FormatOption = Format.text,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_progress: NoProgressOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Record the KV events that a server publishes.

    vLLM and SGLang publish them; a replay audits the file. Batches that are lost are asked for again where the
    server has a replay socket, and noted where not.

    Example: kvcanary record-events tcp://localhost:5557 --output events.jsonl
    """
    # deferred: --help must not pay for them
    from kvcanary_cli.commands._record_run import run_record
    from kvcanary_cli.report.record_events import render_record

    options = emit_options(
        output_format=output_format, quiet=quiet, verbose=verbose, exit_zero=exit_zero, strict=strict
    )
    check_output(output)
    inputs = {
        "endpoint": endpoint,
        "output": output,
        "topic": topic,
        "bind": bind,
        "replay": replay,
        "duration_seconds": duration,
        "max_batches": max_batches,
        "max_mb": max_mb,
    }
    progress = start_progress("record-events", options, no_progress=no_progress, inputs=inputs)
    try:
        report = run_record(inputs, progress)
    finally:
        progress.close()
    emit(report, render_record, options)
