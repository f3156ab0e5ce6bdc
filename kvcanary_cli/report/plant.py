"""The report of `plant`: which faults a trace has now, and how to use the answer sheet."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from kvcanary_cli.exits import Exit
from kvcanary_cli.faults.answers import Answer
from kvcanary_cli.kinds import title
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import name, plural, ranges
from kvcanary_cli.trace.events import End, Event, Forward, Header

MAX_RANGES = 2  # runs of slots in one cell; the answer sheet has all


def build_plant(
    header: Header,
    events: Sequence[Event],
    faults: Sequence[Answer],
    *,
    command: str = "plant",
    inputs: dict[str, Any],
    output: str,
    answers: str | None,
) -> Report:
    """The report of a trace with faults; it always passes, because faults without a place are an error.

    Args:
        header, events: the trace with its faults.
        command: `plant`, or `synth` for a trace that was made with them.
        output: where it went, "-" for standard output.
        answers: where the answer sheet went; None: nowhere.
    """
    slots, page_size = header.pool.slots, header.pool.page_size
    pool = {
        "slots": slots,
        "pages": slots // page_size,
        "page_size": page_size,
        "groups": [group.kind for group in header.groups],
    }
    report = base_report(command, inputs=inputs, pool=pool)
    report["trace"] = {
        "path": output,
        "steps": sum(isinstance(event, Forward) for event in events),
        "requests": sum(isinstance(event, End) and event.why != "retract" for event in events),
        "events": len(events) + 1,
        "faults": len(faults),
    }
    report["answers"] = {"path": answers}
    report["faults"] = [to_builtins(fault) for fault in faults]
    return finish(report, Exit.PASS)


def render_plant(report: Report) -> Sections:
    """The text report."""
    trace, sheet = report["trace"], report["answers"]["path"]
    counts = (
        f"{plural(trace['steps'], 'step')}, {plural(trace['requests'], 'request')}, "
        f"{plural(trace['events'], 'event')}"
    )
    shown = "stdout" if trace["path"] == "-" else name(trace["path"])
    header = [("wrote", f"{shown}   {counts}")]
    notes = []
    if sheet is None:
        notes = [("note", "no answer sheet was written; `--answers FILE` writes one")]
    else:
        faults = plural(trace["faults"], "fault")
        header.append(("", f"{name(sheet)}   {faults}: what, where, when, and what is innocent"))
        notes = [("next", f"kvcanary replay {argument(trace['path'])} --expect {argument(sheet)}")]
    return Sections(
        header=header,
        body=[_table(report["faults"])],
        status="",
        notes=notes,
        verdict={
            "steps": trace["steps"],
            "events": trace["events"],
            "faults": trace["faults"],
            "seed": report["inputs"]["seed"],
        },
    )


def _table(faults: list[dict[str, Any]]) -> Table:
    columns = [
        Column("FAULT"),
        Column("STEP", "right"),
        Column("FOUND BY", "right"),
        Column("SLOTS", "right"),
        Column("DAMAGED"),
        Column("REQUEST"),
        Column("WRITER"),
    ]
    rows = [
        [
            title(fault["kind"]),
            f"{fault['step']:,}",
            f"{fault['found_by_step']:,}",
            ranges(fault["slots"], limit=MAX_RANGES),
            "yes" if fault["damaged"] else "no",
            fault["rid"] or "-",
            fault["writer"] or "-",
        ]
        for fault in faults
    ]
    return Table(columns, rows)


def argument(path: str) -> str:
    """A path as it can be pasted into a shell: quoted, and never taken for an option."""
    if path != "-" and path.startswith("-"):
        path = "./" + path
    return name(shlex.quote(path))
