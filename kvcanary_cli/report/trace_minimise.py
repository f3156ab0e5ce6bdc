"""The report of `trace minimise`: from how much to how little, and how to replay the reproducer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.kinds import KINDS
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.plant import argument
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, plural, ranges, to_ranges
from kvcanary_cli.trace_tools.minimise import Minimised
from kvcanary_cli.trace_tools.same import Finding

MAX_RANGES = 4


def build_minimise(
    done: Minimised, verified: Finding, *, inputs: dict[str, Any], output: str, seconds: float
) -> Report:
    """The report of a minimised trace.

    Args:
        verified: the incident that a replay of the written file gave.
    """
    slots, page_size = done.header.pool.slots, done.header.pool.page_size
    pool = {
        "slots": slots,
        "pages": slots // page_size,
        "page_size": page_size,
        "groups": [group.kind for group in done.header.groups],
    }
    report = base_report("trace-minimise", inputs=inputs, pool=pool, packages=("numba",))
    report["trace"] = {"path": output, **asdict(done.after)}
    report["before"] = asdict(done.before)
    report["incident"] = {"number": done.number, "before": _finding(done.target), "after": _finding(verified)}
    report["stages"] = [{"name": s.name, "replays": s.replays, **asdict(s.size)} for s in done.stages]
    report["replays"] = done.replays
    report["stopped"] = done.stopped
    report["timing"] = {"seconds": round(seconds, 3)}
    codes = {"budget": Exit.INCOMPLETE, "interrupted": Exit.INTERRUPTED}
    return finish(report, codes[done.stopped] if done.stopped else Exit.PASS)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "name": KINDS.get(finding.kind, finding.kind),
        "group": finding.group,
        "slots": to_ranges(finding.slots),
        "num_slots": len(finding.slots),
        "is_damaged": finding.is_damaged,
        "writer": finding.writer,
        "is_seen": finding.is_seen,
    }


def render_minimise(report: Report) -> Sections:
    """The text report."""
    trace, before = report["trace"], report["before"]
    incident = report["incident"]
    header = [
        ("wrote", f"{name(trace['path'])}   {_counts(trace)}"),
        ("from", f"{name(report['inputs']['trace']['path'])}   {_counts(before)}"),
        ("incident", f"{incident['number']}: {_named(incident['before'])}"),
        ("", f"now {_named(incident['after'])}"),
    ]
    rows = [
        [stage["name"], *(count(stage[key]) for key in ("replays", "events", "steps", "requests"))]
        for stage in report["stages"]
        if stage["replays"]
    ]
    columns = [
        Column("STAGE"),
        *(Column(word, "right") for word in ("REPLAYS", "EVENTS", "STEPS", "REQUESTS")),
    ]
    return Sections(
        header=header,
        body=[Table(columns, rows)],
        status=_status(report),
        notes=_notes(report),
        verdict={
            "events": trace["events"],
            "of_events": before["events"],
            "steps": trace["steps"],
            "of_steps": before["steps"],
            "requests": trace["requests"],
            "of_requests": before["requests"],
            "replays": report["replays"],
            **({"stopped": report["stopped"]} if report["stopped"] else {}),
        },
    )


def _notes(report: Report) -> list[tuple[str, str]]:
    path, kind = argument(report["trace"]["path"]), report["incident"]["after"]["kind"]
    page = " --incident 1" if kind[:1] in "Ku" else ""
    notes = [("next", f"kvcanary replay {path} --device cpu{page}")]
    return [*notes, ("next", f"kvcanary explain {kind}")] if kind in KINDS else notes


def _counts(size: dict[str, Any]) -> str:
    return f"{plural(size['steps'], 'step')}, {plural(size['requests'], 'request')}, {plural(size['events'], 'event')}"


def _named(finding: dict[str, Any]) -> str:
    slots = f"slots {ranges(finding['slots'], limit=MAX_RANGES)}" if finding["slots"] else finding["group"]
    writer = f", written by {name(finding['writer'])}" if finding["writer"] else ""
    return f"{finding['kind']} {finding['name']}, {slots}{writer}"


def _status(report: Report) -> str:
    checked = "a replay of the written file gives the same incident"
    if report["stopped"] == "budget":
        return f"{checked}; the budget ended the search, a smaller trace may exist"
    if report["stopped"] == "interrupted":
        return f"{checked}; stopped by Ctrl-C, a smaller trace may exist"
    return f"{checked}, and no single event can be left out"
