"""`kvcanary replay`: parse, run, report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcanary_cli.commands._options import (
    BlockSizeOption,
    DeviceOption,
    ExitZeroOption,
    FormatOption,
    InputFormatOption,
    NoProgressOption,
    NoTokensOption,
    OutputOption,
    QuietOption,
    StrictOption,
    ThreadsOption,
    VerboseOption,
    emit_options,
    refuse_overwriting,
)
from kvcanary_cli.errors import UsageError
from kvcanary_cli.output import Format, emit, start_progress, write_line

if TYPE_CHECKING:
    from kvcanary_cli.commands._replay_run import RunRequest
    from kvcanary_cli.report.replay_views import View


def replay(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Traces v1, request traces, KV event streams; - is stdin."),
    ],
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", min=1, help="Replay so many files at once.")
    ] = 1,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    hash_name: Annotated[
        str,
        typer.Option(
            "--hash",
            metavar="none|partial|all",
            help="Bytes hashed of each source: none, 16, or all that it declares.",
        ),
    ] = "all",
    verify: Annotated[
        str | None,
        typer.Option(
            "--verify",
            metavar="full|incremental",
            help="Check every entry, or what was touched since its last good check; full on a GPU, else incremental.",
        ),
    ] = None,
    chain: Annotated[
        str,
        typer.Option(
            "--chain",
            metavar="mixed|affine",
            help="Hash that joins each stamp to the one before: the server's, or ours, made for GPUs.",
        ),
    ] = "mixed",
    sweep_interval: Annotated[
        int,
        typer.Option(
            "--sweep-interval", metavar="N", min=0, help="Forwards between sweeps; 0: at sweep events only."
        ),
    ] = 0,
    capacities: Annotated[
        str | None,
        typer.Option(
            "--capacities", metavar="FILE", help="Config with pool and limits; wins over the trace."
        ),
    ] = None,
    pool_tokens: Annotated[
        int | None,
        typer.Option(
            "--pool-tokens", metavar="N", min=1, help="Tokens of the pool behind a KV event stream."
        ),
    ] = None,
    ring: Annotated[
        int | None,
        typer.Option("--ring", metavar="N", min=1, help="Rows of the violation log; default: the trace's."),
    ] = None,
    limit_requests: Annotated[
        int | None, typer.Option("--limit-requests", metavar="N", min=1, help="Replay the first N requests.")
    ] = None,
    limit_steps: Annotated[
        int | None, typer.Option("--limit-steps", metavar="N", min=1, help="Replay the first N forwards.")
    ] = None,
    stop_on_violation: Annotated[
        bool, typer.Option("--stop-on-violation", help="Stop after the forward with the first finding.")
    ] = False,
    require: Annotated[
        str | None,
        typer.Option("--require", metavar="CHECK,...", help="INCOMPLETE unless these checks could be made."),
    ] = None,
    save_trace: Annotated[
        str | None,
        typer.Option("--save-trace", metavar="FILE", help="Keep the simulated trace of a request trace."),
    ] = None,
    skip_bad_lines: Annotated[
        bool,
        typer.Option(
            "--skip-bad-lines", help="Go on after lines that can't be read; the run can't pass then."
        ),
    ] = False,
    input_format: InputFormatOption = None,
    block_size: BlockSizeOption = None,
    incident: Annotated[
        int | None, typer.Option("--incident", metavar="N", min=1, help="Show incident N in full.")
    ] = None,
    slot: Annotated[
        int | None,
        typer.Option(
            "--slot",
            metavar="N",
            min=0,
            help="With --history the slot to follow, with --incident the slot to show.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="full|swa", help="Group of --slot; the pool's first if not given."),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Print every event of --slot in order.")] = False,
    slots: Annotated[bool, typer.Option("--slots", help="Print the table of corrupted slots.")] = False,
    heatmap: Annotated[bool, typer.Option("--heatmap", help="Print a map of the pool.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Print every row of long tables.")] = False,
    shadows: Annotated[bool, typer.Option("--shadows", help="With --slots: list shadow slots too.")] = False,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="FILE", help="Compare what is found with an answer sheet."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Seed of the model that runs a request trace.")
    ] = 0,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="sglang|vllm",
            help="Whose rules serve a request trace; the config's, else sglang.",
        ),
    ] = None,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_progress: NoProgressOption = False,
    no_tokens: NoTokensOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Run a trace through the canary kernels.

    Reports incidents: which slots are damaged, whose, since when, by whom and why; and where the server's own
    check has too little room.

    Example: kvcanary replay trace.jsonl --format json
    """
    options = emit_options(
        output_format=output_format,
        output=output,
        quiet=quiet,
        verbose=verbose,
        exit_zero=exit_zero,
        strict=strict,
    )
    # deferred: numba takes a second to import, and neither --help nor a stream of events must pay for it
    from kvcanary_cli.commands._event_audit import are_events, refuse_flags, run_event_audit

    if are_events(files, input_format):
        refuse_flags(
            {
                "--incident": incident is not None,
                "--slot": slot is not None,
                "--slots": slots,
                "--heatmap": heatmap,
                "--history": history,
                "--expect": expect is not None,
                "--save-trace": save_trace is not None,
                "--limit-requests": limit_requests is not None,
                "--limit-steps": limit_steps is not None,
                "--stop-on-violation": stop_on_violation,
                "--scheduler": scheduler is not None,
                "--chain": chain != "mixed",
                "--ring": ring is not None,
                "--sweep-interval": sweep_interval != 0,
                "--block-size": block_size is not None,
            }
        )
        refuse_overwriting(
            [*(("FILE", path) for path in files), ("--capacities", capacities)], [("--output", output)]
        )
        from kvcanary_cli.report.event_audit_text import render_event_audit

        progress = start_progress(
            "replay", options, no_progress=no_progress, inputs={"trace": {"path": files[0]}}
        )
        try:
            report = run_event_audit(
                files,
                pool_tokens=pool_tokens,
                capacities=capacities,
                require=require,
                skip_bad_lines=skip_bad_lines,
                input_format=input_format,
                progress=progress,
                on_finding=lambda found: _stream_event(found, options.format),
            )
        finally:
            progress.close()
        emit(report, partial(render_event_audit, show_all=show_all, verbose=verbose), options)
    if pool_tokens is not None:
        raise UsageError(
            "`--pool-tokens` is for a KV event stream, a trace has its pool in its header",
            hint="`--capacities FILE` states the pool of a replay",
        )
    from kvcanary_cli.commands._replay_files import refuse_single, request_of, run_all
    from kvcanary_cli.commands._replay_run import RunRequest, check_files, run_command
    from kvcanary_cli.report.replay_files import render_files
    from kvcanary_cli.report.replay_views import View, renderer
    from kvcanary_cli.trace.recordings import in_order

    request = RunRequest(
        path=files[0],
        device=device,
        threads=threads,
        hash_name=hash_name,
        verify=verify,
        chain=chain,
        sweep_interval=sweep_interval,
        capacities=capacities,
        ring=ring,
        limit_requests=limit_requests,
        limit_steps=limit_steps,
        stop_on_violation=stop_on_violation,
        require=require,
        save_trace=save_trace,
        skip_bad_lines=skip_bad_lines,
        seed=seed,
        scheduler=scheduler,
        no_tokens=no_tokens,
        history=(group, slot) if history and slot is not None else None,
        expect=expect,
        incident=incident,
        input_format=input_format,
        block_size=block_size,
    )
    view = View(
        incident=incident,
        slot=slot,
        history=history,
        slots=slots,
        heatmap=heatmap,
        show_all=show_all,
        shadows=shadows,
        group=group,
        expects=expect is not None,
        verbose=verbose,
    )
    view.check()
    for path in files:
        check_files(replace(request, path=path), output)
    groups = in_order(files) if len(files) > 1 else [tuple(files)]

    def stream(path: str, found: dict[str, Any]) -> None:
        if options.format is Format.jsonl:
            file = {"file": path} if len(groups) > 1 else {}
            write_line("progress", {**file, "step": found["step"], "finding": found})

    if len(groups) > 1:
        refuse_single(_single(request, view))
        inputs: dict[str, Any] = {"files": files}
        progress = start_progress("replay", options, no_progress=no_progress, inputs=inputs)
        try:
            report = run_all(request, groups, jobs, progress, stream)
        finally:
            progress.close()
        emit(report, partial(render_files, show_all=show_all), options)
    request = request_of(request, groups[0])
    inputs = {"trace": {"path": request.path}}
    progress = start_progress("replay", options, no_progress=no_progress, inputs=inputs)
    try:
        report = run_command(request, progress, partial(stream, request.path))
    finally:
        progress.close()
    emit(report, renderer(report, view), options)


def _stream_event(found: dict[str, Any], output_format: Format) -> None:
    """Tell of a finding in a KV event stream as soon as it turns up."""
    if output_format is Format.jsonl:
        write_line("progress", {"line": found["line"], "finding": found})


def _single(request: RunRequest, view: View) -> dict[str, bool]:
    """Flags that are about one file, and whether they were given."""
    return {
        "--incident": view.incident is not None,
        "--slot": view.slot is not None,
        "--slots": view.slots,
        "--heatmap": view.heatmap,
        "--expect": view.expects,
        "--save-trace": request.save_trace is not None,
    }
