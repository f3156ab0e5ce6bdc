"""Which part of a replay's report is shown: the summary, one incident, the slots, the pool, one slot's history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvcanary_cli.errors import UsageError
from kvcanary_cli.report.again import again
from kvcanary_cli.report.expect_text import expectation_lines
from kvcanary_cli.report.frame import Report, Sections
from kvcanary_cli.report.history_text import render_history
from kvcanary_cli.report.incident_text import render_incident, with_example
from kvcanary_cli.report.replay_text import render_replay, setting_lines
from kvcanary_cli.report.slots_text import heatmap_lines, slots_table
from kvcanary_cli.report.text import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Parts of the report that were asked for.

    Attributes:
        group: as given with `--slot`.
        expects: whether findings are compared with an answer sheet.
    """

    incident: int | None = None
    slot: int | None = None
    group: str | None = None
    history: bool = False
    slots: bool = False
    heatmap: bool = False
    show_all: bool = False
    shadows: bool = False
    expects: bool = False
    verbose: bool = False

    def check(self) -> None:
        """UsageError where parts don't go together."""
        if self.history and self.slot is None:
            raise UsageError("`--history` needs a slot", hint="`--slot N --history`")
        if self.slot is not None and not self.history and self.incident is None:
            raise UsageError(
                "`--slot` goes with `--history` or `--incident`", hint=f"`--slot {self.slot} --history`"
            )
        if self.group is not None and self.slot is None:
            raise UsageError("`--group` needs a slot", hint=f"`--slot N --group {self.group} --history`")
        if self.shadows and not self.slots:
            raise UsageError("`--shadows` goes with `--slots`", hint="`--slots --shadows`")
        self._check_pages()

    def _check_pages(self) -> None:
        """One incident and one history are pages of their own: what belongs to the summary has no place there."""
        pages = {"--incident": self.incident is not None, "--history": self.history}
        parts = pages | {"--slots": self.slots, "--heatmap": self.heatmap, "--expect": self.expects}
        page = next((flag for flag, is_asked in pages.items() if is_asked), None)
        others = [flag for flag, is_asked in parts.items() if is_asked and flag != page]
        if page is not None and others:
            raise UsageError(
                f"`{page}` is a page of its own, `{others[0]}` belongs to another", hint="one a run"
            )


def renderer(report: Report, view: View) -> Callable[[Report], Sections]:
    """The function that makes the text of this view.

    Raises:
        UsageError: there is no such incident, or no such slot in it.
    """
    if view.incident is not None:
        number = view.incident
        found = len(report["incidents"])
        if number > found:
            raise UsageError(
                f"`--incident {number}` was asked for, this run has {plural(found, 'incident')}",
                hint=f"`{again(report['inputs'])}` lists them" if found else None,
            )
        incident = with_example(report["incidents"][number - 1], view.slot, view.group)
        return lambda value: render_incident(value, incident)
    if view.history:
        return render_history
    return lambda value: _with_parts(value, view)


def _with_parts(report: Report, view: View) -> Sections:
    sections = render_replay(report, show_all=view.show_all)
    body = list(sections.body)
    if view.verbose:
        body += ["", *setting_lines(report)]
    if view.slots:
        body += ["", *slots_table(report, show_all=view.show_all, shadows=view.shadows)]
    if view.heatmap:
        body += ["", *heatmap_lines(report["heatmap"])]
    if report.get("expectation") is not None:
        body += ["", *expectation_lines(report["expectation"])]
    return replace(sections, body=body)
