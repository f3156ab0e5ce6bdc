"""`kvcanary explain`: what a finding means and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli.commands._options import FormatOption, OutputOption, QuietOption, emit_options
from kvcanary_cli.output import Format, emit


def explain(
    code: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CODE]", help="Code, name or ledger rule; all are listed without one."),
    ] = None,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Tell what a finding means and what to do.

    Example: kvcanary explain late-remote-write
    """
    # deferred: --help must not pay for them
    from kvcanary_cli.explain.index import look_up
    from kvcanary_cli.report.explain import build_explain, render_explain

    options = emit_options(output_format=output_format, output=output, quiet=quiet)
    # several words are one: reports write a kind as `K07 late-remote-write`
    answer = look_up(" ".join(code)) if code else None
    emit(build_explain(answer), render_explain, options)
