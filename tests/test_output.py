"""Where a report goes, in which form, and what the process then returns."""

from __future__ import annotations

import io
import json
import os
import re

import pytest
import typer

from kvcanary_cli import output
from kvcanary_cli.commands._options import emit_options
from kvcanary_cli.errors import InputError
from kvcanary_cli.exits import Exit
from kvcanary_cli.output import EmitOptions, Format, emit, start_progress
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Annotation, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table


def build(*codes: Exit, warnings: int = 0):
    report = base_report("replay", inputs={"trace": "t.jsonl"})
    report["incidents"] = [{"id": 1, "kind": "K07"}, {"id": 2, "kind": "K01"}]
    return finish(report, *codes, warnings=warnings)


def render(report, annotations=()):
    return Sections(
        header=[("replay", "t.jsonl")],
        body=[Table([Column("KIND"), Column("SLOTS", "right")], [["K07", "1,277,952"]])],
        status="a sentence",
        notes=[],
        verdict={"incidents": len(report["incidents"])},
        annotations=list(annotations),
    )


def emitted(capsys, report, **options) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as left:
        emit(report, render, EmitOptions(**options))
    captured = capsys.readouterr()
    assert captured.err == ""
    return left.value.exit_code, captured.out


TEXT = (
    "replay   t.jsonl\n\n  KIND      SLOTS\n  K07   1,277,952\n\n"
    "status: FAIL   a sentence\n\nkvcanary: FAIL replay incidents=2 exit=1\n"
)


def test_text(capsys):
    assert emitted(capsys, build(Exit.FINDINGS)) == (1, TEXT)


def test_quiet_prints_the_verdict_only(capsys):
    assert (
        emitted(capsys, build(Exit.FINDINGS), quiet=True)[1] == "kvcanary: FAIL replay incidents=2 exit=1\n"
    )


def test_json_is_the_report(capsys):
    report = build(Exit.FINDINGS)
    code, out = emitted(capsys, report, format=Format.json)
    assert (code, json.loads(out)) == (1, report)


def test_jsonl_has_findings_then_one_summary(capsys):
    report = build(Exit.FINDINGS)
    lines = [json.loads(line) for line in emitted(capsys, report, format=Format.jsonl)[1].splitlines()]
    assert [line.pop("type") for line in lines] == ["incident", "incident", "summary"]
    assert lines[:2] == report["incidents"]
    assert lines[2] == {key: value for key, value in report.items() if key != "incidents"}


def test_numpy_values_become_plain(capsys):
    np = pytest.importorskip("numpy")
    report = build(Exit.PASS) | {"slots": np.arange(3), "total": np.int64(7)}
    out = json.loads(emitted(capsys, report, format=Format.json)[1])
    assert (out["slots"], out["total"]) == ([0, 1, 2], 7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_hold_is_a_bug(value):
    with pytest.raises((ValueError, TypeError)):
        output.to_json({"value": value})


def test_output_file_gets_json_and_stdout_text(capsys, tmp_path):
    report, path = build(Exit.FINDINGS), tmp_path / "report.json"
    assert emitted(capsys, report, output=str(path)) == (1, TEXT)
    assert json.loads(path.read_text(encoding="utf-8")) == report


def test_output_dash_is_json_on_stdout_and_no_file(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    report = build(Exit.PASS)
    assert json.loads(emitted(capsys, report, output="-")[1]) == report
    assert list(tmp_path.iterdir()) == []


def test_output_that_can_not_be_written(tmp_path):
    with pytest.raises(InputError, match="the report can't be written: Is a directory"):
        emit(build(Exit.PASS), render, EmitOptions(output=str(tmp_path)))


def test_output_in_a_missing_folder_is_refused_before_the_work(tmp_path):
    folder = tmp_path / "new"
    with pytest.raises(InputError, match=f"there is no folder {folder}") as refused:
        emit_options(output=str(folder / "report.json"))
    assert refused.value.hint == f"`mkdir -p {folder}`"
    with pytest.raises(InputError, match="this is a folder"):
        emit_options(output=str(tmp_path))
    assert emit_options(output="-").output == "-"


@pytest.mark.parametrize(
    ("code", "returned"),
    [(Exit.FINDINGS, 0), (Exit.INCOMPLETE, 0), (Exit.PASS, 0), (Exit.INTERRUPTED, 130), (Exit.USAGE, 2)],
)
def test_exit_zero_hides_findings_and_gaps_only(capsys, code, returned):
    report = build(code)
    got, out = emitted(capsys, report, exit_zero=True, format=Format.json)
    assert got == returned
    assert json.loads(out)["exit_code"] == code


def test_strict_turns_warnings_into_a_fail(capsys):
    assert emitted(capsys, build(Exit.PASS, warnings=1))[0] == 0
    code, out = emitted(capsys, build(Exit.PASS, warnings=1), strict=True)
    assert code == 1
    assert "status: FAIL" in out
    assert "kvcanary: FAIL replay incidents=2 exit=1" in out


def test_github_lines_come_before_the_report(capsys):
    annotation = Annotation(level="error", title="K07: late, remote", message="50% of\nslots")
    with pytest.raises(typer.Exit):
        emit(build(Exit.FINDINGS), lambda r: render(r, [annotation]), EmitOptions(format=Format.github))
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert first == "::error title=K07%3A late%2C remote::50%25 of%0Aslots"
    assert rest == TEXT


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (Exit.FINDINGS, "::error title=kvcanary replay::a sentence"),
        (Exit.INCOMPLETE, "::warning title=kvcanary replay::a sentence"),
        (Exit.PASS, "replay   t.jsonl"),
    ],
)
def test_github_without_annotations_says_the_status(capsys, code, line):
    assert emitted(capsys, build(code), format=Format.github)[1].splitlines()[0] == line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("is_terminal", "variables", "bold", "colour"),
    [
        (True, {}, True, True),
        (True, {"NO_COLOR": "1"}, True, False),
        (True, {"NO_COLOR": ""}, True, True),
        (True, {"TERM": "dumb"}, False, False),
        (True, {"TERM": "dumb", "FORCE_COLOR": "1"}, False, False),
        (False, {}, False, False),
        (False, {"FORCE_COLOR": "1"}, True, True),
        (False, {"FORCE_COLOR": "0"}, False, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_codes_follow_terminal_and_variables(monkeypatch, is_terminal, variables, bold, colour):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    with pytest.raises(typer.Exit):
        emit(build(Exit.FINDINGS), render, EmitOptions())
    out = stream.getvalue()
    assert bool(re.search(r"\x1b\[1m", out)) is bold
    assert bool(re.search(r"\x1b\[(1;)?3\dm", out)) is colour
    assert out.count("1,277,952") == 1


def test_a_real_terminal_gets_the_box(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR")
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    with pytest.raises(typer.Exit):
        emit(build(Exit.FINDINGS), render, EmitOptions())
    assert re.search(r"^  -+$", stream.getvalue(), re.MULTILINE)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_for(
    progress: Progress, clock: Clock, seconds: int, *, total: int | None = 1000, start: int = 0
) -> None:
    for second in range(start, seconds):
        clock.now = float(second)
        progress.update(second, total, second * 2_000_000, 0)


def test_log_progress_backs_off():
    clock, stream = Clock(), io.StringIO()
    run_for(Progress("replay", stream=stream, clock=clock), clock, 1000)
    steps = re.findall(r"step (\d+) of", stream.getvalue())
    assert steps == ["10", "60", "300", "600", "900"]
    assert stream.getvalue().splitlines()[0] == (
        "replay  step 10 of 1,000  1%  2.0 M entries/s  incidents 0  eta 990 s".replace("990 s", "16 min")
    )


def test_log_progress_of_a_short_run_is_nothing():
    clock, stream = Clock(), io.StringIO()
    progress = Progress("replay", stream=stream, clock=clock)
    run_for(progress, clock, 10)
    progress.event("step 3: K07, 16 slots")
    progress.close()
    assert stream.getvalue() == ""


def test_log_announces_held_findings_with_the_first_line():
    clock, stream = Clock(), io.StringIO()
    progress = Progress("replay", stream=stream, clock=clock)
    for number in range(12):
        progress.event(f"step {number}: K07")
    run_for(progress, clock, 12)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[:10] == [f"step {number}: K07" for number in range(10)]
    assert lines[10].startswith("replay  step 10 of 1,000")
    assert lines[11:] == ["... 2 more findings"]


def test_pipe_has_no_percent_and_no_eta():
    clock, stream = Clock(), io.StringIO()
    run_for(Progress("replay", stream=stream, clock=clock), clock, 12, total=None)
    assert stream.getvalue() == "replay  step 10  2.0 M entries/s  incidents 0\n"


def test_terminal_line_is_rewritten_and_removed():
    clock, stream = Clock(), io.StringIO()
    progress = Progress("replay", stream=stream, is_live=True, clock=clock)
    for tick in range(1000):
        clock.now = tick / 100
        progress.update(tick, 1000, tick, 0)
    drawn = stream.getvalue().count("\r\x1b[K")
    assert drawn <= 101
    progress.event("step 7: K07")
    assert stream.getvalue().endswith("\r\x1b[Kstep 7: K07\n")
    progress.update(1000, 1000, 1, 1)
    clock.now = 11
    progress.update(1000, 1000, 1, 1)
    progress.close()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert "\n" not in stream.getvalue().partition("step 7: K07\n")[2]


@pytest.mark.parametrize(
    ("options", "flag", "variable"),
    [({}, True, None), ({"quiet": True}, False, None), ({}, False, "1")],
    ids=["flag", "quiet", "variable"],
)
def test_progress_can_be_switched_off(capsys, monkeypatch, options, flag, variable):
    if variable:
        monkeypatch.setenv("KVCANARY_NO_PROGRESS", variable)
    progress = start_progress("replay", EmitOptions(**options), no_progress=flag)
    monkeypatch.setattr(progress, "_clock", lambda: progress._start + 20)
    progress.update(1, 2, 3, 0)
    progress.event("step 1: K07")
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_progress_is_on_otherwise(capsys, monkeypatch):
    progress = start_progress("replay", EmitOptions())
    monkeypatch.setattr(progress, "_clock", lambda: progress._start + 20)
    progress.update(1, 2, 3, 0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("replay  step 1 of 2")


def test_jsonl_streams_start_and_progress(capsys, monkeypatch):
    progress = start_progress("replay", EmitOptions(format=Format.jsonl), no_progress=True, inputs={"a": 1})
    monkeypatch.setattr(progress, "_clock", lambda: progress._start + 20)
    progress.update(5, 10, 50, 1)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"type": "start", "schema": "kvcanary.report/1", "command": "replay", "inputs": {"a": 1}},
        {
            "type": "progress",
            "step": 5,
            "steps_planned": 10,
            "entries": 50,
            "findings": 1,
            "timing": {"seconds": 20.0},
        },
    ]


def test_environment_of_this_run_is_fixed():
    assert (os.environ["COLUMNS"], os.environ["NO_COLOR"], os.environ["TERM"]) == ("80", "1", "dumb")
