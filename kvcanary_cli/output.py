"""Streams, formats and exit of every report; the only module that writes to stdout or stderr."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer

from kvcanary_cli import settings
from kvcanary_cli.errors import InputError, KvCanaryError
from kvcanary_cli.exits import Exit
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import (
    SCHEMA,
    Annotation,
    Report,
    Sections,
    layout,
    render_text,
    strict,
    verdict_line,
)
from kvcanary_cli.report.text import ascii_lines, name


class Format(StrEnum):
    """What stdout gets."""

    text = "text"
    json = "json"
    jsonl = "jsonl"
    github = "github"


@dataclass(frozen=True, kw_only=True, slots=True)
class EmitOptions:
    """The options that all commands share and that say where a report goes.

    Args:
        output: file that gets the report as JSON; `-` is stdout, in place of the text.
        exit_zero: exit 0 in place of 1 and 4; the report keeps its code.
        strict: warnings are findings.
    """

    format: Format = Format.text
    output: str | None = None
    quiet: bool = False
    verbose: bool = False
    exit_zero: bool = False
    strict: bool = False

    @property
    def is_json(self) -> bool:
        """Whether stdout gets JSON objects and nothing else."""
        return self.format in (Format.json, Format.jsonl) or self.output == "-"


def emit(report: Report, render: Callable[[Report], Sections], options: EmitOptions) -> NoReturn:
    """Write the finished report where the options say, and leave with its exit code.

    Raises: typer.Exit always; InputError where the file of `--output` can't be written.
    """
    if options.strict:
        report = strict(report)
    if options.output is not None and options.output != "-":
        _write_file(options.output, to_json(report))
    if options.format is Format.jsonl:
        _write_jsonl(report)
    elif options.is_json:
        _write(to_json(report))
    else:
        _write_text(report, render(report), options)
    sys.stdout.flush()
    code = report["exit_code"]
    if options.exit_zero and code in (Exit.FINDINGS, Exit.INCOMPLETE):
        code = Exit.PASS
    raise typer.Exit(Exit(code))


def to_json(value: object, *, indent: int | None = 2) -> str:
    """JSON in ASCII with a line feed; NumPy values become plain numbers and lists."""
    return json.dumps(value, indent=indent, allow_nan=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a report can't hold a {type(value).__name__}")


def _write(text: str) -> None:
    sys.stdout.write(text)


def write_line(kind: str, fields: dict[str, Any]) -> None:
    """One object of `--format jsonl`; `kind` is start, progress, incident or summary."""
    _write(to_json({"type": kind, **fields}, indent=None))
    sys.stdout.flush()


def _write_jsonl(report: Report) -> None:
    """The findings one by one, then the rest: a reader never has to hold a line of unbounded length."""
    for incident in report.get("incidents", ()):
        write_line("incident", incident)
    for file in report.get("files", ()) if report.get("incidents") is not None else ():
        write_line("file", _without_incidents(file))
    rest = {key: value for key, value in report.items() if key not in ("incidents", *_LINES_OF_THEIR_OWN)}
    write_line("summary", rest if "incidents" in report else report)


_LINES_OF_THEIR_OWN = ("files",)
"""Lists of a replay's report that stand in front of the summary."""


def _without_incidents(file: dict[str, Any]) -> dict[str, Any]:
    """One file of several; its incidents were written already."""
    if file["report"] is None:
        return file
    return {**file, "report": {key: value for key, value in file["report"].items() if key != "incidents"}}


def _write_file(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="ascii")
    except OSError as error:
        raise InputError(
            f"the report can't be written: {error.strerror or error}",
            where=name(path),
            hint="`--output` takes a file in a folder that can be written",
        ) from error


def _write_text(report: Report, sections: Sections, options: EmitOptions) -> None:
    if options.format is Format.github:
        for annotation in sections.annotations or _fallback_annotation(report, sections):
            _write(_github_line(annotation))
    if options.quiet:
        _write(verdict_line(report, sections) + "\n")
    elif is_styled(sys.stdout):
        from kvcanary_cli.report.styled import print_parts  # deferred: only terminals pay for Rich

        print_parts(_console(sys.stdout), layout(report, sections))
    else:
        _write(render_text(report, sections, width=_width(sys.stdout)))


def _fallback_annotation(report: Report, sections: Sections) -> list[Annotation]:
    level = {"fail": "error", "incomplete": "warning"}.get(report["status"])
    if level is None:
        return []
    return [Annotation(level=level, title=f"kvcanary {report['command']}", message=sections.status)]


def abandon_stdout() -> None:
    """Drop what could not be written, or Python tries again at its end and changes the exit code to 120."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def _github_line(annotation: Annotation) -> str:
    """A workflow command; GitHub reads percent escapes for what would end a line or a property."""
    message = annotation.message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    title = name(annotation.title).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{annotation.level} title={title}::{ascii_lines(message)}\n"


def is_styled(stream: TextIO) -> bool:
    """Whether escape codes may be written to a stream."""
    if settings.is_dumb_terminal():
        return False
    return stream.isatty() or settings.force_color()


def _width(stream: TextIO) -> int | None:
    return shutil.get_terminal_size().columns if stream.isatty() else None


def _console(stream: TextIO) -> Any:
    from rich.console import Console

    return Console(
        file=stream,
        force_terminal=True,
        color_system="standard",
        no_color=settings.no_color(),
        width=_width(stream) or 80,
        markup=False,
        emoji=False,
        highlight=False,
    )


def start_progress(
    command: str, options: EmitOptions, *, no_progress: bool = False, inputs: dict[str, Any] | None = None
) -> Progress:
    """Progress of a run on stderr; with `--format jsonl` also `start` and `progress` objects on stdout."""
    is_wanted = not (no_progress or options.quiet or settings.no_progress())
    is_jsonl = options.format is Format.jsonl
    if is_jsonl:
        write_line("start", {"schema": SCHEMA, "command": command, "inputs": inputs or {}})
    return Progress(
        command,
        stream=sys.stderr if is_wanted else None,
        is_live=sys.stderr.isatty() and not settings.is_dumb_terminal(),
        on_record=partial(write_line, "progress") if is_jsonl else None,
    )


def write_error(error: KvCanaryError, *, output_format: Format | None) -> None:
    """An error as text on stderr and, when JSON was asked for, as an object on stdout."""
    text = f"error: {ascii_lines(str(error))}\n"
    if error.hint:
        text += f"\nhint: {ascii_lines(error.hint)}\n"
    sys.stderr.write(text)
    if output_format in (Format.json, Format.jsonl):
        report = {
            "schema": SCHEMA,
            "status": "error",
            "error": {
                "code": error.code,
                "where": error.where,
                "path": error.path,
                "message": error.message,
                "hint": error.hint,
            },
            "exit_code": int(error.exit_code),
        }
        if output_format is Format.jsonl:
            write_line("summary", report)
        else:
            _write(to_json(report))
