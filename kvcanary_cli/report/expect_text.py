"""What was planted against what was found, by kind: text made from the report's dict alone."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.kinds import title
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count


def expectation_lines(expectation: dict[str, Any]) -> list[str | Table]:
    """The table of `--expect`: planted, found, named right, median latency; then what nobody planted."""
    columns = [
        Column("FAULT"),
        Column("PLANTED", "right"),
        Column("FOUND", "right"),
        Column("NAMED RIGHT", "right"),
        Column("MEDIAN LATENCY", "right"),
    ]
    rows = [
        [
            title(kind["kind"]),
            count(kind["planted"]),
            count(kind["found"]),
            count(kind["named_right"]),
            "-" if kind["median_latency_steps"] is None else count(kind["median_latency_steps"]),
        ]
        for kind in expectation["kinds"]
    ]
    return [
        Table(columns, rows),
        f"  not planted, reported: {count(expectation['not_planted'])}",
        *_wrong(expectation),
    ]


def _wrong(expectation: dict[str, Any]) -> list[str]:
    lines = []
    if expectation["false_slots"]:
        lines.append(f"  slots reported damaged that are not: {count(expectation['false_slots'])}")
    if expectation["blamed_rids"]:
        lines.append(f"  requests blamed that are innocent: {' '.join(expectation['blamed_rids'])}")
    return lines + [line for fault in expectation["faults"] for line in _unmet(fault)]


def _unmet(fault: dict[str, Any]) -> list[str]:
    """Why one planted fault was not found, or by which name it was."""
    what = f"  {title(fault['kind'])} at step {fault['step']}: "
    if not fault["found"]:
        return [what + "not found"]
    if not fault["named_right"]:
        return [what + f"found as {fault['found_as']}"]
    if not fault["in_time"]:
        return [what + f"seen at step {fault['first_seen_step']}, by {fault['found_by_step']} expected"]
    return []
