"""Report of `check-capacities --compare`: two audits side by side, as a dict, and that dict as text."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.capacity.audit import Audit
from kvcanary_cli.exits import Exit
from kvcanary_cli.report.check_capacities import build_check_capacities
from kvcanary_cli.report.frame import Annotation, Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, plural, size

# How bad a row is; one that is not there is not bad
_RANK = {"OK": 0, "INFO": 0, "TIGHT": 1, "WARN": 1, "OVER": 2, "FAIL": 2, None: 0}
_WORDS = ("worse", "better", "changed", "same")


def build_comparison(first: Audit, second: Audit) -> Report:
    """The report dict of a comparison; its verdict is that of the second set-up."""
    sides = [build_check_capacities(first), build_check_capacities(second)]
    report = base_report(
        "check-capacities", inputs={"first": sides[0]["inputs"], "second": sides[1]["inputs"]}
    )
    report["sides"] = [_side(side) for side in sides]
    report["rows"] = _rows(sides)
    report["summary"] = {word: sum(row["change"] == word for row in report["rows"]) for word in _WORDS}
    code = Exit.FINDINGS if sides[1]["summary"]["over"] else Exit.PASS
    return finish(report, code, warnings=sides[1]["warnings"])


def _side(report: Report) -> dict[str, Any]:
    return {
        "config": report["launch"]["config"],
        "status": report["status"],
        "pool": report["pool"],
        "findings": report["findings"],
        "fixes": report["fixes"],
        "total_bytes": report["memory"]["total_bytes"],
    }


def _rows(sides: list[Report]) -> list[dict[str, Any]]:
    by_name = [{row["name"]: row for row in side["capacities"]} for side in sides]
    rows = []
    for name in dict.fromkeys(name for rows in by_name for name in rows):
        first, second = by_name[0].get(name), by_name[1].get(name)
        rows.append(
            {"name": name, "first": _cell(first), "second": _cell(second), "change": _change(first, second)}
        )
    bytes_of = [side["memory"]["total_bytes"] for side in sides]
    rows.append(
        {
            "name": "memory",
            "first": {"status": None, "value": bytes_of[0], "need": None},
            "second": {"status": None, "value": bytes_of[1], "need": None},
            "change": _word(bytes_of[0] - bytes_of[1]),
        }
    )
    return rows


def _cell(row: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else {key: row[key] for key in ("status", "value", "need")}


def _change(first: dict[str, Any] | None, second: dict[str, Any] | None) -> str:
    ranks = [_RANK[None if row is None else row["status"]] for row in (first, second)]
    if ranks[0] != ranks[1]:
        return _word(ranks[0] - ranks[1])
    if _cell(first) == _cell(second):
        return "same"
    if first is None or second is None or not (first["need"] and second["need"]):
        return "changed"
    # room left over, value / need, compared without division
    return _word(second["value"] * first["need"] - first["value"] * second["need"], same="changed")


def _word(gain: int, *, same: str = "same") -> str:
    return "better" if gain > 0 else "worse" if gain < 0 else same


def render_comparison(report: Report) -> Sections:
    """The report dict as text."""
    sides, summary = report["sides"], report["summary"]
    rows = [
        [row["name"], *(_text(row["name"], row[side]) for side in ("first", "second")), row["change"]]
        for row in report["rows"]
    ]
    columns = [Column("CAPACITY"), Column("FIRST", "right"), Column("SECOND", "right"), Column("CHANGE")]
    worse = [row["name"] for row in report["rows"] if row["change"] == "worse"]
    better = [row["name"] for row in report["rows"] if row["change"] == "better"]
    parts = []
    for word, found in (("worse", worse), ("better", better)):
        if found:
            parts.append(f"{word}: {', '.join(found)}")
    sentence = "; ".join(parts) or "neither is better"
    failing = [finding for finding in sides[1]["findings"] if finding["severity"] == "error"]
    notes = [("why", finding["server_message"] or finding["text"]) for finding in failing]
    fixes = [fix["text"] for fix in sides[1]["fixes"][:1]] if failing else []
    return Sections(
        header=[(label, _subject(side)) for label, side in zip(("first", "second"), sides, strict=True)],
        body=[Table(columns=columns, rows=rows)],
        status=f"{'the second fails; ' if failing else ''}{sentence}",
        notes=[*notes, *(("fix", fix) for fix in fixes)],
        verdict={word: summary[word] for word in _WORDS},
        annotations=[Annotation(level="warning", title=name, message="worse than before") for name in worse],
    )


def _subject(side: dict[str, Any]) -> str:
    pool = side["pool"]
    return f"{side['config']}: {side['status'].upper()}, {plural(pool['slots'], 'slot')}, {', '.join(pool['groups'])}"


def _text(name: str, cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    if name == "memory":
        return size(cell["value"])
    numbers = [count(cell[key]) for key in ("need", "value") if cell[key] is not None]
    return f"{' of '.join(numbers)} {cell['status']}".strip()
