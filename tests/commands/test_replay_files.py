"""`kvcanary replay FILE...`: several files, side by side or not, and the parts of one recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import jsonschema
import pytest

from tests.cli import ROOT, call, spawn

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
SMALL = ("--scenario", "mixed", "--steps", "40", "--seed", "1")
CPU = ("--device", "cpu", "--no-progress")


@pytest.fixture
def there(tmp_path, monkeypatch, capsys):
    """A folder of its own, with a clean trace, a faulty one, and one that can't be read."""
    monkeypatch.chdir(tmp_path)
    call(capsys, "synth", "t.jsonl", *SMALL)
    call(capsys, "plant", "t.jsonl", "--fault", "K07", "--output", "bad.jsonl")
    (tmp_path / "broken.jsonl").write_text((tmp_path / "t.jsonl").read_text() + '{"ev":"allocc"}\n')
    return tmp_path


def reported(done):
    report = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    return report


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key != "timing"}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def test_one_after_the_other(capsys, there):
    done = call(
        capsys, "replay", "t.jsonl", "bad.jsonl", "broken.jsonl", "nofile.jsonl", *CPU, "--format", "json"
    )
    report = reported(done)
    assert (done.code, report["status"]) == (2, "error")
    assert [file["status"] for file in report["files"]] == ["pass", "fail", "error", "error"]
    assert [file["exit_code"] for file in report["files"]] == [0, 1, 2, 2]
    assert [(i["file"], i["id"], i["kind"]) for i in report["incidents"]] == [("bad.jsonl", 1, "K07")]
    assert report["coverage"]["steps"] == 80
    single = json.loads(call(capsys, "replay", "bad.jsonl", *CPU, "--format", "json").out)
    assert without_times(report["files"][1]["report"]) == without_times(single)


def test_a_bug_in_one_file_is_shown_when_asked_for(capsys, there, monkeypatch):
    def fail(*_):
        raise ValueError("why")

    monkeypatch.setattr("kvcanary_cli.commands._replay_files.run_command", fail)
    for is_debug in ("", "1"):
        monkeypatch.setenv("KVCANARY_DEBUG", is_debug)
        done = call(capsys, "replay", "t.jsonl", "bad.jsonl", *CPU)
        assert (done.code, done.out.count("a bug in kvcanary: ValueError: why")) == (70, 2)
        assert done.err.count("Traceback") == (2 if is_debug else 0)


def test_side_by_side_is_the_same(there):
    files = ("t.jsonl", "bad.jsonl", "broken.jsonl")
    one = spawn("replay", *files, *CPU, "--format", "json", "--threads", "1", cwd=there)
    two = spawn("replay", *files, *CPU, "--format", "json", "--threads", "1", "--jobs", "2", cwd=there)
    assert (one.code, two.code, two.err) == (2, 2, "")
    first, second = reported(one), reported(two)
    first["inputs"]["jobs"] = 2
    assert without_times(first) == without_times(second)


def test_text(capsys, there):
    done = call(capsys, "replay", "t.jsonl", "bad.jsonl", *CPU)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("replay    2 files, one after the other\n")
    assert "  bad.jsonl  1  K07 late-remote-write  " in done.out
    assert "next:   kvcanary replay bad.jsonl --incident 1\n" in done.out
    assert done.out.splitlines()[-1].startswith("kvcanary: FAIL replay incidents=1 slots=16 checked=")
    assert done.out.splitlines()[-1].endswith(" files=2 fail=1 exit=1")
    assert max(len(line) for line in done.out.splitlines()[:-1]) <= 80


def test_lines_and_annotations(capsys, there):
    done = call(capsys, "replay", "t.jsonl", "bad.jsonl", *CPU, "--format", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["type"] for row in rows] == ["start", "progress", "incident", "file", "file", "summary"]
    assert (rows[1]["file"], rows[2]["file"], rows[4]["path"]) == ("bad.jsonl",) * 3
    assert rows[-1]["summary"]["files"] == 2
    done = call(capsys, "replay", "bad.jsonl", "broken.jsonl", *CPU, "--format", "github")
    first, second = done.out.splitlines()[:2]
    assert first.startswith("::error title=K07 late-remote-write in bad.jsonl::")
    assert second.startswith("::error title=kvcanary broken.jsonl::broken.jsonl%3A") or "allocc" in second


@pytest.mark.parametrize(
    "flags", [["--incident", "1"], ["--slots"], ["--heatmap"], ["--expect", "bad.faults.json"]]
)
def test_parts_of_a_report_need_one_file(capsys, there, flags):
    done = call(capsys, "replay", "t.jsonl", "bad.jsonl", *CPU, *flags)
    assert (done.code, done.out) == (2, "")
    assert f"`{flags[0]}` is for a replay of one file" in done.err


def split(path, counts, *, of="run"):
    """Write the trace as parts of so many lines; the last one gets the rest."""
    lines = path.read_text().splitlines()
    header, body = json.loads(lines[0]), lines[1:]
    names = []
    for number, count in enumerate(counts, 1):
        part = json.dumps(header | {"continues": {"part": number, "of": of}})
        taken, body = body[:count], body[count:]
        names.append(f"{of}-{number}.jsonl")
        path.with_name(names[-1]).write_text("\n".join([part, *taken]) + "\n")
    return names


def test_parts_are_one_trace(capsys, there):
    names = split(there / "bad.jsonl", (60, 50, 10_000))
    whole = json.loads(call(capsys, "replay", "bad.jsonl", *CPU, "--format", "json").out)
    done = call(capsys, "replay", names[2], names[0], names[1], *CPU, "--format", "json")
    report = reported(done)
    assert (done.code, report["inputs"]["trace"]["parts"]) == (1, names)
    assert report["coverage"] == whole["coverage"]
    assert [(i["kind"], i["slots"], i["seen"]["step"]) for i in report["incidents"]] == [
        (i["kind"], i["slots"], i["seen"]["step"]) for i in whole["incidents"]
    ]
    assert report["hints"][0] == f"kvcanary replay {' '.join(names)} --incident 1"


def test_a_missing_part_is_a_gap(capsys, there):
    names = split(there / "t.jsonl", (60, 50, 10_000))
    report = reported(call(capsys, "replay", names[0], names[2], *CPU, "--format", "json"))
    assert [gap["why"] for gap in report["coverage"]["gaps"]] == ["part 2 is missing"]
    late = reported(call(capsys, "replay", names[1], names[2], *CPU, "--format", "json"))
    assert "the recording began in a running engine" in late["coverage"]["incomplete"][0]


def test_an_error_names_the_part_and_its_line(capsys, there):
    names = split(there / "t.jsonl", (60, 50, 10_000))
    with open(names[1], "a") as file:
        file.write('{"ev":"reload","key":"nothing","slots":[20]}\n')
    done = call(capsys, "replay", *names, *CPU)
    assert done.code == 2
    assert f"error: {names[1]}:52: $.key: key 'nothing' is reloaded" in done.err


def test_parts_that_do_not_fit(capsys, there):
    names = split(there / "t.jsonl", (60, 10_000))
    assert "is there twice" in call(capsys, "replay", names[0], names[0], *CPU).err
    text = (there / names[1]).read_text().replace('"rows": 17', '"rows": 18', 1)
    (there / names[1]).write_text(text)
    assert "its `pool` is not that of" in call(capsys, "replay", *names, *CPU).err


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.slow
def test_ctrl_c_ends_all(capsys, there):
    call(capsys, "synth", "big.jsonl", "--scenario", "prefill", "--steps", "4000", "--seed", "1")
    for name in ("big2.jsonl", "big3.jsonl"):
        (there / name).write_bytes((there / "big.jsonl").read_bytes())
    program = [sys.executable, "-m", "kvcanary_cli", "replay", "big.jsonl", "big2.jsonl", "big3.jsonl", *CPU]
    process = subprocess.Popen(
        [*program, "--jobs", "2", "--format", "json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    report = json.loads(out)
    assert process.returncode == report["exit_code"] == 130
    assert {file["status"] for file in report["files"]} == {"incomplete"}
    assert report["files"][2]["report"] is None
