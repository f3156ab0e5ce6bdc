"""The report of `trace cut`: what was kept and why, what went, and what a replay of the cut can tell."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.plant import argument
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, names, plural, wrap
from kvcanary_cli.trace_tools.cut import ASKED, IN_SPAN, LIVE, Cut

MAX_NAMES = 6


def build_cut(cut: Cut, *, inputs: dict[str, Any], output: str) -> Report:
    """The report of a cut; it passes, because a span or a request that is not there is an error."""
    slots, page_size = cut.header.pool.slots, cut.header.pool.page_size
    pool = {
        "slots": slots,
        "pages": slots // page_size,
        "page_size": page_size,
        "groups": [group.kind for group in cut.header.groups],
    }
    report = base_report("trace-cut", inputs=inputs, pool=pool)
    report["trace"] = {"path": output, **asdict(cut.after)}
    report["before"] = asdict(cut.before)
    report["span"] = list(cut.span) if cut.span is not None else None
    report["steps_before_span"] = cut.steps_before
    report["kept"] = [{"rid": rid, "why": why} for rid, why in cut.why.items()]
    report["left_out"] = cut.left_out
    return finish(report, Exit.PASS)


def render_cut(report: Report) -> Sections:
    """The text report."""
    trace, before = report["trace"], report["before"]
    shown = "stdout" if trace["path"] == "-" else name(trace["path"])
    header = [
        ("wrote", f"{shown}   {_counts(trace)}"),
        ("from", f"{report['inputs']['trace']['path']}   {_counts(before)}"),
    ]
    body: list[str | Table] = []
    if report["span"] is not None:
        first, last = report["span"]
        steps, own = report["steps_before_span"], last - first + 1
        body += wrap(
            f"steps {first}-{last} of the trace are steps {steps}-{steps + own - 1} of the cut; the "
            f"{count(steps)} before them wrote what exists when the span begins, so that all of it can be judged.",
        )
        body.append("")
    body.append(_table(report))
    return Sections(
        header=header,
        body=body,
        status="",
        notes=[("next", f"kvcanary replay {argument(trace['path'])}")] if trace["path"] != "-" else [],
        verdict={
            "steps": trace["steps"],
            "events": trace["events"],
            "requests": trace["requests"],
            "left_out": len(report["left_out"]),
        },
    )


def _counts(size: dict[str, Any]) -> str:
    return f"{plural(size['steps'], 'step')}, {plural(size['requests'], 'request')}, {plural(size['events'], 'event')}"


def _table(report: Report) -> Table:
    """Requests by the reason why they are there; the single reasons are in the JSON."""
    order = [ASKED, IN_SPAN, LIVE]
    other = "slots of theirs and of the others belong together"
    reasons: Counter[str] = Counter()
    rids: dict[str, list[str]] = {}
    for kept in report["kept"]:
        why = kept["why"] if kept["why"] in order else other
        reasons[why] += 1
        rids.setdefault(why, []).append(kept["rid"])
    rows = [
        [count(reasons[why]), "kept", why, names(rids[why], limit=MAX_NAMES)]
        for why in [*order, other]
        if reasons[why]
    ]
    left = report["left_out"]
    rows.append(
        [
            count(len(left)),
            "left out",
            "nothing that was kept reads their slots",
            names(left, limit=MAX_NAMES),
        ]
    )
    return Table([Column("REQUESTS", "right"), Column("ARE"), Column("BECAUSE"), Column("WHICH")], rows)
