"""The report of `inspect` on a KV event stream: what was sent by whom, what is missing, how full the cache was."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.event_audit_text import rank_text, residency_table
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, plural
from kvcanary_cli.trace.files import reads_once

if TYPE_CHECKING:
    from kvcanary_cli.kvevents.audit import AuditResult


def build_events(result: AuditResult, *, inputs: dict[str, Any], seconds: float) -> Report:
    """The report; skipped lines and an end inside a line make it incomplete."""
    from kvcanary_cli.report.event_audit import FORMAT, build_event_audit

    audit = build_event_audit(result, inputs=inputs, pool_tokens=None, required=(), seconds=seconds)
    report = base_report("inspect", inputs=inputs)
    by = "--input-format" if inputs["input_format"] is not None else "content"
    report["format"] = {**FORMAT, "from": by, "forms": audit["format"]["forms"]}
    coverage = audit["coverage"]
    kept = (
        "lines",
        "bad_lines",
        "bad_line_numbers",
        "truncated",
        "malformed",
        "gaps",
        "gap_count",
        "lost_batches",
    )
    report["coverage"] = {key: coverage[key] for key in kept}
    report["requests"] = None
    report["trace"] = None
    facts = ("batches", "events", "events_by_kind", "stored_blocks", "removed_blocks", "stored_again")
    more = ("numbered_batches", "started_at", "restarts", "repeated_batches", "seconds")
    report["events"] = {key: coverage[key] for key in (*facts, *more)} | {"ranks": audit["ranks"]}
    report["quirks"] = []
    report["assumed"] = []
    file = inputs["file"]
    report["hints"] = [] if reads_once(file) else [f"kvcanary replay {_argument(file)}"]
    report["timing"] = {"seconds": round(seconds, 3)}
    is_partial = coverage["bad_lines"] or coverage["truncated"] is not None
    return finish(report, Exit.INCOMPLETE if is_partial else Exit.PASS)


def _argument(path: str) -> str:
    """A path as it can be pasted into a shell: quoted, and never taken for an option."""
    return name(shlex.quote("./" + path if path.startswith("-") else path))


def render_events(report: Report) -> Sections:
    """The text report."""
    events, coverage = report["events"], report["coverage"]
    kinds = ", ".join(f"{kind} {count(number)}" for kind, number in events["events_by_kind"].items())
    rows = [
        ["form", ", ".join(f"{form} {count(number)}" for form, number in report["format"]["forms"].items())],
        ["batches", _batches(events)],
        ["events", f"{count(events['events'])}: {kinds}" if kinds else "none"],
        ["blocks", f"{count(events['stored_blocks'])} stored, {count(events['removed_blocks'])} removed"],
        ["ranks", ", ".join(rank_text(rank) for rank in events["ranks"]) or "none"],
        ["gaps", _gaps(events, coverage)],
    ]
    if events["restarts"]:
        rows.append(["restarts", count(events["restarts"])])
    by = "" if report["format"]["from"] == "content" else f", as {report['format']['from']} says"
    return Sections(
        header=[("inspect", name(report["inputs"]["file"])), ("format", f"{report['format']['title']}{by}")],
        body=[
            Table([Column("WHAT"), Column("FOUND")], rows, header=False),
            "",
            residency_table(events["ranks"]),
        ],
        status=_sentence(coverage),
        notes=[("next", hint) for hint in report["hints"]],
        verdict={
            "format": report["format"]["name"],
            "batches": events["batches"],
            "events": events["events"],
            "ranks": len(events["ranks"]),
            "lost_batches": coverage["lost_batches"],
            "bad_lines": coverage["bad_lines"],
        },
    )


def _batches(events: dict[str, Any]) -> str:
    span = events["seconds"]
    over = "" if span is None else f" over {span:,.3f} s"
    return f"{count(events['batches'])}{over}"


def _gaps(events: dict[str, Any], coverage: dict[str, Any]) -> str:
    if not events["numbered_batches"]:
        return "not known: the batches have no numbers"
    start = (
        "" if events["started_at"] is None else f"; the first batch is number {count(events['started_at'])}"
    )
    lost = plural(coverage["lost_batches"], "batch", "batches")
    return (
        f"{plural(coverage['gap_count'], 'gap')}, {lost} lost" if coverage["gap_count"] else "none"
    ) + start


def _sentence(coverage: dict[str, Any]) -> str:
    if coverage["bad_lines"]:
        return f"{plural(coverage['bad_lines'], 'line')} could not be used and are in no number above"
    if coverage["truncated"] is not None:
        return f"the file ends inside line {count(coverage['truncated']['line'])}"
    return "every line can be used; a replay says whether the events fit together"
