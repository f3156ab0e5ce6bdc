"""`kvcanary synth`: write a trace from a scenario, without faults or with labelled ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    QuietOption,
    SeedOption,
    StrictOption,
    check_output,
    emit_options,
)
from kvcanary_cli.commands._planted import answers_path, write_planted
from kvcanary_cli.errors import UsageError
from kvcanary_cli.output import Format, emit

if TYPE_CHECKING:  # both cost --help a quarter of a second
    from kvcanary_cli.report.frame import Report, Sections
    from kvcanary_cli.trace.events import Event, Header

FILE_HELP = "File that gets the trace, .gz or .zst to compress it; - is stdout, the report then is on stderr."


def synth(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help=FILE_HELP, show_default=False)] = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="The same, as an option.")
    ] = None,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario",
            metavar="NAME",
            help="decode, prefill, chunked, mixed, shared-prefix, swa or spec.",
        ),
    ] = "mixed",
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", help="Forwards; 200, or until all of --requests have ended."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", metavar="N", help="Requests; as many as the steps can take."),
    ] = None,
    pool_slots: Annotated[
        int | None,
        typer.Option("--pool-slots", metavar="N", help="Slots of the pool, page 0 included; the scenario's."),
    ] = None,
    page_size: Annotated[int, typer.Option("--page-size", metavar="N", help="Slots a page.")] = 16,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="KIND[:N]",
            help="Plant faults of this kind, as `kvcanary plant` does; may repeat.",
            show_default=False,
        ),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            "--answers",
            metavar="FILE",
            help="With --fault: file that gets the answer sheet; by default beside the trace, as .faults.json.",
            show_default=False,
        ),
    ] = None,
    seed: SeedOption = 0,
    output_format: FormatOption = Format.text,
    quiet: QuietOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Write a trace of a made-up server run.

    Without --fault it has no fault; a replay of it must pass.

    Example: kvcanary synth trace.jsonl --scenario chunked
    """
    # deferred: --help must not pay for them
    from kvcanary_cli.sim.scenarios import scenario as make

    path = _target(file, output)
    wanted = _wanted(fault or [])
    if answers is not None and not wanted:
        raise UsageError("`--answers` names a file for planted faults, and no `--fault` is given")
    sheet = answers_path(path, answers) if wanted else None
    options = emit_options(output_format=output_format, quiet=quiet, exit_zero=exit_zero, strict=strict)
    header, events = make(
        scenario, steps=steps, requests=requests, seed=seed, pool_slots=pool_slots, page_size=page_size
    )
    inputs = {
        "scenario": scenario,
        "steps": steps,
        "requests": requests,
        "seed": seed,
        "pool_slots": pool_slots,
        "page_size": page_size,
    }
    if wanted:
        report, render = _with_faults(path, sheet, header, events, wanted, inputs)
    else:
        report, render = _clean(path, header, events, inputs)
    # the trace has stdout to itself, so that it can be piped
    with redirect_stdout(sys.stderr) if path == "-" else nullcontext():
        emit(report, render, options)


def _wanted(faults: list[str]) -> list[tuple[str, int]]:
    """Kinds and counts of `--fault`; the planters are only loaded where there are any."""
    if not faults:
        return []
    from kvcanary_cli.faults.planting import parse_fault

    return [parse_fault(text) for text in faults]


def _clean(
    path: str, header: Header, events: Iterator[Event], inputs: dict[str, Any]
) -> tuple[Report, Callable[[Report], Sections]]:
    """Write a trace while it is made."""
    from kvcanary_cli.report.synth import TraceFacts, build_synth, render_synth
    from kvcanary_cli.trace.events import End, Forward
    from kvcanary_cli.trace.writer import TraceWriter

    facts = TraceFacts()
    with TraceWriter(path, header) as writer:
        for event in events:
            writer.write(event)
            kind = type(event)
            facts.steps += kind is Forward
            facts.requests += isinstance(event, End) and event.why != "retract"
        facts.events = writer.num_lines
    return build_synth(header, facts, path=path, inputs=inputs), render_synth


def _with_faults(
    path: str,
    sheet: str | None,
    header: Header,
    events: Iterator[Event],
    wanted: list[tuple[str, int]],
    inputs: dict[str, Any],
) -> tuple[Report, Callable[[Report], Sections]]:
    """Write a trace with faults, and their answer sheet."""
    from kvcanary_cli.faults.planting import plant_all
    from kvcanary_cli.report.plant import build_plant, render_plant

    seed = inputs["seed"]
    header, damaged, faults = plant_all(header, events, wanted, seed)
    write_planted(path, sheet, header, damaged, faults, seed=seed)
    inputs = {**inputs, "faults": [f"{kind}:{count}" for kind, count in wanted]}
    report = build_plant(header, damaged, faults, command="synth", inputs=inputs, output=path, answers=sheet)
    return report, render_plant


def _target(file: str | None, output: str | None) -> str:
    """The one place that the trace goes to; raises UsageError for none or two, InputError for a folder."""
    given = [path for path in (file, output) if path is not None]
    if len(given) != 1:
        found = "none was given" if not given else f"{given[0]} and {given[1]} were given"
        raise UsageError(f"the trace needs one file to go to, {found}", hint="`kvcanary synth trace.jsonl`")
    if given[0] != "-":
        check_output(given[0])
    return given[0]
