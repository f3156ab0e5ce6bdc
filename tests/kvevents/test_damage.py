"""Damaged bytes become messages: never a crash, whatever is changed."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import msgspec
import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.kvevents.audit import Auditor
from kvcanary_cli.kvevents.decode import EventDecoder
from kvcanary_cli.kvevents.lines import EventFile
from kvcanary_cli.kvevents.payload import decode_payload
from kvcanary_cli.kvevents.record import Recorder
from kvcanary_cli.kvevents.sink import EventSink
from kvcanary_cli.kvevents.zmq_sockets import Message
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.formats import sniff
from tests.kvevents.streams import CLEARED, OLD, SGLANG, V09, V20, V24, batches, removed, stored
from tests.kvevents.test_lines import DYNAMO

VALUES = [None, True, -1, 0, 1.5, "x", "", [], {}, [[]], 1 << 70, {"seq": [0, 1]}]


def replaced(value, rng):
    """A JSON value with one part of it exchanged or left out."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: replaced(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], replaced(value[at], rng), *value[at + 1 :]]
    return rng.choice(VALUES)


class Lines:
    """A sink in memory."""

    def __init__(self):
        self.written = []

    def write(self, value):
        self.written.append(json.dumps(value))

    def tick(self):
        pass


@pytest.mark.parametrize("payload", [V09, V20, V24, SGLANG, OLD])
def test_payloads(payload):
    rng = random.Random(payload)
    whole = bytes.fromhex(payload)
    recorder = Recorder(Lines())
    for seq in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with suppress(LineError):
            decode_payload(bytes(data), EventDecoder())
        recorder.take(Message(seq, bytes(data)))
    facts = recorder.finish()
    assert facts.batches + facts.malformed == 400


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "AllBlocksCleared", 5: 1}, "keys of an event are text"),
        (
            {"type": "AllBlocksCleared", "session_id": msgspec.msgpack.Ext(5, b"x")},
            "can't be written as JSON",
        ),
    ],
)
def test_what_json_can_not_hold(tmp_path, event, message):
    with EventSink(str(tmp_path / "a")) as sink:
        recorder = Recorder(sink)
        recorder.take(Message(0, msgspec.msgpack.encode([1.5, [event], 0])))
        facts = recorder.finish()
    assert (facts.batches, facts.malformed, message in facts.errors[0]) == (0, 1, True)


def test_lines(tmp_path):
    rng = random.Random(5)
    lines = [*batches(stored([1, 2]), removed([2, 1]), CLEARED), *map(json.loads, DYNAMO)]
    lines += [{"gap": {"seq": [3, 5], "before": False}}, {"restart": {"seq": 0}}, {"malformed": {"seq": 6}}]
    path = tmp_path / "events.jsonl"
    for number in range(400):
        damaged = list(lines)
        at = rng.randrange(len(lines))
        damaged[at] = replaced(lines[at], rng)
        if number % 2:
            rng.shuffle(damaged)
        path.write_text("".join(json.dumps(line) + "\n" for line in damaged), encoding="ascii")
        with suppress(InputError):
            sniff(str(path))
        result = Auditor(EventFile([str(path)], skip_bad_lines=True), pool_tokens=4).run()
        assert len(result.file.bad_lines) <= 1
