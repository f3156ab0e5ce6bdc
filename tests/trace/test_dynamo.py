"""Dynamo's request trace v1 and its agentic Mooncake trace v2."""

from pathlib import Path

import pytest

from kvcanary_cli.trace.formats import open_requests
from tests.trace.request_files import changed, notes, read, refusal

SAMPLES = Path(__file__).parents[1] / "traces/dynamo"
REPLAY = {"trace_block_size": 64, "input_length": 100, "input_sequence_hashes": [11, (1 << 64) - 1]}
REQUEST = {
    "request_id": "r1",
    "output_tokens": 3,
    "request_received_ms": 50,
    "total_time_ms": 25,
    "replay": REPLAY,
}
END = {
    "schema": "dynamo.request.trace.v1",
    "event_type": "request_end",
    "event_time_unix_ms": 75,
    "request": REQUEST,
}
HEADER = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 16, "hash_id_scope": "local"}
ROW = {
    "request_id": "a",
    "play_id": "p",
    "session_id": "s",
    "model": "m",
    "input_length": 20,
    "output_length": 2,
    "hash_ids": [1, 2],
    "not_before_ms": 10,
    "dependencies": [],
}


def end(rid, received, **changes):
    return changed(END, request=changed(REQUEST, request_id=rid, request_received_ms=received, **changes))


def waits(*on, rid="b", trigger="completion", delay=7, **changes):
    items = [{"request_id": other, "trigger": trigger, "delay_ms": delay, "relation": "x"} for other in on]
    return changed(ROW, request_id=rid, dependencies=items, **changes)


def test_samples():
    standard = open_requests(str(SAMPLES / "dynamo-standard.jsonl"))
    assert (standard.records, standard.block_size) == (2, 4)
    assert notes(standard) == {"request_payload records are skipped": 1}
    agents = open_requests(str(SAMPLES / "dynamo-agentic.jsonl"))
    assert [(request.rid, request.session) for request in agents][1:3] == [
        ("child-first", "child"),
        ("child-last", "child"),
    ]
    assert notes(agents) == {"tool_end records are skipped": 1}


def test_order_of_completion_becomes_one_of_arrival(tmp_path):
    trace = read(tmp_path, end("late", 90), end("early", 40))
    assert [(request.rid, request.arrival_s) for request in trace] == [("early", 0), ("late", 0.05)]
    assert trace.reordered == 1
    assert next(iter(trace)).block_ids == (11, (1 << 64) - 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [changed(END, schema="dynamo.request.trace.v2")],
            't.jsonl:1: $.schema: schema is "dynamo.request.trace.v2", "dynamo.request.trace.v1" is expected',
        ),
        (
            [end("r1", 50, replay=...)],
            "t.jsonl:1: $.request: request r1 has no replay part (prompt length and block ids), "
            "so it can't be replayed",
        ),
        (
            [END, end("r2", 60, replay=changed(REPLAY, trace_block_size=32))],
            "t.jsonl:2: $.request.replay.trace_block_size: blocks of 32 tokens, rows before have 64",
        ),
        ([END, END], 't.jsonl:2: $.request.request_id: "r1" is the request of line 1 already'),
        (
            [changed(END, event_type="request_start")],
            't.jsonl:1: $.event_type: unknown record "request_start", request_end, request_payload or tool '
            "records are expected",
        ),
        (
            [end("r1", 50, replay=changed(REPLAY, input_sequence_hashes=[1, 2, 3]))],
            "t.jsonl:1: $.request.replay.input_sequence_hashes: 3 block ids for 100 tokens, blocks of 64 "
            "make 1 or 2",
        ),
    ],
)
def test_request_trace_refusals(tmp_path, rows, message):
    assert refusal(tmp_path, *rows) == message


def test_a_stated_block_size_is_confirmed_or_refused(tmp_path):
    assert read(tmp_path, END, block_size=64).block_size_from == "--block-size"
    assert read(tmp_path, END).block_size_from == "Dynamo request trace v1"
    assert refusal(tmp_path, END, block_size=16).endswith("blocks of 64 tokens, `--block-size` says 16")


def test_agentic_sample():
    trace = open_requests(str(SAMPLES / "agentic-mooncake.jsonl"))
    root, child, join = trace
    assert (root.after, root.session, root.block_ids) == (None, "root", (301,))
    assert (child.after, child.arrival_s) == (None, 0.005)  # 5 ms behind the dispatch of the root
    assert (join.after, join.delay_s) == ("agent-child", 0.001)
    assert notes(trace) == {"waits for several requests, of which the last one listed is kept": 1}


def test_waiting_for_a_dispatch_is_waiting_as_the_other_does(tmp_path):
    trace = read(tmp_path, HEADER, ROW, waits("a"), waits("b", rid="c", trigger="dispatch", delay=2))
    third = list(trace)[2]
    assert (third.after, third.delay_s) == ("a", 0.009)


def test_models_share_no_blocks(tmp_path):
    first, second = read(tmp_path, HEADER, ROW, waits("a", model="other"))
    assert first.block_ids == (1, 2)
    assert not set(first.block_ids) & set(second.block_ids)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([changed(HEADER, version=1)], "1: $.version: version is 1, 2 is expected"),
        ([HEADER, waits("z")], '2: $.dependencies[0].request_id: "z" is no earlier request'),
        ([HEADER, waits("a"), ROW], '2: $.dependencies[0].request_id: "a" is no earlier request'),
        ([HEADER, waits("b")], '2: $.dependencies[0].request_id: request "b" waits for itself'),
        (
            [HEADER, ROW, waits("a", trigger="start")],
            '3: $.dependencies[0].trigger: "start" is none of dispatch, completion',
        ),
        (
            [HEADER, ROW, waits("a", delay=-1)],
            "3: $.dependencies[0].delay_ms: the delay is -1 ms, it can't be below 0",
        ),
        (
            [HEADER, changed(ROW, input_length=40)],
            "2: $.hash_ids: 2 block ids for 40 tokens, blocks of 16 make 3",
        ),
        ([HEADER, HEADER], "2: $.schema: a second header"),
        ([HEADER, ROW, ROW], '3: $.request_id: "a" is the request of line 2 already'),
    ],
)
def test_agentic_refusals(tmp_path, rows, message):
    assert refusal(tmp_path, *rows) == f"t.jsonl:{message}"


def test_agentic_rows_without_their_header(tmp_path):
    message = 't.jsonl:1: $: the header is missing: schema "dynamo.agentic_mooncake" is expected, found none'
    assert refusal(tmp_path, ROW, format_name="dynamo-agentic") == message
    assert refusal(tmp_path, ROW, format_name="dynamo-agentic", skip_bad_lines=True) == message
