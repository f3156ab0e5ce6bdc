"""`kvcanary selftest`: parse, run the matrix, report."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    DeviceOption,
    ExitZeroOption,
    FormatOption,
    NoProgressOption,
    OutputOption,
    QuietOption,
    emit_options,
)
from kvcanary_cli.output import Format, emit, start_progress


def selftest(
    device: DeviceOption = "auto",
    kinds: Annotated[
        str, typer.Option("--kinds", metavar="KIND,...", help="Kinds to plant; all by default.")
    ] = "all",
    scenarios: Annotated[
        str, typer.Option("--scenarios", metavar="NAME,...", help="Scenarios to plant into, or all.")
    ] = "shared-prefix,swa,spec",
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Seeds 0 to N-1 of each scenario.")
    ] = 1,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=40, help="Forwards of each trace.")] = 40,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Processes to run at a time.")] = 1,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    no_progress: NoProgressOption = False,
    exit_zero: ExitZeroOption = False,
) -> None:
    """Plant faults, replay, and see whether they are found.

    Run once on a new machine: it proves that this installation, on this device, would have seen each kind of fault.

    Example: kvcanary selftest --seeds 3
    """
    options = emit_options(output_format=output_format, output=output, quiet=quiet, exit_zero=exit_zero)
    # deferred: numba takes a second to import, --help must not pay for it
    from kvcanary_cli.commands._replay_run import prepare_backend
    from kvcanary_cli.commands._selftest_plan import make_plan
    from kvcanary_cli.report.selftest import build_selftest, render_selftest
    from kvcanary_cli.runtime.devices import pick_device

    choice = pick_device(device)
    note = prepare_backend(choice)
    plan = make_plan(kinds=kinds, scenarios=scenarios, seeds=seeds, steps=steps, device=choice)
    from kvcanary_cli.selftest.matrix import run_plan

    progress = start_progress("selftest", options, no_progress=no_progress)
    started = time.monotonic()
    total = len(plan.scenarios) * len(plan.seeds) * (len(plan.kinds) + 1)
    done: list[bool] = []

    def show(trial: object) -> None:
        done.append(bool(getattr(trial, "is_met", True)))
        progress.update(len(done), total, len(done), done.count(False))

    try:
        trials = run_plan(plan, jobs=jobs, on_trial=show)
    finally:
        progress.close()
    backend = {
        "name": "triton" if choice.kind == "cuda" else "numba",
        "device": choice.label,
        "reason": "; ".join(text for text in (choice.reason, note) if text),
    }
    emit(build_selftest(plan, trials, backend, time.monotonic() - started), render_selftest, options)
