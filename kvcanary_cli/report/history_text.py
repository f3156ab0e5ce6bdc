"""Everything that happened to one slot: text made from the report's dict alone."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.report.again import again
from kvcanary_cli.report.frame import Report, Sections
from kvcanary_cli.report.replay_text import header, span_text, verdict
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import plural


def render_history(report: Report) -> Sections:
    """Every event of one slot, in order; checks that say the same at step after step are one row."""
    history = report["history"]
    columns = [Column("STEP", "right"), Column("LINE", "right"), Column("EPOCH", "right"), Column("EVENT")]
    columns += [Column("WHO"), Column("DETAILS")]
    runs = _runs(history["moments"])
    rows = [
        [
            span_text([run[0]["step"], run[-1]["step"]]),
            "-" if run[0]["event"] is None else str(run[0]["event"]),
            str(run[0]["epoch"]),
            run[0]["what"] + (f" x {len(run)}" if len(run) > 1 else ""),
            run[0]["who"] or "-",
            run[0]["text"] or "-",
        ]
        for run in runs
    ]
    events = plural(len(history["moments"]), "event")
    title = f"slot {history['slot']} ({history['group']}), page {history['page']}: {events}"
    body: list[str | Table] = [title, ""]
    body.append(Table(columns, rows) if rows else "  nothing is recorded of this slot")
    return Sections(
        header=header(report),
        body=body,
        status=_history_status(history),
        notes=[("next", hint) for hint in _history_hints(report)],
        verdict=verdict(report),
    )


def _runs(moments: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    runs: list[list[dict[str, Any]]] = []
    told = ("what", "who", "epoch", "text")
    for moment in moments:
        is_check = moment["what"].startswith("check")
        if is_check and runs and all(moment[key] == runs[-1][-1][key] for key in told):
            runs[-1].append(moment)
        else:
            runs.append([moment])
    return runs


def _history_hints(report: Report) -> list[str]:
    """The incident that names the slot; the whole report where none does and something was found."""
    history = report["history"]
    for incident in report["incidents"]:
        own = incident["group"] == history["group"] and any(
            first <= history["slot"] <= last for first, last in incident["slots"] + incident["shadows"]
        )
        copies = [s for s in incident["slot_stories"] if s["group"] == history["group"]]
        if own or any(story["slot"] == history["slot"] for story in copies):
            return [again(report["inputs"], "--incident", str(incident["id"]))]
    return [] if report["status"] == "pass" else [again(report["inputs"])]


def _history_status(history: dict[str, Any]) -> str:
    failed = sum(moment["what"] == "check FAIL" for moment in history["moments"])
    checked = failed + sum(moment["what"] == "check ok" for moment in history["moments"])
    return f"slot {history['slot']} was checked {plural(checked, 'time')} and failed {plural(failed, 'time')}"
