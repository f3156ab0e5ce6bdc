"""The report of a replay of several files: their own reports, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.again import again
from kvcanary_cli.report.frame import Annotation, Report, Sections, base_report, finish
from kvcanary_cli.report.replay_text import MAX_ROWS, incident_title, render_replay
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, plural, ranges, window

SUMS = ("steps", "events", "requests", "stamps", "entries", "entries_planned", "entries_skipped", "sweeps")
COUNTS = ("incidents", "slots", "shadows", "breaches", "violations", "capacity_violations", "cut_steps")
STATUSES = ("pass", "fail", "incomplete", "error")


def build_files(outcomes: Sequence[dict[str, Any]], *, jobs: int, seconds: float) -> Report:
    """The report of some files, each of which has an outcome: path, status, exit_code, and a report or an error."""
    reports = [outcome["report"] for outcome in outcomes if outcome["report"] is not None]
    backend = reports[0]["backend"] if reports else None
    inputs = {"files": [outcome["path"] for outcome in outcomes], "jobs": jobs}
    report = base_report("replay", inputs=inputs, backend=backend)
    statuses = Counter(outcome["status"] for outcome in outcomes)
    report["coverage"] = {key: sum(each["coverage"][key] for each in reports) for key in SUMS}
    report["summary"] = {
        "files": len(outcomes),
        **{status: statuses[status] for status in STATUSES},
        **{key: sum(each["summary"][key] for each in reports) for key in COUNTS},
    }
    report["incidents"] = [
        {"file": outcome["path"], **incident}
        for outcome in outcomes
        if outcome["report"] is not None
        for incident in outcome["report"]["incidents"]
    ]
    report["files"] = list(outcomes)
    report["hints"] = _hints(outcomes)
    report["timing"] = {"seconds": round(seconds, 3)}
    return finish(report, *[Exit(outcome["exit_code"]) for outcome in outcomes])


def _hints(outcomes: Sequence[dict[str, Any]]) -> list[str]:
    """What the first file that did not pass hints at."""
    for outcome in outcomes:
        if outcome["report"] is not None and outcome["report"]["hints"]:
            return list(outcome["report"]["hints"])
    return [again(o["report"]["inputs"]) for o in outcomes if o["report"] and o["status"] != "pass"][:1]


def render_files(report: Report, *, show_all: bool = False) -> Sections:
    """The text report."""
    coverage, summary, backend = report["coverage"], report["summary"], report["backend"]
    jobs = report["inputs"]["jobs"]
    how = f", {plural(min(jobs, summary['files']), 'job')} at a time" if jobs > 1 else ", one after the other"
    header = [
        ("replay", plural(summary["files"], "file") + how),
        (
            "",
            f"{plural(coverage['steps'], 'step')}, {plural(coverage['requests'], 'request')}, "
            f"{plural(coverage['events'], 'event')}",
        ),
    ]
    if backend is not None:
        reason = f" ({backend['reason']})" if backend["reason"] else ""
        header.append(("backend", f"{backend['name']} on {backend['device']}{reason}"))
    body: list[str | Table] = [_files_table(report["files"])]
    body += _incident_table(report["incidents"], len(report["incidents"]) if show_all else MAX_ROWS)
    return Sections(
        header=header,
        body=body,
        status=_status(report),
        notes=[("next", hint) for hint in report["hints"]],
        verdict={
            "incidents": summary["incidents"],
            "slots": summary["slots"],
            "checked": coverage["entries"],
            "skipped": coverage["entries_skipped"],
            **({"capacity": summary["capacity_violations"]} if summary["capacity_violations"] else {}),
            "files": summary["files"],
            **{status: summary[status] for status in STATUSES if status != "pass" and summary[status]},
        },
        annotations=_annotations(report),
    )


def _files_table(files: list[dict[str, Any]]) -> Table:
    right = ("STEPS", "ENTRIES", "INCIDENTS", "SLOTS", "CAPACITY")
    columns = [Column("FILE"), Column("STATUS"), *(Column(word, "right") for word in right)]
    rows, details = [], []
    for file in files:
        found = file["report"]
        row = [name(file["path"]), file["status"].upper()]
        if found is None:
            rows.append([*row, "-", "-", "-", "-", "-"])
        else:
            summary = found["summary"]
            numbers = [found["coverage"]["steps"], found["coverage"]["entries"]]
            numbers += [summary["incidents"], summary["slots"], summary["capacity_violations"]]
            rows.append([*row, *(count(number) for number in numbers)])
        details.append(_detail(file))
    return Table(columns, rows, detail=details)


def _detail(file: dict[str, Any]) -> str | None:
    if file["error"] is not None:
        return f"  error: {error_text(file['error'])}"
    if file["report"] is None:
        return "  not run, stopped by Ctrl-C"
    missing = file["report"]["coverage"]["incomplete"]
    return "\n".join(f"  missing: {text}" for text in missing) or None


def error_text(error: dict[str, Any]) -> str:
    """Where and what, as on stderr."""
    return ": ".join(part for part in (error["where"], error["path"], error["message"]) if part)


def _incident_table(incidents: list[dict[str, Any]], most: int) -> list[str | Table]:
    if not incidents:
        return []
    columns = [
        Column("FILE"),
        Column("#", "right"),
        Column("KIND"),
        Column("SLOTS", "right"),
        Column("PAGES"),
        Column("DAMAGED", "right"),
        Column("SEEN", "right"),
    ]
    rows = [
        [
            name(incident["file"]),
            str(incident["id"]),
            incident_title(incident),
            count(incident["num_slots"]),
            ranges(incident["pages"], limit=2),
            window(incident["damaged_step"]),
            "never" if incident["seen"] is None else str(incident["seen"]["step"]),
        ]
        for incident in incidents[:most]
    ]
    extra = len(incidents) - most
    more = [f"... {count(extra)} more incidents (--all, or --format json)"] if extra > 0 else []
    return ["", plural(len(incidents), "incident"), "", Table(columns, rows), *more]


def _status(report: Report) -> str:
    summary = report["summary"]
    if summary["pass"] == summary["files"]:
        return "no fault found in what was checked of any file"
    parts = [f"{count(summary[s])} {s}" for s in STATUSES if summary[s]]
    return f"of {plural(summary['files'], 'file')}: {', '.join(parts)}"


def _annotations(report: Report) -> list[Annotation]:
    found = []
    for file in report["files"]:
        if file["error"] is not None:
            found.append(
                Annotation(level="error", title=f"kvcanary {file['path']}", message=error_text(file["error"]))
            )
        elif file["report"] is not None:
            sections = render_replay(file["report"])
            found += [
                Annotation(level=a.level, title=f"{a.title} in {file['path']}", message=a.message)
                for a in sections.annotations
            ]
            if not sections.annotations and file["status"] != "pass":
                level = "error" if file["status"] == "fail" else "warning"
                found.append(
                    Annotation(level=level, title=f"kvcanary {file['path']}", message=sections.status)
                )
    return found
