"""No command writes over a file that it reads, by whatever name it reaches it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.audit.dumps import World
from tests.cli import call

ROW = '{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}\n'
CONFIG = "pool: {tokens: 400000, page_size: 1, context_length: 8192}\ngpu: {name: H100, memory_mib: 81559}\n"


@pytest.fixture
def there(tmp_path, monkeypatch, capsys):
    """A folder with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    call(capsys, "synth", "t.jsonl", "--steps", "10", "--seed", "1")
    Path("r.jsonl").write_text(ROW)
    World().write(Path("d.safetensors"))
    Path("e.jsonl").write_text('{"seq":0,"ts":1.5,"rank":0,"events":[]}\n')
    Path("c.yaml").write_text(CONFIG)
    Path("other.yaml").write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize("link", [None, "hard", "symbolic"])
@pytest.mark.parametrize(
    ("argv", "flag", "read"),
    [
        (["trace", "validate", "t.jsonl"], "--output", "t.jsonl"),
        (["trace", "validate", "nofile.jsonl", "t.jsonl"], "--output", "t.jsonl"),
        (["trace", "cut", "t.jsonl", "--steps", "1:2"], "--output", "t.jsonl"),
        (["trace", "minimise", "t.jsonl"], "--output", "t.jsonl"),
        (["audit", "d.safetensors"], "--output", "d.safetensors"),
        (["plant", "t.jsonl", "--fault", "K07", "--output", "o"], "--answers", "t.jsonl"),
        (["inspect", "r.jsonl"], "--output", "r.jsonl"),
        (["simulate", "r.jsonl"], "--output", "r.jsonl"),
        (["simulate", "r.jsonl"], "--time-series", "r.jsonl"),
        (["simulate", "r.jsonl", "--capacities", "c.yaml"], "--output", "c.yaml"),
        (["replay", "t.jsonl", "r.jsonl"], "--output", "r.jsonl"),
        (["replay", "r.jsonl"], "--save-trace", "r.jsonl"),
        (["replay", "e.jsonl"], "--output", "e.jsonl"),
        (["replay", "e.jsonl", "--capacities", "c.yaml"], "--output", "c.yaml"),
        (["check-capacities", "c.yaml"], "--output", "c.yaml"),
        (["check-capacities", "c.yaml", "--workload", "r.jsonl"], "--output", "r.jsonl"),
        (["check-capacities", "--compare", "other.yaml", "c.yaml"], "--output", "c.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_file_that_is_read_is_never_written_over(capsys, there, argv, flag, read, link):
    target = read
    if link is not None:
        target = f"{link}-link"
        (os.link if link == "hard" else os.symlink)(read, target)
    before = Path(read).read_bytes()
    done = call(capsys, *argv, flag, target)
    assert Path(read).read_bytes() == before
    assert (done.code, done.out) == (2, "")
    assert f"`{flag}` would write over {target}, the file of `" in done.err
