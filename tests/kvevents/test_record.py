"""`record-events` end to end against a publisher on loopback: lost numbers, restarts, damage, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import jsonschema
import pytest
import zmq

from kvcanary_cli.kvevents.record import Recorder
from kvcanary_cli.kvevents.zmq_sockets import Message
from tests.cli import ROOT, call
from tests.kvevents.publisher import Publisher, payload, store, until
from tests.kvevents.streams import OLD, SGLANG, V09, V16, V20, V24

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def recorded(capsys, tmp_path, publisher, act, *flags, batches):
    """Record `batches` batches while `act` publishes; returns the report and the lines."""
    output = tmp_path / "events.jsonl"

    def publish():
        publisher.wait()
        # what is kept when a recording begins is another test's
        until(lambda: bool(publisher.asked) or "--replay" not in flags)
        act()

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    words = [
        "--max-batches",
        str(batches),
        "--duration",
        "8",
        "--output",
        str(output),
        "--format",
        "json",
        *flags,
    ]
    done = call(capsys, "record-events", publisher.endpoint, *words)
    thread.join(5)
    report = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    assert (done.code, done.err) == (report["exit_code"], "")
    return report, lines_of(output)


def test_every_encoding_arrives_and_can_be_replayed(capsys, tmp_path):
    with Publisher() as publisher:
        bodies = [V09, OLD, V16, V20, V24, SGLANG]

        def act():
            for seq, body in enumerate(bodies):
                publisher.send(seq, bytes.fromhex(body))

        report, lines = recorded(capsys, tmp_path, publisher, act, batches=6)
    assert (report["exit_code"], report["summary"]["stopped"]) == (0, "batches")
    assert report["summary"]["events_by_kind"] == {"AllBlocksCleared": 2, "BlockRemoved": 1, "BlockStored": 6}
    assert report["summary"]["ranks"] == {"-": 1, "0": 5}
    assert [line["seq"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert lines[0] == {
        "seq": 0,
        "ts": 1.5,
        "rank": 0,
        "events": [
            {
                "type": "BlockStored",
                "block_hashes": [1],
                "parent_block_hash": None,
                "token_ids": [5, 6],
                "block_size": 2,
                "lora_id": None,
            }
        ],
    }
    done = call(capsys, "replay", str(tmp_path / "events.jsonl"), "--format", "json")
    assert (done.code, json.loads(done.out)["summary"]["incidents"]) == (0, 0)


def test_lost_numbers_are_noted_and_make_it_incomplete(capsys, tmp_path):
    with Publisher() as publisher:

        def act():
            for seq in (0, 1, 4, 5, 7):
                publisher.send(seq, payload(store(seq + 1), ts=float(seq)))

        report, lines = recorded(capsys, tmp_path, publisher, act, batches=5)
    assert (report["exit_code"], report["status"]) == (4, "incomplete")
    assert (report["coverage"]["gaps"], report["coverage"]["lost_batches"]) == ([[2, 3], [6, 6]], 3)
    assert [line for line in lines if "gap" in line] == [
        {"gap": {"seq": [2, 3], "before": False}},
        {"gap": {"seq": [6, 6], "before": False}},
    ]
    done = call(capsys, "replay", str(tmp_path / "events.jsonl"), "--format", "json")
    coverage = json.loads(done.out)["coverage"]
    assert (done.code, coverage["lost_batches"], coverage["gap_count"]) == (4, 3, 2)


@pytest.mark.parametrize("with_topic", [True, False])
def test_lost_numbers_are_asked_for(capsys, tmp_path, with_topic):
    with Publisher(with_topic=with_topic) as publisher:

        def act():
            for seq in range(8):
                publisher.send(seq, payload(store(seq + 1)), is_sent=seq not in (2, 3, 6))

        report, lines = recorded(capsys, tmp_path, publisher, act, "--replay", publisher.replay, batches=8)
    assert report["exit_code"] == 0
    assert [line["seq"] for line in lines] == list(range(8))
    assert report["coverage"]["lost_batches"] == 0
    assert report["summary"]["replayed"] >= 3
    assert 2 in publisher.asked


def test_what_the_publisher_no_longer_keeps_stays_a_gap(capsys, tmp_path):
    with Publisher() as publisher:

        def act():
            for seq in range(7):
                publisher.send(
                    seq, payload(store(seq + 1)), is_sent=seq in (0, 1, 6), is_kept=seq not in (3, 5)
                )

        report, lines = recorded(capsys, tmp_path, publisher, act, "--replay", publisher.replay, batches=5)
    assert report["coverage"]["gaps"] == [[3, 3], [5, 5]]
    assert [line.get("seq", line.get("gap", {}).get("seq")) for line in lines] == [
        0,
        1,
        2,
        [3, 3],
        4,
        [5, 5],
        6,
    ]


def test_a_recording_begins_with_what_is_kept(capsys, tmp_path):
    with Publisher() as publisher:
        for seq in range(2, 6):
            publisher.send(seq, payload(store(seq + 1)), is_sent=False)

        def act():
            publisher.send(5, publisher.kept[5])
            publisher.send(6, payload(store(7)))

        report, lines = recorded(capsys, tmp_path, publisher, act, "--replay", publisher.replay, batches=5)
    assert (report["exit_code"], report["coverage"]["missed_start"]) == (0, 2)
    assert [line.get("seq") for line in lines] == [None, 2, 3, 4, 5, 6]
    assert lines[0] == {"gap": {"seq": [0, 1], "before": True}}
    assert report["summary"]["restarts"] == 0


def test_a_recording_that_begins_late_is_whole_from_there(capsys, tmp_path):
    with Publisher() as publisher:
        report, lines = recorded(
            capsys,
            tmp_path,
            publisher,
            lambda: [publisher.send(seq, payload(store(seq))) for seq in (40, 41)],
            batches=2,
        )
    assert (report["exit_code"], report["coverage"]["missed_start"]) == (0, 40)
    assert lines[0] == {"gap": {"seq": [0, 39], "before": True}}


def test_a_restart_is_noted_and_a_batch_that_comes_twice_is_written_once(capsys, tmp_path):
    with Publisher() as publisher:
        first = [payload(store(seq + 1), ts=10.0 + seq) for seq in range(3)]
        second = [payload(store(seq + 1), ts=90.0 + seq) for seq in range(2)]

        def act():
            for seq, body in [*enumerate(first), (2, first[2]), *enumerate(second)]:
                publisher.send(seq, body)

        report, lines = recorded(capsys, tmp_path, publisher, act, batches=5)
    assert (report["exit_code"], report["summary"]["restarts"], report["summary"]["repeated"]) == (0, 1, 1)
    assert [line.get("seq") for line in lines] == [0, 1, 2, None, 0, 1]
    assert lines[3] == {"restart": {"seq": 0, "last": 2}}
    done = call(capsys, "replay", str(tmp_path / "events.jsonl"), "--format", "json")
    found = json.loads(done.out)
    assert (done.code, found["coverage"]["restarts"], found["coverage"]["lost_batches"]) == (0, 1, 0)


def test_a_restarted_engine_may_send_the_same_bytes(capsys, tmp_path):
    with Publisher() as publisher:
        same = payload(store(2))

        def act():
            for seq, body in [(0, payload(store(1))), (1, same), (0, payload(store(9))), (1, same)]:
                publisher.send(seq, body)

        report, lines = recorded(capsys, tmp_path, publisher, act, batches=4)
    assert [line.get("seq") for line in lines] == [0, 1, None, 0, 1]
    assert (report["summary"]["restarts"], report["summary"]["repeated"]) == (1, 0)


def test_answers_beyond_what_was_asked_for_are_left_out():
    written = []
    sink = SimpleNamespace(write=written.append, tick=lambda: None)
    kept = [Message(seq, payload(store(seq + 1))) for seq in range(9)]
    recorder = Recorder(sink, SimpleNamespace(ask=lambda first: iter(kept if first else [])))
    for seq in (0, 1, 5):
        recorder.take(kept[seq])
    assert [line["seq"] for line in written] == [0, 1, 2, 3, 4, 5]
    assert recorder.finish().replayed == 3


def test_damage_is_counted_and_shown(capsys, tmp_path):
    with Publisher() as publisher:

        def act():
            publisher.send(0, payload(store(1)))
            publisher.send(1, bytes.fromhex(V09)[:20])
            publisher.send(2, payload(["BlockStord", [1]]))
            publisher.send_frames(b"kv-events", b"\x01", b"?")
            publisher.send_frames(b"alone")
            publisher.send(3, payload(store(2), ["AllBlocksCleared", "new item"]))

        report, lines = recorded(capsys, tmp_path, publisher, act, batches=2)
    coverage = report["coverage"]
    assert (report["exit_code"], coverage["malformed"], coverage["lost_batches"]) == (4, 4, 0)
    assert coverage["extra_items"] == 1
    assert coverage["errors"][0].startswith("number 1: the payload of 20 bytes is cut off, at byte")
    assert coverage["errors"][1].startswith("number 2: $.events[0]: `BlockStord` is no event")
    assert coverage["errors"][2].startswith("3 frames of 9, 1, 1 bytes")
    assert [line["malformed"]["seq"] for line in lines if "malformed" in line] == [1, 2, None, None]
    assert lines[1]["malformed"]["start"] == V09[:40]
    done = call(capsys, "replay", str(tmp_path / "events.jsonl"))
    assert done.code == 4
    assert "missing      4 frames that the recorder could not decode" in done.out


def test_a_publisher_that_connects(capsys, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        is_over = threading.Event()

        def publish():
            publisher.connect(f"tcp://127.0.0.1:{port}")
            while not is_over.wait(0.02):
                publisher.send_multipart([b"", bytes(8), payload(store(1))])

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        output = str(tmp_path / "a")
        words = ["--bind", "--max-batches", "1", "--duration", "8", "--output", output, "--format", "json"]
        done = call(capsys, "record-events", f"tcp://127.0.0.1:{port}", *words)
        is_over.set()
        thread.join(5)
    assert (done.code, json.loads(done.out)["summary"]["batches"]) == (0, 1)


def test_a_topic_leaves_the_others_out(capsys, tmp_path):
    with Publisher() as publisher:

        def act():
            publisher.topic = b"other"
            publisher.send(0, payload(store(9)))
            publisher.topic = b"kv-events"
            publisher.send(0, payload(store(1)))

        report, lines = recorded(capsys, tmp_path, publisher, act, "--topic", "kv", batches=1)
    assert report["exit_code"] == 0
    assert lines[0]["events"][0]["block_hashes"] == [1]


def test_parts_of_a_size_are_one_stream(capsys, tmp_path):
    with Publisher() as publisher:
        big = ["BlockStored", [1], None, [7] * 150_000, 150_000, None]

        def act():
            for seq in range(6):
                publisher.send(seq, payload(big, ts=float(seq)))

        report, _ = recorded(capsys, tmp_path, publisher, act, "--max-mb", "1", batches=6)
    assert [path.rpartition("/")[2] for path in report["files"]] == ["events.jsonl", "events.1.jsonl"]
    assert report["hints"] == ["kvcanary replay " + " ".join(report["files"])]
    done = call(capsys, "replay", *sorted(report["files"]), "--format", "json")
    found = json.loads(done.out)
    assert (done.code, found["coverage"]["batches"], found["coverage"]["lost_batches"]) == (0, 6, 0)


def test_nothing_comes(capsys, tmp_path):
    output = tmp_path / "a.jsonl"
    done = call(capsys, "record-events", "tcp://127.0.0.1:9", "--output", str(output), "--duration", "0.1")
    assert (done.code, done.err) == (4, "")
    assert "no batch came: nobody publishes there" in done.out
    assert done.out.splitlines()[-1] == (
        "kvcanary: INCOMPLETE record-events batches=0 events=0 ranks=0 gaps=0 lost_batches=0 malformed=0 restarts=0 "
        "stopped=duration exit=4"
    )
    assert not output.exists()  # the next try needs the name


@pytest.mark.parametrize(
    ("sign", "flags", "code"),
    [(signal.SIGINT, [], 0), (signal.SIGTERM, [], 0), (signal.SIGINT, ["--duration", "60"], 130)],
)
def test_a_signal_ends_with_a_report_and_all_lines(tmp_path, sign, flags, code):
    output = tmp_path / "events.jsonl"
    with Publisher() as publisher:
        words = ["record-events", publisher.endpoint, "--output", str(output), *flags]
        process = subprocess.Popen(
            [sys.executable, "-m", "kvcanary_cli", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        publisher.wait(20)
        for seq in range(3):
            publisher.send(seq, payload(store(seq + 1)))
        until(lambda: output.exists() and output.read_text().count("\n") == 3)
        process.send_signal(sign)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, "")
    assert re.search(
        rf"^kvcanary: \w+ record-events batches=3 .*stopped=interrupted exit={code}$", out, re.MULTILINE
    )
    assert len(lines_of(output)) == 3
