"""A whole engine, started as a user starts one, recorded through the entry point, replayed by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import python, spawn

PROGRAM = Path(__file__).parent / "engine_run.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run: `recording/` and `forwards`, one byte a forward that the model computed."""
    folder = tmp_path_factory.mktemp("engine")
    done = python(
        str(PROGRAM),
        str(folder / "model"),
        env={
            "KVCANARY_RECORD": str(folder / "recording"),
            "COUNT_FILE": str(folder / "forwards"),
            "HF_HUB_OFFLINE": "1",
            "TRITON_INTERPRET": "0",
            # as installed: SGLang asks the installed package for its entry point, not this checkout
            "PYTHONPATH": "",
        },
        cwd=folder,
    )
    assert "ANSWERS 36 432" in done.out, done.err[-4000:]
    return folder


def test_recorded_engine_replays_clean_with_every_forward(run):
    (path,) = (run / "recording").iterdir()
    done = spawn("replay", str(path), "--device", "cpu", "--format", "json")
    report = json.loads(done.out)
    assert (done.code, report["status"], report["incidents"]) == (0, "pass", [])
    assert report["coverage"]["steps"] == (run / "forwards").stat().st_size > 40
    assert report["coverage"]["not_checked"] == []
    # the server's own warm-up request is one more
    assert report["coverage"]["requests"] >= 36


def test_header_names_engine_and_rank_and_hides_tokens(run):
    (path,) = (run / "recording").iterdir()
    header, *lines = (json.loads(line) for line in path.read_text().splitlines())
    assert header["producer"]["engine"] == "sglang 0.5.23"
    assert header["producer"]["rank"] == {"dp": 0, "tp": 0, "pp": 0}
    assert header["producer"]["missing"] == header["producer"]["not_followed"] == []
    assert "state" not in header
    # the vocabulary has 512 tokens: plain ids would all be below
    tokens = [token for line in lines if line["ev"] == "truth" for token in line["tokens"]]
    assert sum(token < 512 for token in tokens) < 3
    assert any(line["ev"] == "share" for line in lines)
