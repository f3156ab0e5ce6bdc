"""`kvcanary trace minimise`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    NoProgressOption,
    QuietOption,
    StrictOption,
    ThreadsOption,
    emit_options,
)
from kvcanary_cli.commands._trace_files import check_target, note, write_trace
from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.output import Format, emit, start_progress

if TYPE_CHECKING:
    from kvcanary_cli.trace_tools.same import Finding


def minimise(
    trace: Annotated[
        str, typer.Argument(metavar="FILE", help="Trace v1 with an incident; - is standard input.")
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="File that gets the smaller trace, .gz or .zst to compress it.",
            show_default=False,
        ),
    ] = None,
    incident: Annotated[
        int,
        typer.Option("--incident", metavar="N", min=1, help="Incident to keep, as `replay` numbers them."),
    ] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0,
            help="Stop after S seconds with what there is; no limit if not given.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    output_format: FormatOption = Format.text,
    quiet: QuietOption = False,
    no_progress: NoProgressOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Shrink a failing trace to the few events that still fail.

    Requests are left out first, then steps, then single events; a replay on the CPU judges every attempt.

    Example: kvcanary trace minimise bad.jsonl --output small.jsonl
    """
    options = emit_options(output_format=output_format, quiet=quiet, exit_zero=exit_zero, strict=strict)
    target = check_target(output, trace)
    if target == "-":
        raise UsageError(
            "the smaller trace is read again to verify it, so it needs a file", hint="`--output small.jsonl`"
        )
    # deferred: numba takes a second to import, --help must not pay for it
    from kvcanary_cli.commands._replay_run import interruptible, prepare_backend
    from kvcanary_cli.report.trace_minimise import build_minimise, render_minimise
    from kvcanary_cli.runtime.devices import pick_device

    device = pick_device("cpu")
    prepare_backend(device)
    from kvcanary_cli.trace.reader import LIST_HINT, open_trace
    from kvcanary_cli.trace_tools.minimise import Search, minimise, replay
    from kvcanary_cli.trace_tools.same import findings_of

    started = time.monotonic()
    inputs = {"trace": {"path": trace}, "incident": incident, "seconds": seconds}
    progress = start_progress("minimise", options, no_progress=no_progress, inputs=inputs)
    with open_trace(trace, hint=LIST_HINT) as reader:
        header, events = reader.header, [event for _, event in reader]
    try:
        with interruptible() as stop:
            search = Search(
                header,
                events,
                incident,
                path=trace,
                device=device,
                threads=threads,
                seconds=seconds,
                should_stop=lambda: stop.requested,
                on_replay=lambda replays, size: progress.update(replays, None, size.events, incident),
            )
            done = minimise(search, incident)
    finally:
        progress.close()
    write_trace(target, done.header, [note(f"minimised from {trace}: incident {incident}"), *done.events])
    with open_trace(target) as reader:
        found = findings_of(replay(reader.header, [event for _, event in reader], device, threads))
    verified = _verified(found, done.target, target)
    report = build_minimise(done, verified, inputs=inputs, output=target, seconds=time.monotonic() - started)
    emit(report, render_minimise, options)


def _verified(found: list[Finding], target: Finding, where: str) -> Finding:
    same = [finding for finding in found if finding.is_same(target)]
    if not same:
        raise InputError("a replay of the written file does not give the incident", where=where)
    return same[0]
