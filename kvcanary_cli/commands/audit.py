"""`kvcanary audit`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    DeviceOption,
    ExitZeroOption,
    FormatOption,
    NoProgressOption,
    NoTokensOption,
    OutputOption,
    QuietOption,
    StrictOption,
    ThreadsOption,
    VerboseOption,
    emit_options,
)
from kvcanary_cli.output import Format, emit, start_progress


def audit(
    dump: Annotated[str, typer.Argument(metavar="DUMP", help="Dump of a server's canary, safetensors.")],
    page_size: Annotated[
        int | None,
        typer.Option("--page-size", metavar="N", min=1, help="Slots a page, in place of what the dump says."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", metavar="N", min=0, help="Positions that the window group keeps."),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option("--require", metavar="CHECK,...", help="INCOMPLETE unless these checks could be made."),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Print every row of long tables.")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_progress: NoProgressOption = False,
    no_tokens: NoTokensOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Verify the stamps and the page table of a dump.

    Example: kvcanary audit crashed.safetensors
    """
    # deferred: --help must not pay for them
    from functools import partial

    from kvcanary_cli.commands._audit_run import AuditWords, run_audit
    from kvcanary_cli.report.audit_text import render_audit

    options = emit_options(
        output_format=output_format,
        output=output,
        quiet=quiet,
        verbose=verbose,
        exit_zero=exit_zero,
        strict=strict,
    )
    words = AuditWords(
        dump=dump,
        page_size=page_size,
        window=window,
        require=require,
        device=device,
        threads=threads,
        no_tokens=no_tokens,
        output=output,
    )
    progress = start_progress("audit", options, no_progress=no_progress, inputs=words.inputs())
    try:
        report = run_audit(words, progress)
    finally:
        progress.close()
    emit(report, partial(render_audit, show_all=show_all, verbose=verbose), options)
