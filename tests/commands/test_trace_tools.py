"""`kvcanary trace …`, as a user meets it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.cli import ROOT, call, imported_by, spawn

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
SMALL = ("--scenario", "mixed", "--steps", "40", "--seed", "1")


@pytest.fixture
def there(tmp_path, monkeypatch, capsys):
    """A folder of its own, with a clean trace and a faulty one."""
    monkeypatch.chdir(tmp_path)
    call(capsys, "synth", "t.jsonl", *SMALL)
    call(capsys, "plant", "t.jsonl", "--fault", "K07", "--output", "bad.jsonl")
    return tmp_path


def report_of(capsys, code, *argv):
    done = call(capsys, *argv, "--format", "json")
    assert (done.code, done.err) == (code, "")
    report = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    return report


def test_validate(capsys, there):
    report = report_of(capsys, 0, "trace", "validate", "t.jsonl", "bad.jsonl")
    assert (report["command"], report["status"]) == ("trace-validate", "pass")
    assert [file["kinds"]["forward"] for file in report["files"]] == [40, 40]
    done = call(capsys, "trace", "validate", "t.jsonl")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("kvcanary: PASS trace-validate files=1 events=")
    assert "next:   kvcanary replay t.jsonl\n" in done.out


def test_validate_lists_bad_lines(capsys, there):
    with open("t.jsonl", "a") as file:
        file.write('{"ev":"bind","row":999,"rid":"A"}\n{"ev":"unbind","row":16}\n{"ev":')
    lines = (there / "t.jsonl").read_text().count("\n")
    report = report_of(capsys, 2, "trace", "validate", "t.jsonl", "nofile.jsonl", "bad.jsonl")
    bad, missing, good = report["files"]
    assert [problem["line"] for problem in bad["problems"]] == [lines - 1, lines + 1]
    assert missing["problems"][0]["message"] == "no such file"
    assert (bad["truncated_line"], good["is_valid"]) == (lines + 1, True)
    text = call(capsys, "trace", "validate", "t.jsonl").out
    assert f"  t.jsonl:{lines - 1}: $.row: row 999 is outside the page table (0 to 16)\n" in text
    assert "kvcanary: ERROR trace-validate" in text
    github = call(capsys, "trace", "validate", "t.jsonl", "--format", "github").out
    assert github.startswith("::error title=kvcanary bad line::t.jsonl")


def test_remarks_count_with_strict(capsys, there):
    with open("t.jsonl", "a") as file:
        file.write('{"ev":"unbind","row":16}\n')
    assert call(capsys, "trace", "validate", "t.jsonl").code == 0
    assert call(capsys, "trace", "validate", "t.jsonl", "--strict").code == 1


@pytest.mark.parametrize(
    "argv", [["validate", "t.jsonl"], ["cut", "t.jsonl", "--steps", "9:12", "--output", "c.jsonl"]]
)
def test_neither_loads_numba(there, argv):
    assert imported_by("trace", *argv) & {"numba", "torch", "triton"} == set()


def test_cut(capsys, there):
    report = report_of(capsys, 0, "trace", "cut", "t.jsonl", "--steps", "30:35", "--output", "c.jsonl")
    assert report["trace"]["steps"] == report["steps_before_span"] + 6
    assert report["span"] == [30, 35]
    assert (
        report_of(capsys, 0, "replay", "c.jsonl", "--no-progress")["coverage"]["steps"]
        == report["trace"]["steps"]
    )
    rid = report["kept"][0]["rid"]
    one = report_of(capsys, 0, "trace", "cut", "t.jsonl", "--rid", rid, "--output", "r.jsonl")
    assert {"rid": rid, "why": "asked for"} in one["kept"]
    text = call(capsys, "trace", "cut", "t.jsonl", "--requests", rid, "--output", "r.jsonl").out
    assert text.startswith("wrote   r.jsonl   ")
    assert "next:   kvcanary replay r.jsonl\n" in text


def test_a_cut_can_be_piped(there):
    done = spawn("trace", "cut", "t.jsonl", "--steps", "0:4", "--output", "-", cwd=there)
    assert done.code == 0
    assert json.loads(done.out.splitlines()[0])["ev"] == "header"
    assert "kvcanary: PASS trace-cut" in done.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["cut", "t.jsonl", "--output", "c.jsonl"], "neither is given"),
        (["cut", "t.jsonl", "--steps", "1:2", "--rid", "A", "--output", "c.jsonl"], "not by both"),
        (["cut", "t.jsonl", "--steps", "1:2"], "needs a file to go to"),
        (["cut", "t.jsonl", "--steps", "1:2", "--output", "./t.jsonl"], "would write over"),
        (["cut", "t.jsonl", "--steps", "99:", "--output", "c.jsonl"], "the trace has 40 steps"),
        (["cut", "t.jsonl", "--rid", "nobody", "--output", "c.jsonl"], "is not in the trace"),
        (["minimise", "t.jsonl", "--output", "m.jsonl"], "a replay finds nothing"),
        (["minimise", "bad.jsonl", "--output", "-"], "needs a file"),
        (["minimise", "bad.jsonl", "--output", "m.jsonl", "--incident", "7"], "--incident 7"),
    ],
)
def test_what_is_refused(capsys, there, argv, message):
    done = call(capsys, "trace", *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_minimise(capsys, there):
    report = report_of(capsys, 0, "trace", "minimise", "bad.jsonl", "--output", "m.jsonl", "--no-progress")
    assert report["trace"]["events"] * 10 < report["before"]["events"]
    assert report["incident"]["after"]["kind"] == "K07"
    (incident,) = report_of(capsys, 1, "replay", "m.jsonl", "--device", "cpu", "--no-progress")["incidents"]
    assert (incident["kind"], incident["slots"]) == ("K07", report["incident"]["after"]["slots"])


def test_minimise_in_no_time(capsys, there):
    done = call(capsys, "trace", "minimise", "bad.jsonl", "--output", "m.jsonl", "--seconds", "0")
    assert done.code == 4
    assert "the budget ended the search, a smaller trace may exist" in " ".join(done.out.split())
    assert done.out.splitlines()[-1].endswith("replays=1 stopped=budget exit=4")
    assert call(capsys, "replay", "m.jsonl", "--device", "cpu", "--quiet").code == 1
