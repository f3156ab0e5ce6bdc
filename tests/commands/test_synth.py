"""`kvcanary synth` as a user meets it: what is written, what is said, and that a replay finds nothing in it."""

from __future__ import annotations

import gzip
import json

import pytest

from kvcanary_cli.sim.scenarios import SCENARIOS
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import open_trace
from tests.cli import ROOT, call, imported_by, spawn

SMALL = ("--scenario", "decode", "--steps", "30")


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder of its own to write into."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_report(capsys, there):
    done = call(capsys, "synth", "t.jsonl", "--seed", "7", *SMALL)
    assert done.out == (
        "wrote   t.jsonl   30 steps, 9 requests, 132 events\n"
        "\n"
        "next:   kvcanary replay t.jsonl\n"
        "\n"
        "kvcanary: PASS synth steps=30 events=132 faults=0 seed=7 exit=0\n"
    )
    assert (done.code, done.err) == (0, "")


def test_report_tells_what_the_file_holds(capsys, there):
    done = call(capsys, "synth", "t.jsonl", "--format", "json", "--scenario", "decode")
    report = json.loads(done.out)
    with open_trace("t.jsonl") as reader:
        events = [event for _, event in reader]
    assert any(event.why == "retract" for event in events if type(event) is ev.End)
    ended = {event.rid for event in events if type(event) is ev.End}
    assert report["trace"] == {
        "path": "t.jsonl",
        "steps": sum(type(event) is ev.Forward for event in events),
        "requests": len(ended),
        "events": len(events) + 1,
        "faults": 0,
    }
    assert report["pool"] == {"slots": 1296, "pages": 81, "page_size": 16, "groups": ["full"]}
    assert report["inputs"] == {
        "scenario": "decode",
        "steps": None,
        "requests": None,
        "seed": 0,
        "pool_slots": None,
        "page_size": 16,
    }


def test_options_reach_the_scenario(capsys, there):
    options = ["--requests", "4", "--pool-slots", "640", "--page-size", "8", "--seed", "3"]
    done = call(capsys, "synth", "--output", "t.jsonl", "--scenario", "swa", *options)
    assert done.code == 0
    with open_trace("t.jsonl") as reader:
        header = reader.header
        ends = [event.why for _, event in reader if type(event) is ev.End]
    assert (header.pool.slots, header.pool.page_size) == (640, 8)
    assert [group.kind for group in header.groups] == ["full", "swa"]
    assert header.producer == {"name": "kvcanary", "scenario": "swa", "seed": 3}
    assert ends.count("done") == 4


def test_same_seed_same_bytes(capsys, there):
    for name in ("a", "b"):
        call(capsys, "synth", name, "--seed", "5", *SMALL)
    call(capsys, "synth", "c", "--seed", "6", *SMALL)
    assert (there / "a").read_bytes() == (there / "b").read_bytes()
    assert (there / "a").read_bytes() != (there / "c").read_bytes()


def test_suffix_compresses(capsys, there):
    call(capsys, "synth", "t.jsonl", *SMALL)
    call(capsys, "synth", "t.jsonl.gz", *SMALL)
    assert gzip.decompress((there / "t.jsonl.gz").read_bytes()) == (there / "t.jsonl").read_bytes()


def test_trace_has_stdout_to_itself(there):
    plain = spawn("synth", "t.jsonl", *SMALL, cwd=there)
    done = spawn("synth", "-", *SMALL, cwd=there)
    assert done.out == (there / "t.jsonl").read_text()
    assert done.err == plain.out.replace("t.jsonl ", "stdout ").replace("replay t.jsonl", "replay -")
    assert done.code == 0


def test_quiet_is_the_verdict_alone(capsys, there):
    done = call(capsys, "synth", "t.jsonl", "--quiet", *SMALL)
    assert done.out == "kvcanary: PASS synth steps=30 events=126 faults=0 seed=0 exit=0\n"


def test_next_command_can_be_pasted(capsys, there):
    done = call(capsys, "synth", "my trace.jsonl", *SMALL)
    assert "\nnext:   kvcanary replay 'my trace.jsonl'\n" in done.out
    done = call(capsys, "synth", "--output", "-t.jsonl", *SMALL)
    assert "\nnext:   kvcanary replay ./-t.jsonl\n" in done.out


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (
            [],
            "error: the trace needs one file to go to, none was given\n\nhint: `kvcanary synth trace.jsonl`\n",
        ),
        (
            ["a", "--output", "b"],
            "error: the trace needs one file to go to, a and b were given\n\n"
            "hint: `kvcanary synth trace.jsonl`\n",
        ),
        (
            ["a", "--scenario", "chunkd"],
            "error: scenario `chunkd` is not known, did you mean `chunked`?\n\n"
            "hint: scenarios are decode, prefill, chunked, mixed, shared-prefix, swa, spec\n",
        ),
        (
            ["a", "--page-size", "24", "--pool-slots", "1000"],
            "error: the page size 24 does not divide the pool of 1,000 slots\n",
        ),
        (
            ["a", "--steps", "0"],
            "error: `steps` is 0, at least 1 is needed\n",
        ),
    ],
    ids=["no file", "two files", "scenario", "page size", "steps"],
)
def test_refusals(capsys, there, argv, error):
    done = call(capsys, "synth", *argv)
    assert (done.code, done.out, done.err) == (2, "", error)
    assert list(there.iterdir()) == []


def test_folders_are_no_files(capsys, there):
    (there / "folder").mkdir()
    done = call(capsys, "synth", "folder")
    assert done.code == 2
    assert done.err.startswith("error: folder: ")
    assert call(capsys, "synth", "none/t.jsonl").code == 2


def test_help_names_every_scenario(capsys):
    words = call(capsys, "synth", "--help").out.replace("-\n", "-").split()
    assert set(SCENARIOS) <= {word.strip(",.") for word in words} | {"shared-prefix"}


def test_docs_show_what_is_printed(capsys, there):
    page = (ROOT / "docs" / "synth.md").read_text(encoding="utf-8")
    done = call(capsys, "synth", "t.jsonl", "--scenario", "decode")
    assert f"```console\n$ kvcanary synth t.jsonl --scenario decode\n{done.out}```" in page
    assert all(f"| `{name}` |" in page for name in SCENARIOS)


def test_needs_neither_torch_nor_numba(there):
    assert not imported_by("synth", str(there / "t.jsonl"), *SMALL) & {"torch", "triton", "numba", "rich"}


@pytest.mark.parametrize("page_size", ["1", "16"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_replay_finds_nothing(capsys, there, name, page_size):
    options = ["--scenario", name, "--steps", "60", "--seed", "2", "--page-size", page_size]
    assert call(capsys, "synth", "t.jsonl", *options).code == 0
    done = call(capsys, "replay", "t.jsonl", "--device", "cpu", "--format", "json", "--no-progress")
    report = json.loads(done.out)
    assert (done.code, report["status"]) == (0, "pass")
    coverage = report["coverage"]
    assert coverage["steps"] == 60
    assert coverage["entries"] == coverage["entries_planned"] > 10_000
    assert {"chain_hash", "position", "real_kv_hash", "verify_token"} <= set(coverage["checks"])
