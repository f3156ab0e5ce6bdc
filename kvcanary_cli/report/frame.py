"""The frame that all reports share: the JSON keys every command has, and the text around each body.

A command builds a report dict, and a pure function turns that dict into `Sections`; text, annotations and
JSON come from the same dict, so they can't disagree. The verdict line is a contract: keys are only added,
before `exit`, and never renamed or reordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcanary_cli import __version__
from kvcanary_cli.exits import Exit, worst
from kvcanary_cli.report.tables import Table
from kvcanary_cli.report.text import ascii_lines, name, wrap

SCHEMA = "kvcanary.report/1"

Report = dict[str, Any]

NOTE_COLUMN = 8
"""Column at which the text of `status:`, `why:`, `fix:` and `next:` begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """One `::error::` or `::warning::` line of `--format github`."""

    level: str
    title: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sections:
    """The parts of a text report, top to bottom.

    Args:
        header: what was examined, its pool, what did the checking, as `(label, text)`; an empty label
            continues the row before it, and a line feed in a text starts a line under it.
        body: tables, and texts of one or more lines, without blank lines between them; `""` is a blank line.
        status: the sentence after the status word; empty where a command has no verdict to explain.
        notes: `("why" | "fix" | "next", text)`; the same label again continues it. These lines are never
            wrapped, because they hold commands and messages to paste.
        verdict: keys of the last line in their order; `exit` is added.
        annotations: one per finding worth a line of its own on GitHub.
    """

    header: list[tuple[str, str]]
    body: list[str | Table]
    status: str
    notes: list[tuple[str, str]]
    verdict: dict[str, object]
    annotations: list[Annotation] = field(default_factory=list)


def base_report(
    command: str,
    *,
    inputs: dict[str, Any],
    pool: dict[str, Any] | None = None,
    backend: dict[str, Any] | None = None,
    packages: Sequence[str] = (),
) -> Report:
    """The keys that every report has, in their order; `finish` fills `status` and `exit_code`.

    Args:
        packages: names whose installed versions belong under `tool`, such as the backend's.
    """
    return {
        "schema": SCHEMA,
        "command": command,
        "status": None,
        "exit_code": None,
        "tool": {"version": __version__, **{package: installed(package) for package in packages}},
        "inputs": inputs,
        "pool": pool,
        "backend": backend,
    }


def installed(package: str) -> str | None:
    """Version of an installed distribution, without importing it; None if there is none."""
    from importlib import metadata  # deferred: commands that name no package don't pay for it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def finish(report: Report, *codes: Exit, warnings: int = 0) -> Report:
    """Set `exit_code` to the worst of `codes`, `status` to the word that fits, and `warnings`.

    `warnings` counts what is in order but close (TIGHT, WARN); `--strict` turns them into findings. An
    interrupted run keeps the verdict about what it had seen: fail with findings, otherwise incomplete.
    """
    report["exit_code"] = int(worst(*codes))
    report["status"] = _status(codes)
    report["warnings"] = warnings
    return report


def _status(codes: Sequence[Exit]) -> str:
    if any(code in (Exit.INTERNAL, Exit.USAGE, Exit.ENVIRONMENT) for code in codes):
        return "error"
    if Exit.FINDINGS in codes:
        return "fail"
    if Exit.INCOMPLETE in codes or Exit.INTERRUPTED in codes:
        return "incomplete"
    return "pass"


def strict(report: Report) -> Report:
    """The report as `--strict` sees it: a pass or a gap with warnings is a fail."""
    if not report.get("warnings") or report["status"] not in ("pass", "incomplete"):
        return report
    code = worst(Exit(report["exit_code"]), Exit.FINDINGS)
    return {**report, "status": "fail", "exit_code": int(code)}


def verdict_line(report: Report, sections: Sections) -> str:
    """The last line of a text report: `kvcanary: PASS replay incidents=0 ... exit=0`."""
    pairs = [f"{key}={_verdict_value(value)}" for key, value in sections.verdict.items()]
    parts = ["kvcanary:", report["status"].upper(), report["command"], *pairs, f"exit={report['exit_code']}"]
    return " ".join(parts)


def _verdict_value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(_verdict_value(item) for item in value) or "-"
    # readers split the line at spaces
    return name(value).replace(" ", "\\x20")


def layout(report: Report, sections: Sections) -> list[str | Table]:
    """The report as lines and tables in their order; every other form is made from this one."""
    parts: list[str | Table] = []
    if sections.header:
        parts += [*_labelled(sections.header), ""]
    for item in sections.body:
        parts += [item] if isinstance(item, Table) else ascii_lines(item).split("\n")
    if sections.body:
        parts.append("")
    closing = _status_lines(report, sections) + _note_lines(sections.notes)
    if closing:
        parts += [*closing, ""]
    parts.append(verdict_line(report, sections))
    return parts


def render_text(report: Report, sections: Sections, *, width: int | None = None, styled: bool = False) -> str:
    """The text report, ending in a line feed.

    Args:
        width: columns of the terminal; None in a pipe. Only tables on a very narrow terminal depend on it.
        styled: with escape codes for a terminal that has colour.
    """
    parts = layout(report, sections)
    if styled:
        from kvcanary_cli.report.styled import to_ansi  # deferred: plain reports never load Rich

        return to_ansi(parts, width=width)
    lines: list[str] = []
    for part in parts:
        lines += part.lines(width) if isinstance(part, Table) else [part.rstrip()]
    return "\n".join(lines) + "\n"


def _labelled(rows: list[tuple[str, str]]) -> list[str]:
    column = max(len(label) for label, _ in rows) + 3
    lines: list[str] = []
    for label, text in rows:
        for number, line in enumerate(ascii_lines(text).split("\n")):
            lines.append(((label if number == 0 else "").ljust(column) + line).rstrip())
    return lines


def _status_lines(report: Report, sections: Sections) -> list[str]:
    if not sections.status:
        return []
    first = f"{'status:':{NOTE_COLUMN}}{report['status'].upper()}   "
    return wrap(ascii_lines(sections.status), first=first)


def _note_lines(notes: list[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    before = None
    for label, text in notes:
        for line in ascii_lines(text).split("\n"):
            lines.append(("" if label == before else f"{label}:").ljust(NOTE_COLUMN) + line)
            before = label
    return lines
