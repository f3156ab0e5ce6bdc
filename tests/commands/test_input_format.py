"""`--input-format` and `--block-size` of the commands that read request traces, and what reports say of the file."""

from __future__ import annotations

import json

import pytest

from tests.cli import ROOT, call

TRACES = ROOT / "tests" / "traces"
DELTA = str(TRACES / "dynamo/mooncake-delta.jsonl")
REPLAY = ("replay", "--device", "cpu", "--hash", "none")
LAUNCH = ("--gpu", "H100", "--pool-tokens", "425984", "--context-length", "131072", "--from-args", "--")
SERVER = ("python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B")


def file_of(report):
    return report["inputs"]["trace"]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("dynamo/agentic-mooncake.jsonl", "Dynamo agentic Mooncake trace v2"),
        ("dynamo/dynamo-agentic.jsonl", "Dynamo request trace v1"),
        ("dynamo/applied-compute-agentic.jsonl", "Applied Compute agentic workload"),
        ("llmservingsim/example_trace.jsonl", "LLMServingSim workload"),
        ("ragpulse/0_trace.head.jsonl", "RAGPulse trace"),
        ("bailian/qwen_thinking.first_row.jsonl", "Bailian usage trace"),
    ],
)
def test_formats_are_replayed(capsys, name, title):
    done = call(capsys, *REPLAY, str(TRACES / name), "--format", "json")
    report = json.loads(done.out)
    assert (done.code, report["status"], file_of(report)["format"]) == (0, "pass", title)


def test_replay_tells_block_size_and_notes(capsys):
    done = call(capsys, *REPLAY, str(TRACES / "dynamo/dynamo-standard.jsonl"))
    assert done.code == 0
    assert "blocks    4 tokens an id, says Dynamo request trace v1" in done.out.splitlines()
    assert "note      1 row: request_payload records are skipped (first: line 1)" in done.out.splitlines()


def test_format_and_block_size_can_be_given(capsys):
    plain = json.loads(call(capsys, *REPLAY, DELTA, "--format", "json", "--block-size", "16").out)
    assert (file_of(plain)["format"], file_of(plain)["longest_tokens"]) == ("Mooncake request trace", 20)
    assert (file_of(plain)["block_size"], file_of(plain)["block_size_from"]) == (16, "--block-size")
    assert plain["inputs"]["block_size"] == 16
    words = ("--input-format", "mooncake-delta", "--format", "json")
    delta = json.loads(call(capsys, *REPLAY, DELTA, *words).out)
    assert file_of(delta)["longest_tokens"] == 32
    assert delta["inputs"]["input_format"] == "mooncake-delta"


def test_wrong_words(capsys, tmp_path):
    done = call(capsys, *REPLAY, DELTA, "--input-format", "mooncake-dela")
    assert done.code == 2
    assert "did you mean mooncake-delta?" in done.err
    trace = tmp_path / "t.jsonl"
    call(capsys, "synth", "--steps", "3", "--output", str(trace))
    done = call(capsys, *REPLAY, str(trace), "--block-size", "16")
    assert (done.code, done.out) == (2, "")
    assert "`--block-size` is for request traces" in done.err


def test_file_that_no_scheduler_can_serve(capsys):
    done = call(capsys, *REPLAY, str(TRACES / "servegen/trace_a.head.jsonl"))
    assert (done.code, done.out) == (2, "")
    assert "the file has no arrival times and no output lengths, so it can't be scheduled" in done.err


def test_workload_of_check_capacities(capsys):
    workload = ("--workload", DELTA, "--input-format", "mooncake-delta")
    done = call(capsys, "check-capacities", *workload, "--format", "json", *LAUNCH, *SERVER)
    report = json.loads(done.out)
    assert report["workload"]["details"]["longest_tokens"] == 32
    assert report["workload"]["format"].startswith("Mooncake request trace with new tokens only, served by")
    done = call(capsys, "check-capacities", *workload, *LAUNCH, *SERVER)
    assert "1 row: a later turn: its prompt is the session so far and the new tokens" in done.out


def test_reading_words_without_a_workload(capsys):
    done = call(capsys, "check-capacities", "--block-size", "16", *LAUNCH, *SERVER)
    assert (done.code, done.out) == (2, "")
    assert "are for the file of `--workload`, which is not given" in done.err
