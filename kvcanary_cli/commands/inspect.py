"""`kvcanary inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    NoProgressOption,
    OutputOption,
    QuietOption,
    StrictOption,
    VerboseOption,
    emit_options,
)
from kvcanary_cli.output import Format, emit, start_progress


def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace, requests, or KV events; - is stdin.")],
    input_format: Annotated[
        str | None,
        typer.Option("--input-format", metavar="NAME", help="Format of FILE; by content if not given."),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            "--block-size", metavar="N", min=1, help="Tokens that a block id names, where FILE does not say."
        ),
    ] = None,
    limit_requests: Annotated[
        int | None, typer.Option("--limit-requests", metavar="N", min=1, help="Read the first N requests.")
    ] = None,
    skip_bad_lines: Annotated[
        bool,
        typer.Option(
            "--skip-bad-lines", help="Go on after lines that can't be read; the report is incomplete then."
        ),
    ] = False,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_progress: NoProgressOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Say what is in a file, before it is replayed.

    Format, sizes, peaks, sharing, quirks, and what to run next.

    Example: kvcanary inspect requests.csv
    """
    # deferred: --help must not pay for them
    from functools import partial

    from kvcanary_cli.commands._inspect_run import InspectWords, run_inspect
    from kvcanary_cli.report.inspect_events import render_events
    from kvcanary_cli.report.inspect_text import render_inspect

    options = emit_options(
        output_format=output_format,
        output=output,
        quiet=quiet,
        verbose=verbose,
        exit_zero=exit_zero,
        strict=strict,
    )
    words = InspectWords(
        file=file,
        input_format=input_format,
        block_size=block_size,
        limit_requests=limit_requests,
        skip_bad_lines=skip_bad_lines,
        output=output,
    )
    progress = start_progress("inspect", options, no_progress=no_progress, inputs=words.inputs())
    try:
        report = run_inspect(words, progress)
    finally:
        progress.close()
    render = (
        render_events if report["format"]["name"] == "kv-events" else partial(render_inspect, verbose=verbose)
    )
    emit(report, render, options)
