"""Where `record-events` writes and what it refuses before it does: endpoints, files, disks, parts."""

from __future__ import annotations

import os

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.kvevents.sink import EventSink, in_order
from tests.cli import call, spawn_without


@pytest.mark.parametrize(
    ("endpoint", "hint"),
    [
        ("localhost:5557", "tcp://localhost:5557"),
        ("localhost", "tcp://localhost:5557"),
        ("tcp://*:5557", "name its host: tcp://localhost:5557, or `--bind` if the publisher connects"),
        ("tcp://nowhere", None),
    ],
)
def test_endpoints_that_are_none(capsys, tmp_path, endpoint, hint):
    done = call(capsys, "record-events", endpoint, "--output", str(tmp_path / "a"), "--duration", "0.1")
    assert done.code == 2
    assert hint is None or f"hint: {hint}" in done.err
    assert not (tmp_path / "a").exists()


def test_a_recording_is_not_written_over(capsys, tmp_path):
    (tmp_path / "a").write_text("an hour of work\n")
    done = call(capsys, "record-events", "tcp://127.0.0.1:9", "--output", str(tmp_path / "a"))
    assert done.code == 2
    assert "is there already, and a recording is not written over" in done.err
    assert (tmp_path / "a").read_text() == "an hour of work\n"


def test_standard_output_is_no_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call(capsys, "record-events", "tcp://127.0.0.1:9", "--output", "-", "--duration", "0")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: a recording goes into a file, `--output -` is none\n")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_part(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    (tmp_path / "a.1").symlink_to("/dev/full")
    sink = EventSink(str(tmp_path / "a.1"))
    sink.write({"seq": 1})
    with pytest.raises(InputError, match="can't be written: No space left on device") as caught:
        sink.close()
    assert caught.value.where == str(tmp_path / "a.1")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("e.1.jsonl e.10.jsonl e.2.jsonl e.jsonl", "e.jsonl e.1.jsonl e.2.jsonl e.10.jsonl"),
        ("d/e.10.jsonl.gz d/e.9.jsonl.gz", "d/e.9.jsonl.gz d/e.10.jsonl.gz"),
        ("e.v2.2 e.v2 e.v2.1", "e.v2 e.v2.1 e.v2.2"),
        ("b.jsonl a.jsonl", "b.jsonl a.jsonl"),
        ("e.2.jsonl d/e.1.jsonl", "e.2.jsonl d/e.1.jsonl"),
        ("e.2.jsonl e.1.json", "e.2.jsonl e.1.json"),
        ("e.2.jsonl e.2.jsonl e.1.jsonl", "e.2.jsonl e.2.jsonl e.1.jsonl"),
    ],
)
def test_parts_are_put_in_order(given, wanted):
    assert in_order(given.split()) == wanted.split()


def test_without_pyzmq(tmp_path):
    done = spawn_without({"zmq"}, "record-events", "tcp://127.0.0.1:9", "--output", str(tmp_path / "a"))
    assert done.code == 3
    assert done.err == (
        "error: recording events needs pyzmq, which is not installed\n\n"
        "hint: `pip install pyzmq`, or kvcanary with its extra `events`\n"
    )
