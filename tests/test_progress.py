"""Incidents that turn up during a run: ten lines at most, then a count, and nothing in the log of a short run."""

from __future__ import annotations

import io

import pytest

from kvcanary_cli.progress import Progress


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(seconds: float, events: int, *, is_live: bool = False) -> str:
    """What a run of that length writes that has all its findings in the first second and shows no state."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress("replay", stream=stream, is_live=is_live, clock=clock)
    for number in range(events):
        progress.event(f"step {number}: K07 late-remote-write, 1 slot of page 2")
    clock.now = seconds
    progress.close()
    return stream.getvalue()


def test_the_log_of_a_short_run_stays_empty():
    assert run(9.9, 12) == ""


@pytest.mark.parametrize(("seconds", "is_live"), [(10.0, False), (1.0, True)], ids=["log", "terminal"])
def test_ten_lines_and_a_count(seconds, is_live):
    lines = run(seconds, 12, is_live=is_live).splitlines()
    assert lines[0] == "step 0: K07 late-remote-write, 1 slot of page 2"
    assert lines[9].startswith("step 9: ")
    assert lines[10:] == ["... 2 more findings"]


def test_few_findings_need_no_count():
    assert len(run(10.0, 10).splitlines()) == 10


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("replay", "replay  step 12  50 entries/s  incidents 0"),
        ("simulate", "simulate  step 12  50 entries/s"),
        ("inspect", "inspect  record 12  50 tokens/s"),
        ("record-events", "record-events  batch 12  50 events/s  gaps 0"),
    ],
)
def test_every_command_counts_what_it_does(command, line):
    times = iter((0.0, 11.0))
    stream = io.StringIO()
    Progress(command, stream=stream, clock=lambda: next(times)).update(12, None, 550, 0)
    assert stream.getvalue() == line + "\n"
