"""What a bad line is answered with is something that the command can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import ROOT, call

ROW = '{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}\n'
SKIPS = "hint: `--skip-bad-lines` goes on without such lines"
LISTS = "hint: `kvcanary trace validate` lists all bad lines of a trace"
LAUNCH = ["--gpu", "H100", "--pool-tokens", "400k", "--context-length", "8192", "--from-args", "--"]
LAUNCH += ["python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B"]


@pytest.fixture
def there(tmp_path, monkeypatch, capsys):
    """A trace and a request trace whose last line is none."""
    monkeypatch.chdir(tmp_path)
    call(capsys, "synth", "t.jsonl", "--steps", "10", "--seed", "1")
    Path("r.jsonl").write_text(ROW)
    for path in ("t.jsonl", "r.jsonl"):
        with open(path, "a") as file:
            file.write("{bad\n")


@pytest.mark.parametrize("path", ["weka/trace_0504.json", "dynamo/dynamo-standard.jsonl"])
def test_another_block_size_is_nothing_to_skip(capsys, path):
    done = call(capsys, "inspect", str(ROOT / "tests" / "traces" / path), "--block-size", "7")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("hint: without `--block-size` the file's own counts\n")


def test_what_is_wrong_with_a_whole_file_is_nothing_to_skip(capsys, there):
    done = call(capsys, "inspect", "r.jsonl", "--input-format", "weka")
    assert (done.code, "hint" in done.err) == (2, False)


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["replay", "t.jsonl", "--device", "cpu"], SKIPS),
        (["inspect", "t.jsonl"], SKIPS),
        (["trace", "cut", "t.jsonl", "--steps", "1:2", "--output", "o"], LISTS),
        (["trace", "minimise", "t.jsonl", "--output", "o"], LISTS),
        (["plant", "t.jsonl", "--fault", "K07", "--output", "o"], LISTS),
        (["check-capacities", "--workload", "t.jsonl", *LAUNCH], LISTS),
        (["replay", "r.jsonl", "--device", "cpu"], SKIPS),
        (["inspect", "r.jsonl"], SKIPS),
        (["simulate", "r.jsonl"], SKIPS),
        (["check-capacities", "--workload", "r.jsonl", *LAUNCH], None),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_the_hint_is_a_way_out_of_this_command(capsys, there, argv, hint):
    done = call(capsys, *argv)
    assert done.code == 2
    assert "not JSON" in done.err
    found = [line for line in done.err.splitlines() if line.startswith("hint: ")]
    assert found == ([hint] if hint else [])
    if hint == SKIPS:
        assert call(capsys, *argv, "--skip-bad-lines").code == 4
