"""The report of `trace validate`: bad lines, what the traces hold, and what a replay of them could not check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Annotation, Report, Sections, base_report, finish
from kvcanary_cli.report.plant import argument
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, names, plural
from kvcanary_cli.trace_tools.validate import FileCheck, Problem, not_checkable

MAX_ROWS = 20


def build_validate(
    checks: Sequence[FileCheck], parts: Sequence[Problem], *, inputs: dict[str, Any]
) -> Report:
    """The report of some files.

    Args:
        parts: what is wrong with parts of one recording that were given together.
    """
    report = base_report("trace-validate", inputs=inputs)
    report["files"] = [_file(check) for check in checks]
    report["parts"] = [_problem(problem) for problem in parts]
    bad = sum(check.num_problems for check in checks)
    remarks = sum(check.num_remarks for check in checks) + len(parts)
    report["summary"] = {
        "files": len(checks),
        "events": sum(sum(check.kinds.values()) for check in checks),
        "bad_lines": bad,
        "remarks": remarks,
    }
    return finish(report, Exit.USAGE if bad else Exit.PASS, warnings=remarks)


def _file(check: FileCheck) -> dict[str, Any]:
    header = check.header
    return {
        "path": check.name,
        "is_valid": not check.num_problems,
        "bad_lines": check.num_problems,
        "problems": [_problem(problem) for problem in check.problems],
        "remarks": check.num_remarks,
        "remark_list": [_problem(problem) for problem in check.remarks],
        "truncated_line": check.truncated,
        "pool": structs.asdict(header.pool) if header is not None else None,
        "groups": [group.kind for group in header.groups] if header is not None else [],
        "sources": [source.name for source in header.sources] if header is not None else [],
        "state": header.state if header is not None else None,
        "continues": structs.asdict(header.continues) if header is not None and header.continues else None,
        "records": header.records if header is not None else None,
        "kinds": dict(sorted(check.kinds.items())),
        "requests": len(check.requests),
        "tokens": check.tokens,
        "seconds": None if check.first_t is None or check.last_t is None else check.last_t - check.first_t,
        "pending_transfers": check.pending_transfers,
        "not_checkable": [{"check": what, "why": why} for what, why in not_checkable(check)],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {"line": problem.line, "path": problem.path, "message": problem.message, "hint": problem.hint}


def render_validate(report: Report) -> Sections:
    """The text report."""
    body: list[str | Table] = []
    for file in report["files"]:
        body += ["", *_lines_of(file)] if body else _lines_of(file)
    if report["parts"]:
        body += ["", "parts of one recording", *[f"  {part['message']}" for part in report["parts"]]]
    files, summary = report["files"], report["summary"]
    what = name(files[0]["path"]) if len(files) == 1 else plural(len(files), "file")
    return Sections(
        header=[("trace validate", f"{what}: {plural(summary['events'], 'event')} that can be used")],
        body=body,
        status=_status(report),
        notes=_notes(report),
        verdict=dict(summary),
        annotations=_annotations(report),
    )


def _lines_of(file: dict[str, Any]) -> list[str | Table]:
    pool = file["pool"]
    lines: list[str | Table] = [name(file["path"])]
    if pool is not None:
        shape = f"{plural(pool['slots'], 'slot')}, pages of {count(pool['page_size'])}, {plural(pool['rows'], 'row')}"
        lines.append(
            f"  pool       {shape} of {count(pool['row_width'])}, groups: {' '.join(file['groups'])}"
        )
        lines.append(f"  sources    {names(file['sources'])}")
        lines.append(
            f"  holds      {plural(file['kinds'].get('forward', 0), 'step')}, {plural(file['requests'], 'request')}, "
            f"{plural(file['tokens'], 'token')} written"
            + (f", {file['seconds']:.3f} s" if file["seconds"] is not None else "")
        )
        kinds = [f"{kind} {count(number)}" for kind, number in file["kinds"].items() if kind != "header"]
        lines += _wrapped("  events     ", kinds)
    if file["continues"] is not None:
        lines.append(f"  part       {file['continues']['part']} of {name(file['continues']['of'])}")
    if file["pending_transfers"]:
        lines.append(f"  in flight  transfers at the end: {names(file['pending_transfers'])}")
    if file["problems"]:
        lines += ["", f"  {plural(file['bad_lines'], 'line')} that can't be used"]
        lines += _listed(file, file["problems"], file["bad_lines"])
    if file["remark_list"]:
        lines += [
            "",
            f"  {plural(file['remarks'], 'remark')}: a replay accepts this, a recorder hardly means it",
        ]
        lines += _listed(file, file["remark_list"], file["remarks"])
    if file["not_checkable"]:
        rows = [[gap["check"], gap["why"]] for gap in file["not_checkable"]]
        lines += ["", Table([Column("NOT CHECKED BY A REPLAY"), Column("BECAUSE")], rows)]
    return lines


def _wrapped(first: str, words: list[str]) -> list[str]:
    lines, line = [], first
    for word in words:
        if len(line) + len(word) > 78 and line.strip():
            lines.append(line.rstrip(", ") + ",")
            line = " " * len(first)
        line += word + ", "
    return [*lines, line.rstrip(", ")]


def _listed(file: dict[str, Any], problems: list[dict[str, Any]], total: int) -> list[str | Table]:
    lines: list[str | Table] = [
        f"  {_place(file, problem)}{_what(problem)}" for problem in problems[:MAX_ROWS]
    ]
    if total > MAX_ROWS:
        kept = "" if total > len(problems) else " (--format json has all)"
        lines.append(f"  ... {count(total - MAX_ROWS)} more{kept}")
    return lines


def _place(file: dict[str, Any], problem: dict[str, Any]) -> str:
    return name(file["path"]) + (f":{problem['line']}: " if problem["line"] is not None else ": ")


def _what(problem: dict[str, Any]) -> str:
    return f"{problem['path']}: {problem['message']}" if problem["path"] else problem["message"]


def _status(report: Report) -> str:
    summary = report["summary"]
    if summary["bad_lines"]:
        bad = [file for file in report["files"] if not file["is_valid"]]
        return f"{plural(summary['bad_lines'], 'line')} of {plural(len(bad), 'file')} can't be used"
    if summary["remarks"]:
        return f"every line can be used; {plural(summary['remarks'], 'remark')}"
    return "every line can be used, nothing was run"


def _notes(report: Report) -> list[tuple[str, str]]:
    good = [file["path"] for file in report["files"] if file["is_valid"]]
    bad = [file for file in report["files"] if not file["is_valid"] and file["pool"] is not None]
    notes = [("next", f"kvcanary replay {argument(path)}") for path in good[:1] if path != "<stdin>"]
    if bad:
        notes = [("next", f"kvcanary replay {argument(bad[0]['path'])} --skip-bad-lines")]
    return notes


def _annotations(report: Report) -> list[Annotation]:
    return [
        Annotation(level="error", title="kvcanary bad line", message=_place(file, problem) + _what(problem))
        for file in report["files"]
        for problem in file["problems"]
    ]
