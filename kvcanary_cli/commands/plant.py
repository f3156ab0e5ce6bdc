"""`kvcanary plant`: put labelled faults into a trace."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    QuietOption,
    SeedOption,
    StrictOption,
    check_output,
    emit_options,
    refuse_overwriting,
)
from kvcanary_cli.commands._planted import answers_path, write_planted
from kvcanary_cli.errors import UsageError
from kvcanary_cli.output import Format, emit


def plant(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="Trace v1 to damage; - is standard input.")],
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="KIND[:N]",
            help="Kind to plant, such as K07, and how many of it; may repeat. `kvcanary explain` lists the kinds.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="File that gets the trace, .gz or .zst to compress it; - is stdout, the report then is on stderr.",
            show_default=False,
        ),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            "--answers",
            metavar="FILE",
            help="File that gets the answer sheet; by default beside the trace, with the suffix .faults.json.",
            show_default=False,
        ),
    ] = None,
    seed: SeedOption = 0,
    output_format: FormatOption = Format.text,
    quiet: QuietOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Damage a trace on purpose, and write down what was done.

    The answer sheet says which slots are wrong, whose they are, who did it, when, by when a replay must have found
    it, and what it must not blame.

    Example: kvcanary plant t.jsonl --fault K07 --fault K21:2 --output bad.jsonl
    """
    # deferred: --help must not pay for them
    from kvcanary_cli.faults.planting import parse_fault, plant_all
    from kvcanary_cli.report.plant import build_plant, render_plant
    from kvcanary_cli.trace.reader import LIST_HINT, open_trace

    wanted = [parse_fault(text) for text in fault or ()]
    if not wanted:
        raise UsageError(
            "no fault is named, at least one is needed", hint="`--fault K07`; `kvcanary explain` lists all"
        )
    if output is None:
        raise UsageError("the trace needs a file to go to, none was given", hint="`--output bad.jsonl`")
    if output != "-":
        check_output(output)
    sheet = answers_path(output, answers)
    refuse_overwriting([("TRACE", trace)], [("--answers", sheet)])
    options = emit_options(output_format=output_format, quiet=quiet, exit_zero=exit_zero, strict=strict)
    with open_trace(trace, hint=LIST_HINT) as reader:
        header, events = reader.header, [event for _, event in reader]
    damaged, after, faults = plant_all(header, events, wanted, seed)
    write_planted(output, sheet, damaged, after, faults, seed=seed)
    report = build_plant(
        damaged,
        after,
        faults,
        inputs={
            "trace": {"path": trace},
            "faults": [f"{kind}:{count}" for kind, count in wanted],
            "seed": seed,
        },
        output=output,
        answers=sheet,
    )
    # the trace has stdout to itself, so that it can be piped
    with redirect_stdout(sys.stderr) if output == "-" else nullcontext():
        emit(report, render_plant, options)
