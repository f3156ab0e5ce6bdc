"""`kvcanary replay` as a user meets it: reports, exit codes, and every input that can be wrong."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import TraceWriter
from tests.cli import ROOT, call, imported_by, spawn
from tests.replay.driving import insert, one_request, slots, small_header

TRACES = ROOT / "tests" / "traces"
EXAMPLE = ROOT / "docs" / "examples" / "mooncake-conversation.jsonl"

HEADER = (
    '{"ev":"header","format":"kvcanary-trace","version":1,'
    '"pool":{"slots":64,"page_size":4,"rows":4,"row_width":16}}'
)
FORWARD = '{"ev":"forward","rows":[1],"prefix":[0],"lens":[2],"tokens":[1,2],"slots":[8,9]}'


def write(path: Path, events: list[ev.Event], **header: object) -> str:
    with TraceWriter(str(path), small_header(**header)) as writer:
        for event in events:
            writer.write(event)
    return str(path)


@pytest.fixture
def clean(tmp_path):
    return write(tmp_path / "clean.jsonl", one_request())


@pytest.fixture
def damaged(tmp_path):
    return write(
        tmp_path / "bad.jsonl", insert(one_request(), 2, ev.Kv(op="flip", slots=slots(10), byte=0, xor=1))
    )


class TestReports:
    def test_pass(self, capsys, clean):
        done = call(capsys, "replay", clean, "--device", "cpu")
        assert (done.code, done.err) == (0, "")
        assert "status: PASS   clean: everything that was asked was checked, nothing failed" in done.out
        assert (
            done.out.splitlines()[-1]
            == "kvcanary: PASS replay incidents=0 slots=0 checked=52 skipped=0 exit=0"
        )

    def test_findings(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu")
        assert done.code == 1
        assert "real_kv_hash" in done.out
        assert "kvcanary: FAIL replay incidents=1 slots=1 checked=52" in done.out

    def test_json_holds_violations_with_their_places(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu", "--format", "json")
        report = json.loads(done.out)
        assert (report["status"], report["exit_code"], done.code) == ("fail", 1, 1)
        first = report["violations"][0]
        assert (first["slot"], first["page"], first["row"], first["rid"], first["position"]) == (
            10,
            2,
            1,
            "A",
            2,
        )
        assert (first["step"], first["launch"], first["bits"]) == (2, "TAIL_K_FULL", ["real_kv_hash"])
        assert first["stored"]["prev_hash"].startswith("0x")
        assert report["coverage"]["entries"] == 52

    def test_tokens_can_be_left_out(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu", "--format", "json", "--no-tokens")
        assert all(
            "token" not in v["stored"] and "token" not in v["expected"]
            for v in json.loads(done.out)["violations"]
        )

    def test_capacity_violations(self, capsys, tmp_path):
        path = write(tmp_path / "t.jsonl", one_request(), capacities=ev.Capacities(write_entry_capacity=4))
        done = call(capsys, "replay", path, "--device", "cpu", "--format", "json")
        report = json.loads(done.out)
        assert done.code == 1
        (found,) = report["capacity_violations"]
        assert (found["step"], found["capacity"], found["need"], found["limit"]) == (
            0,
            "write_entry_capacity",
            5,
            4,
        )
        assert found["flag"] == "--chunked-prefill-size"
        text = call(capsys, "replay", path, "--device", "cpu").out
        assert (
            "why:    kv-canary: forward_batch token count=5 exceeds pre-allocated write_entry_capacity=4"
            in text
        )

    def test_given_capacities_win_over_the_trace(self, capsys, tmp_path, clean):
        config = tmp_path / "limits.yaml"
        config.write_text("capacities: {write_req: 8, write_entry: 3, verify: 1000}\n")
        done = call(
            capsys, "replay", clean, "--device", "cpu", "--capacities", str(config), "--format", "json"
        )
        (found,) = json.loads(done.out)["capacity_violations"]
        assert (found["need"], found["limit"]) == (5, 3)

    def test_what_was_not_checked_is_said(self, capsys, tmp_path):
        events = [event for event in one_request() if not isinstance(event, ev.Truth)]
        path = write(tmp_path / "t.jsonl", events)
        done = call(capsys, "replay", path, "--device", "cpu")
        assert done.code == 0
        assert "not checked             verify_token: the trace has no `truth` events" in done.out
        assert "unchecked=verify_token exit=0" in done.out
        required = call(capsys, "replay", path, "--device", "cpu", "--require", "verify_token")
        assert required.code == 4
        assert "INCOMPLETE" in required.out

    def test_hash_none_leaves_bytes_unchecked(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu", "--hash", "none")
        assert done.code == 0
        assert "unchecked=real_kv_hash" in done.out

    def test_limits_stand_in_the_verdict(self, capsys, clean):
        done = call(capsys, "replay", clean, "--device", "cpu", "--limit-steps", "2")
        assert done.code == 0
        assert "limited=steps:2" in done.out.splitlines()[-1]

    def test_a_gap_is_incomplete(self, capsys, tmp_path):
        path = write(tmp_path / "t.jsonl", insert(one_request(), 3, ev.Gap(forwards=2, why="queue full")))
        done = call(capsys, "replay", path, "--device", "cpu")
        assert done.code == 4
        assert "the recording lost 2 forwards after step 2 (queue full)" in done.out
        assert "clean" not in done.out

    def test_skipped_lines_are_incomplete(self, capsys, clean):
        text = Path(clean).read_text().splitlines()
        Path(clean).write_text("\n".join([*text[:4], "{broken", *text[4:]]) + "\n")
        done = call(capsys, "replay", clean, "--device", "cpu", "--skip-bad-lines")
        assert done.code == 4
        assert "bad_lines=1" in done.out
        assert "skipped (--skip-bad-lines): 5" in done.out

    def test_skipped_lines_of_a_request_trace(self, capsys, tmp_path):
        path = tmp_path / "requests.jsonl"
        first, second = EXAMPLE.read_text().splitlines()[:2]
        path.write_text(f"{first}\n{{broken\n{second}\n")
        assert call(capsys, "replay", str(path), "--device", "cpu").code == 2
        done = call(capsys, "replay", str(path), "--device", "cpu", "--skip-bad-lines")
        assert done.code == 4
        assert "bad_lines=1" in done.out
        assert "skipped (--skip-bad-lines): 2" in done.out

    def test_the_seed_reaches_the_model(self, capsys):
        argv = ["replay", str(EXAMPLE), "--device", "cpu", "--limit-requests", "1", "--format", "json"]
        report = json.loads(call(capsys, *argv, "--seed", "5").out)
        assert report["inputs"]["seed"] == report["inputs"]["trace"]["scheduler"]["seed"] == 5

    def test_no_tokens_in_evidence_and_history(self, capsys, tmp_path):
        events = insert(one_request(), 2)
        events[5] = ev.Forward(rows=[1], prefix=[6], tokens=[77777], expect=[106], slots=slots(14))
        path = write(tmp_path / "t.jsonl", events)
        argv = ["replay", path, "--device", "cpu", "--slot", "14", "--history", "--format", "json"]
        assert "77777" in call(capsys, *argv).out
        hidden = call(capsys, *argv, "--no-tokens").out
        assert "77777" not in hidden
        assert "was given token *, expected *" in hidden

    def test_stop_on_violation_stops_at_a_broken_rule_too(self, capsys, tmp_path):
        events = insert(one_request(), 2, ev.Bind(row=2, rid="B"), ev.Alloc(to="B", slots=slots(8)))
        path = write(tmp_path / "t.jsonl", events)
        done = call(capsys, "replay", path, "--device", "cpu", "--stop-on-violation")
        assert "  steps                  3, stopped at the first finding" in done.out
        assert " stopped=violation exit=1" in done.out.splitlines()[-1]

    def test_sweeps_of_the_trace_and_of_the_user(self, capsys, tmp_path):
        events = [*one_request(), ev.Sweep(), ev.Sweep()]
        path = write(tmp_path / "t.jsonl", events)
        done = call(capsys, "replay", path, "--device", "cpu", "--sweep-interval", "2")
        assert "sweeps                 4, every 2 steps, and 2 that the trace asks for" in done.out

    def test_output_file_gets_json_and_stdout_the_text(self, capsys, clean, tmp_path):
        target = tmp_path / "report.json"
        done = call(capsys, "replay", clean, "--device", "cpu", "--output", str(target))
        assert done.out.startswith("replay")
        assert json.loads(target.read_text())["status"] == "pass"

    def test_jsonl_ends_with_the_summary(self, capsys, clean):
        done = call(capsys, "replay", clean, "--device", "cpu", "--format", "jsonl")
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert lines[0]["type"] == "start"
        assert lines[-1]["type"] == "summary"

    def test_same_input_same_bytes(self, capsys, damaged):
        first, second = (call(capsys, "replay", damaged, "--device", "cpu").out for _ in range(2))
        assert first == second

    def test_stdin(self, clean):
        done = spawn("replay", "-", "--device", "cpu", stdin=Path(clean).read_text())
        assert done.code == 0

    def test_request_trace(self, capsys, tmp_path):
        kept = tmp_path / "kept.jsonl"
        done = call(
            capsys,
            "replay",
            str(EXAMPLE),
            "--device",
            "cpu",
            "--limit-requests",
            "2",
            "--save-trace",
            str(kept),
        )
        assert done.code == 0
        again = call(capsys, "replay", str(kept), "--device", "cpu")
        assert again.out.splitlines()[-1] == done.out.splitlines()[-1].replace(" limited=requests:2", "")

    def test_a_limited_run_keeps_what_it_replayed(self, capsys, tmp_path):
        kept = tmp_path / "kept.jsonl"
        words = ("--device", "cpu", "--limit-steps", "5", "--save-trace", str(kept))
        assert call(capsys, "replay", str(EXAMPLE), *words).code == 0
        assert kept.read_text().count('"ev":"forward"') == 5


class TestProcess:
    def test_a_cpu_replay_imports_neither_torch_nor_triton(self, clean):
        assert not imported_by("replay", clean, "--device", "cpu") & {"torch", "triton"}

    def test_a_closed_pipe_ends_it_silently(self, damaged):
        command = f"{sys.executable} -m kvcanary_cli replay {damaged} --device cpu --format json | head -c 1"
        done = subprocess.run(
            ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1, 141)

    def test_ctrl_c_prints_what_was_done(self, tmp_path):
        """The trace comes through a pipe that stays open, so the run is under way when the signal comes."""
        path = Path(write(tmp_path / "long.jsonl", one_request()))
        process = subprocess.Popen(
            [sys.executable, "-m", "kvcanary_cli", "replay", "-", "--device", "cpu"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdin is not None
        process.stdin.write(path.read_text())
        process.stdin.flush()
        _wait_until_handled(process.pid)
        process.send_signal(signal.SIGINT)
        process.stdin.write(FORWARD.replace('"prefix":[0]', '"prefix":[9]') + "\n")
        process.stdin.flush()
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "INCOMPLETE" in out
        assert "stopped by Ctrl-C" in out


def _wait_until_handled(pid: int) -> None:
    """Until the process catches SIGINT itself: bit 1 of the mask of caught signals."""
    for _ in range(600):
        status = Path(f"/proc/{pid}/status").read_text()
        mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
        main_thread_reads = Path(f"/proc/{pid}/wchan").read_text() if mask & 2 else ""
        if mask & 2 and "pipe" in main_thread_reads:
            return
        time.sleep(0.05)


def test_gzip_by_content(capsys, tmp_path, clean):
    path = tmp_path / "no-suffix"
    path.write_bytes(gzip.compress(Path(clean).read_bytes()))
    assert call(capsys, "replay", str(path), "--device", "cpu").code == 0


class TestParts:
    """Incident, slots, map, history and answer sheet of one damaged trace."""

    def test_one_incident_in_full(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu", "--incident", "1")
        assert done.code == 1
        assert "K21 unattributed-bytes: " in done.out
        assert "  => page 2      ooXo" in done.out
        assert "SUMMARY: K21 unattributed-bytes page=2 slots=10 held_by=A" in done.out
        assert f"next:   kvcanary replay {damaged} --slot 10 --history" in done.out

    def test_an_incident_that_is_not_there(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu", "--incident", "2")
        assert done.code == 2
        assert "`--incident 2` was asked for, this run has 1 incident" in done.err

    def test_history_tells_everything_in_order(self, capsys, damaged):
        done = call(
            capsys, "replay", damaged, "--device", "cpu", "--slot", "10", "--history", "--format", "json"
        )
        moments = [(m["step"], m["what"], m["who"]) for m in json.loads(done.out)["history"]["moments"]]
        assert moments == [
            (0, "alloc", "A"),
            (0, "write", "A"),
            (1, "check ok", "A"),
            (1, "kv flip", None),
            (2, "check FAIL", "A"),
            (3, "check FAIL", "A"),
            (4, "check FAIL", "A"),
        ]

    @pytest.mark.parametrize("options", [["--history"], ["--slot", "3"]])
    def test_history_needs_a_slot_and_a_slot_its_history(self, capsys, damaged, options):
        assert call(capsys, "replay", damaged, "--device", "cpu", *options).code == 2

    def test_slots(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu", "--slots")
        (row,) = [line.split() for line in done.out.splitlines() if line.split()[:1] == ["10"]]
        assert row == ["10", "2", "K21", "A", "2", "-", "1-2", "2", "<=1", "---b"]

    def test_heatmap(self, capsys, damaged):
        done = call(capsys, "replay", damaged, "--device", "cpu", "--heatmap")
        assert "pool map, 1 slot per cell, whole run" in done.out
        # slots 8-15 were read, 16 was written by the last forward and read by nobody
        assert "       0  ........oo1ooooo?" in done.out

    def test_expectation_is_met_or_not(self, capsys, damaged, tmp_path):
        sheet = tmp_path / "answers.json"
        fault = {
            "kind": "K21",
            "slots": [[10, 10]],
            "rid": "A",
            "writer": None,
            "step": 1,
            "found_by_step": 2,
            "not": {},
        }
        sheet.write_text(json.dumps({"version": 1, "seed": 0, "faults": [fault]}))
        met = call(capsys, "replay", damaged, "--device", "cpu", "--expect", str(sheet))
        assert met.code == 0
        assert "of 1 planted fault 1 found, 1 named right" in met.out
        sheet.write_text(json.dumps({"version": 1, "seed": 0, "faults": [fault | {"kind": "K07"}]}))
        unmet = call(capsys, "replay", damaged, "--device", "cpu", "--expect", str(sheet))
        assert unmet.code == 1
