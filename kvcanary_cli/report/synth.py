"""The report of `synth`: what was written, and how to use it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.text import name, plural
from kvcanary_cli.trace.events import Header


@dataclass(kw_only=True, slots=True)
class TraceFacts:
    """What went into a trace, counted while it was written; `events` includes the header."""

    events: int = 0
    steps: int = 0
    requests: int = 0


def build_synth(header: Header, facts: TraceFacts, *, path: str, inputs: dict[str, Any]) -> Report:
    """The report of a written trace; it always passes, because a trace that can't be written is an error.

    Args:
        path: where the trace went, "-" for standard output.
        inputs: the command's options, as given.
    """
    slots, page_size = header.pool.slots, header.pool.page_size
    pool = {
        "slots": slots,
        "pages": slots // page_size,
        "page_size": page_size,
        "groups": [group.kind for group in header.groups],
    }
    report = base_report("synth", inputs=inputs, pool=pool)
    report["trace"] = {
        "path": path,
        "steps": facts.steps,
        "requests": facts.requests,
        "events": facts.events,
        "faults": 0,
    }
    return finish(report, Exit.PASS)


def render_synth(report: Report) -> Sections:
    """The text report."""
    trace = report["trace"]
    counts = (
        f"{plural(trace['steps'], 'step')}, {plural(trace['requests'], 'request')}, "
        f"{plural(trace['events'], 'event')}"
    )
    shown = "stdout" if trace["path"] == "-" else name(trace["path"])
    return Sections(
        header=[("wrote", f"{shown}   {counts}")],
        body=[],
        status="",
        notes=[("next", f"kvcanary replay {_argument(trace['path'])}")],
        verdict={
            "steps": trace["steps"],
            "events": trace["events"],
            "faults": trace["faults"],
            "seed": report["inputs"]["seed"],
        },
    )


def _argument(path: str) -> str:
    """A path as it can be pasted into a shell: quoted, and never taken for an option."""
    if path != "-" and path.startswith("-"):
        path = "./" + path
    return name(shlex.quote(path))
