"""`kvcanary trace cut`."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    QuietOption,
    StrictOption,
    emit_options,
)
from kvcanary_cli.commands._trace_files import check_target, note, write_trace
from kvcanary_cli.errors import UsageError
from kvcanary_cli.output import Format, emit


def cut(
    trace: Annotated[str, typer.Argument(metavar="FILE", help="Trace v1; - is standard input.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="File that gets the trace, .gz or .zst to compress it; - is stdout, the report then is on stderr.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="A:B", help="Keep steps A to B, both included; the first step is 0."),
    ] = None,
    requests: Annotated[
        str | None, typer.Option("--requests", metavar="RID,...", help="Keep these requests.")
    ] = None,
    rid: Annotated[
        list[str] | None,
        typer.Option("--rid", metavar="RID", help="Keep this request; may repeat, and may hold a comma."),
    ] = None,
    output_format: FormatOption = Format.text,
    quiet: QuietOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Keep a span of steps, or some requests, of a trace.

    The history that the rest needs stays too, so that a replay judges it as it judges the whole.

    Example: kvcanary trace cut t.jsonl --steps 120:180 --output part.jsonl
    """
    options = emit_options(output_format=output_format, quiet=quiet, exit_zero=exit_zero, strict=strict)
    # deferred: --help must not pay for them
    from kvcanary_cli.report.trace_cut import build_cut, render_cut
    from kvcanary_cli.trace.reader import LIST_HINT, open_trace
    from kvcanary_cli.trace_tools.cut import cut_requests, cut_steps, parse_span

    rids = [*(requests.split(",") if requests else []), *(rid or [])]
    if (steps is None) == (not rids):
        raise UsageError(
            "a cut is by steps or by requests" + (", not by both" if rids else ", neither is given"),
            hint="`--steps 120:180`, or `--requests req-3,req-7`",
        )
    span = parse_span(steps) if steps is not None else None
    target = check_target(output, trace)
    with open_trace(trace, hint=LIST_HINT) as reader:
        header, events = reader.header, [event for _, event in reader]
    if span is not None:
        last = span[1] if span[1] is not None else len(events)
        done, what = cut_steps(header, events, span[0], last), f"steps {steps}"
    else:
        done, what = cut_requests(header, events, rids), f"requests {', '.join(rids)}"
    write_trace(target, done.header, [note(f"cut from {trace}: {what}"), *done.events])
    inputs = {"trace": {"path": trace}, "steps": steps, "requests": rids}
    report = build_cut(done, inputs=inputs, output=target)
    # the trace has stdout to itself, so that it can be piped
    with redirect_stdout(sys.stderr) if target == "-" else nullcontext():
        emit(report, render_cut, options)
