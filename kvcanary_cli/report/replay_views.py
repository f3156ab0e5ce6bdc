"""Which part of a replay's report is shown: the summary, one incident, the slots, the pool, one slot's history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvcanary_cli.errors import UsageError
from kvcanary_cli.report.expect_text import expectation_lines
from kvcanary_cli.report.frame import Report, Sections
from kvcanary_cli.report.incident_text import render_history, render_incident
from kvcanary_cli.report.replay_text import render_replay
from kvcanary_cli.report.slots_text import heatmap_lines, slots_table
from kvcanary_cli.report.text import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Parts of the report that were asked for."""

    incident: int | None = None
    slot: int | None = None
    history: bool = False
    slots: bool = False
    heatmap: bool = False
    show_all: bool = False
    shadows: bool = False

    def check(self) -> None:
        """UsageError where parts don't go together."""
        if self.history and self.slot is None:
            raise UsageError("`--history` needs a slot", hint="`--slot N --history`")
        if self.slot is not None and not self.history:
            raise UsageError("`--slot` goes with `--history`", hint=f"`--slot {self.slot} --history`")


def renderer(report: Report, view: View) -> Callable[[Report], Sections]:
    """The function that makes the text of this view.

    Raises:
        UsageError: there is no such incident.
    """
    if view.incident is not None:
        number = view.incident
        found = len(report["incidents"])
        if number > found:
            raise UsageError(f"`--incident {number}` was asked for, this run has {plural(found, 'incident')}")
        return lambda value: render_incident(value, number)
    if view.history:
        return render_history
    return lambda value: _with_parts(value, view)


def _with_parts(report: Report, view: View) -> Sections:
    sections = render_replay(report, show_all=view.show_all)
    body = list(sections.body)
    if view.slots:
        body += ["", *slots_table(report, show_all=view.show_all, shadows=view.shadows)]
    if view.heatmap:
        body += ["", *heatmap_lines(report["heatmap"])]
    if report.get("expectation") is not None:
        body += ["", *expectation_lines(report["expectation"])]
    return replace(sections, body=body)
