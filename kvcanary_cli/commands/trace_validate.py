"""`kvcanary trace validate`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    OutputOption,
    QuietOption,
    StrictOption,
    emit_options,
    refuse_overwriting,
)
from kvcanary_cli.output import Format, emit


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Traces v1; - is standard input.")],
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Check traces without running them: all bad lines at once.

    Also says what each trace holds, and what a replay of it could not check.

    Example: kvcanary trace validate recorded.jsonl
    """
    options = emit_options(
        output_format=output_format, output=output, quiet=quiet, exit_zero=exit_zero, strict=strict
    )
    refuse_overwriting([("FILE", path) for path in files], [("--output", output)])
    # deferred: --help must not pay for them
    from kvcanary_cli.report.trace_validate import build_validate, render_validate
    from kvcanary_cli.trace_tools.validate import check_parts, validate_file

    checks = [validate_file(path) for path in files]
    report = build_validate(checks, check_parts(checks), inputs={"files": list(files)})
    emit(report, render_validate, options)
