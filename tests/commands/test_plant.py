"""`kvcanary plant`, and `synth --fault`, as a user meets them."""

from __future__ import annotations

import gzip
import json

import pytest

from kvcanary_cli.faults.answers import read_answers
from tests.cli import call, imported_by, spawn

SMALL = ("--scenario", "mixed", "--steps", "40", "--seed", "1")


@pytest.fixture
def there(tmp_path, monkeypatch, capsys):
    """A folder of its own, with a trace in it."""
    monkeypatch.chdir(tmp_path)
    call(capsys, "synth", "t.jsonl", *SMALL)
    return tmp_path


def test_report(capsys, there):
    done = call(capsys, "plant", "t.jsonl", "--fault", "K07", "--fault", "K21:2", "--output", "bad.jsonl")
    assert (done.code, done.err) == (0, "")
    head, faults, notes, verdict = done.out.split("\n\n")
    assert head.splitlines()[0].startswith("wrote   bad.jsonl   40 steps, ")
    assert (
        head.splitlines()[1] == "        bad.faults.json   3 faults: what, where, when, and what is innocent"
    )
    assert faults.split("\n")[0].split() == [
        "FAULT",
        "STEP",
        "FOUND",
        "BY",
        "SLOTS",
        "DAMAGED",
        "REQUEST",
        "WRITER",
    ]
    assert sorted(line.split()[0] for line in faults.split("\n")[1:]) == ["K07", "K21", "K21"]
    assert notes == "next:   kvcanary replay bad.jsonl --expect bad.faults.json"
    assert verdict.startswith("kvcanary: PASS plant steps=40 events=")
    assert verdict.endswith(" faults=3 seed=0 exit=0\n")


def test_what_it_wrote_is_found_again(capsys, there):
    call(
        capsys,
        "plant",
        "t.jsonl",
        "--fault",
        "K12",
        "--seed",
        "4",
        "--output",
        "bad.jsonl",
        "--answers",
        "a.json",
    )
    done = call(capsys, "replay", "bad.jsonl", "--device", "cpu", "--format", "json", "--no-progress")
    (answer,) = read_answers("a.json").faults
    assert [incident["slots"] for incident in json.loads(done.out)["incidents"]] == [answer.slots]
    done = call(capsys, "replay", "bad.jsonl", "--device", "cpu", "--expect", "a.json", "--no-progress")
    assert done.code == 0


def test_json_has_the_answers(capsys, there):
    done = call(capsys, "plant", "t.jsonl", "--fault", "K10", "--output", "bad.jsonl", "--format", "json")
    report = json.loads(done.out)
    sheet = json.loads((there / "bad.faults.json").read_text())
    (fault,), (written,) = report["faults"], sheet["faults"]
    assert (report["command"], report["status"]) == ("plant", "pass")
    assert {key: fault[key] for key in written} == written
    assert report["inputs"] == {"trace": {"path": "t.jsonl"}, "faults": ["K10:1"], "seed": 0}
    assert report["answers"] == {"path": "bad.faults.json"}
    assert report["trace"]["faults"] == 1


def test_same_seed_same_bytes(capsys, there):
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        call(capsys, "plant", "t.jsonl", "--fault", "K22", "--seed", seed, "--output", f"{name}.jsonl")
    a, b, c = ((there / f"{name}.jsonl").read_bytes() for name in "abc")
    assert a == b != c
    assert (there / "a.faults.json").read_bytes() == (there / "b.faults.json").read_bytes()


def test_packed_output_keeps_a_plain_sheet(capsys, there):
    call(capsys, "plant", "t.jsonl", "--fault", "K21", "--output", "bad.jsonl.gz")
    call(capsys, "plant", "t.jsonl", "--fault", "K21", "--output", "plain.jsonl")
    assert gzip.decompress((there / "bad.jsonl.gz").read_bytes()) == (there / "plain.jsonl").read_bytes()
    assert (there / "bad.faults.json").is_file()


def test_trace_may_replace_its_source(capsys, there):
    before = (there / "t.jsonl").read_bytes()
    assert call(capsys, "plant", "t.jsonl", "--fault", "K21", "--output", "t.jsonl").code == 0
    assert (there / "t.jsonl").read_bytes() != before


def test_pipes(there):
    call_line = ("plant", "-", "--fault", "K21", "--output", "-")
    done = spawn(*call_line, cwd=there, stdin=(there / "t.jsonl").read_text())
    assert done.code == 0
    assert done.out.startswith('{"ev":"header"')
    assert "note:   no answer sheet was written; `--answers FILE` writes one\n" in done.err
    assert sorted(path.name for path in there.iterdir()) == ["t.jsonl"]


def test_synth_with_faults_is_synth_and_plant(capsys, there):
    done = call(capsys, "synth", "made.jsonl", *SMALL, "--fault", "K21", "--fault", "K07")
    call(
        capsys, "plant", "t.jsonl", "--fault", "K21", "--fault", "K07", "--seed", "1", "--output", "bad.jsonl"
    )
    assert (there / "made.jsonl").read_bytes() == (there / "bad.jsonl").read_bytes()
    assert (there / "made.faults.json").read_bytes() == (there / "bad.faults.json").read_bytes()
    assert "next:   kvcanary replay made.jsonl --expect made.faults.json\n" in done.out
    assert "kvcanary: PASS synth steps=" in done.out
    assert " faults=2 seed=1 exit=0\n" in done.out


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (
            ["t.jsonl", "--output", "x"],
            "error: no fault is named, at least one is needed\n\nhint: `--fault K07`; ",
        ),
        (
            ["t.jsonl", "--fault", "K07"],
            "error: the trace needs a file to go to, none was given\n\nhint: `--output bad.jsonl`\n",
        ),
        (
            ["t.jsonl", "--fault", "K7", "--output", "x"],
            "error: fault `K7` is not known, did you mean `K07 late-remote-write`?\n",
        ),
        (
            ["t.jsonl", "--fault", "K14", "--output", "x"],
            "error: K14 window-mismatch has no place in this trace: it has no sliding-window group\n\n"
            "hint: scenarios that have one: swa (`kvcanary synth --scenario swa`)\n",
        ),
        (
            ["t.jsonl", "--fault", "K07", "--output", "x", "--answers", "x"],
            "error: the answer sheet can't go to x, it needs a file of its own\n",
        ),
        (
            ["t.jsonl", "--fault", "K07", "--output", "x", "--answers", "-"],
            "error: the answer sheet can't go to stdout, it needs a file of its own\n",
        ),
        (["t.jsonl", "--fault", "K07", "--output", "none/x"], "error: none/x: "),
        (
            ["t.jsonl", "--fault", "K07", "--output", "x", "--answers", "none/x"],
            "error: none/x: `--answers` needs ",
        ),
        (["none.jsonl", "--fault", "K07", "--output", "x"], "error: none.jsonl: "),
    ],
)
def test_refusals(capsys, there, argv, error):
    done = call(capsys, "plant", *argv)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(error)
    assert sorted(path.name for path in there.iterdir()) == ["t.jsonl"]


def test_answers_without_faults(capsys, there):
    done = call(capsys, "synth", "x.jsonl", "--answers", "y.json")
    assert (done.code, done.err) == (
        2,
        "error: `--answers` names a file for planted faults, and no `--fault` is given\n",
    )


def test_needs_neither_torch_nor_numba(there):
    line = ("plant", "t.jsonl", "--fault", "K12", "--output", "x.jsonl")
    assert not imported_by(*line) & {"torch", "triton", "numba", "rich"}
    assert not imported_by("plant", "--help") & {"torch", "triton", "numba", "rich", "numpy"}
