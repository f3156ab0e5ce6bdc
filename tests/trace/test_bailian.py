from pathlib import Path

import pytest

from kvcanary_cli.trace.formats import open_requests
from tests.trace.request_files import changed, notes, read, refusal

SAMPLE = Path(__file__).parents[1] / "traces/bailian/qwen_thinking.first_row.jsonl"
FIRST = {
    "chat_id": 5,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 9,
    "type": "text",
    "turn": 1,
    "hash_ids": [7, 8, 9],
}
SECOND = changed(FIRST, chat_id=12, parent_chat_id=5, timestamp=63.75, turn=2)


def test_sample():
    trace = open_requests(str(SAMPLE))
    (request,) = trace
    assert (trace.format.name, trace.block_size) == ("bailian", 16)
    assert (request.rid, request.input_length, len(request.block_ids)) == ("chat-0", 502, 32)


def test_linked_turns_are_one_session(tmp_path):
    third = changed(FIRST, chat_id=13, parent_chat_id=12, timestamp=70, turn=3)
    trace = read(tmp_path, FIRST, SECOND, changed(FIRST, chat_id=6, timestamp=64), third)
    assert [(request.rid, request.session, request.after) for request in trace] == [
        ("chat-5", "chat-5", None),
        ("chat-12", "chat-5", None),
        ("chat-6", "chat-6", None),
        ("chat-13", "chat-5", None),
    ]
    assert [request.arrival_s for request in trace] == [0, 2.636, 2.886, 8.886]


def test_parent_that_the_window_cut_off_is_noted(tmp_path):
    trace = read(tmp_path, SECOND, changed(SECOND, chat_id=14))
    assert {request.session for request in trace} == {"chat-5"}
    assert notes(trace) == {"the parent is not in the file": 2}


def test_image_row_without_ids_is_noted(tmp_path):
    trace = read(tmp_path, changed(FIRST, type="image", hash_ids=...))
    assert notes(trace) == {"no hash_ids: nothing is known to be shared": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([FIRST, FIRST], "t.jsonl:2: $.chat_id: chat 5 is the one of line 1 already"),
        (
            [SECOND, FIRST],
            "t.jsonl:2: $.chat_id: chat 5 is the parent of line 1, a parent stands before its children",
        ),
        (
            [FIRST, changed(SECOND, turn=1)],
            "t.jsonl:2: $.parent_chat_id: turn 1 has no turn before it, found chat 5; -1 is expected",
        ),
        (
            [FIRST, changed(SECOND, parent_chat_id=12)],
            "t.jsonl:2: $.parent_chat_id: chat 12 can't be the parent of chat 12",
        ),
        ([changed(FIRST, turn=0)], "t.jsonl:1: $.turn: turn 0 is not possible, the first is 1"),
        (
            [changed(FIRST, hash_ids=[1, 2])],
            "t.jsonl:1: $.hash_ids: 2 block ids for 33 tokens, blocks of 16 make 3",
        ),
        ([changed(FIRST, timestamp="5")], 't.jsonl:1: $.timestamp: a number is expected, found "5"'),
        ([changed(FIRST, timestamp=-0.5)], "t.jsonl:1: $.timestamp: the time is -0.5 s, times begin at 0"),
        ([changed(FIRST, turn=...)], 't.jsonl:1: $: key "turn" is missing'),
    ],
)
def test_refusals(tmp_path, rows, message):
    assert refusal(tmp_path, *rows) == message
