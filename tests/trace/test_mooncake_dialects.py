"""What other tools write under Mooncake's name."""

from pathlib import Path

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.formats import open_requests
from tests.trace.request_files import changed, notes, read, refusal

SAMPLES = Path(__file__).parents[1] / "traces"
ROW = {"timestamp": 2500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]}
TURN = {"timestamp": 0, "input_length": 16, "output_length": 4, "session_id": "s"}
PLAIN = changed(ROW, hash_ids=...)


@pytest.mark.parametrize(("name", "records", "longest"), [("mooncake", 2, 36), ("mooncake_tiny", 16, 27_332)])
def test_dynamo_samples(name, records, longest):
    trace = open_requests(str(SAMPLES / f"dynamo/{name}.jsonl"))
    assert (trace.format.name, trace.records, trace.longest) == ("mooncake", records, longest)


def test_a_row_of_aiperf_contradicts_the_others():
    with pytest.raises(InputError) as caught:
        open_requests(str(SAMPLES / "aiperf/production_trace.jsonl"))
    assert caught.value.message == "3 block ids for 1,024 tokens, blocks of 512 make 2"
    assert caught.value.hint == "no block size explains the number of ids in every row"
    assert caught.value.where is not None
    assert caught.value.where.endswith(":3")


def test_turns_of_a_session(tmp_path):
    later = changed(TURN, timestamp=..., delay=1500)
    trace = read(tmp_path, TURN, changed(TURN, timestamp=9), later, PLAIN)
    assert [(found.rid, found.session, found.after, found.delay_s) for found in trace] == [
        ("req-1", "s", None, 0),
        ("req-2", "s", None, 0),
        ("req-3", "s", "req-2", 1.5),
        ("req-4", None, None, 0),
    ]
    assert trace.reordered == 0


def test_turn_with_time_and_delay_waits_for_both(tmp_path):
    trace = read(tmp_path, changed(TURN, timestamp=40), changed(TURN, timestamp=10, delay=5))
    assert [(found.arrival_s, found.after) for found in trace] == [(0, None), (0, "req-1")]


def test_delay_of_a_first_turn_is_noted(tmp_path):
    trace = read(tmp_path, changed(TURN, delay=5))
    assert next(iter(trace)).after is None
    assert notes(trace) == {"the first turn of a session has a delay, which is not used": 1}


def test_output_of_no_tokens_and_equal_times_are_told(tmp_path):
    trace = read(tmp_path, ROW, changed(ROW, output_length=0))
    assert (trace.simultaneous, notes(trace)) == (1, {"the output has 0 tokens": 1})


def test_other_names_of_the_keys(tmp_path):
    row = {"request_id": "r", "created_time": 5, "input_tokens": 20, "output_tokens": 3, "session_id": 1}
    first, second = read(tmp_path, row, changed(row, request_id="q", delay_ms=2))
    assert (first.rid, first.input_length, first.output_length, first.session) == ("r", 20, 3, "1")
    assert (second.after, second.delay_s) == ("r", 0.002)


def test_block_size_in_the_rows(tmp_path):
    row = changed(ROW, block_size=16, input_length=40, hash_ids=[1, 2, 3], block_tokens=[16, 16, 8])
    trace = read(tmp_path, row, row)
    assert (trace.block_size, trace.block_size_from) == (16, "Mooncake request trace")
    floor = changed(row, hash_ids=["1", str(1 << 63)], block_tokens=[16, 16])
    assert next(iter(read(tmp_path, floor))).block_ids == (1, 1 << 63)


def test_file_without_times_is_read_but_not_scheduled(tmp_path):
    row = changed(PLAIN, timestamp=...)
    trace = read(tmp_path, row, row)
    assert trace.lacks == ["arrival times"]
    with pytest.raises(InputError, match="the file has no arrival times, so it can't be scheduled"):
        trace.require_schedulable()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [PLAIN, {"timestamp": 3, "text_input": "Hi", "output_length": 4}],
            '2: $: key "input_length" is missing, the row has its prompt as text ("text_input"), which only '
            "the model's tokenizer can count",
        ),
        ([changed(PLAIN, messages=[])], '1: $: keys "messages" and "input_length" exclude each other'),
        (
            [changed(PLAIN, input_tokens=5)],
            '1: $: keys "input_length" and "input_tokens" mean the same, one is expected',
        ),
        ([PLAIN, changed(PLAIN, timestamp=...)], '2: $: key "timestamp" is missing'),
        (
            [changed(PLAIN, timestamp=...), PLAIN],
            "2: $.timestamp: the row has a time, the one of line 1 has none",
        ),
        ([changed(PLAIN, timestamp=..., timestmp=5)], '1: $: key "timestamp" is missing, found "timestmp"'),
        ([TURN, changed(TURN, delay=-1)], "2: $.delay: the delay is -1 ms, it can't be below 0"),
        (
            [changed(PLAIN, delay=5)],
            "1: $.delay: a delay follows the turn before, and the row has no session_id",
        ),
        (
            [changed(PLAIN, request_id="r"), changed(PLAIN, request_id="r")],
            '2: $.request_id: "r" is the request of line 1 already',
        ),
        (
            [changed(PLAIN, block_size=512), changed(PLAIN, block_size=16)],
            "2: $.block_size: blocks of 16 tokens, rows before have 512",
        ),
        (
            [changed(ROW, block_size=512, block_tokens=[512, 512])],
            "1: $.block_tokens: 2 token counts for 3 block ids",
        ),
        (
            [changed(ROW, block_size=512, block_tokens=[512, 76, 512])],
            "1: $.block_tokens[1]: block 1 has 76 tokens, 512 are expected of a prompt of 1,100 in blocks of 512",
        ),
    ],
)
def test_refusals(tmp_path, rows, message):
    assert refusal(tmp_path, *rows) == f"t.jsonl:{message}"


def test_block_size_that_fits_each_row_but_not_all(tmp_path):
    up = changed(ROW, input_length=1030, hash_ids=[1, 2, 3])
    down = changed(ROW, input_length=1100, hash_ids=[4, 5])
    assert refusal(tmp_path, up, down) == (
        "t.jsonl: blocks of 512 tokens explain the number of ids in each row, but not in all"
    )
    assert read(tmp_path, down, changed(down, input_length=1530)).records == 2


def test_delta_prompts_are_summed_up():
    path = str(SAMPLES / "dynamo/mooncake-delta.jsonl")
    assert [found.input_length for found in open_requests(path)] == [16, 8]
    trace = open_requests(path, format_name="mooncake-delta")
    first, second = trace
    assert (trace.longest, trace.block_size) == (32, 16)
    assert (second.input_length, second.after, second.delay_s) == (28, "d1", 0.005)
    assert first.block_ids == second.block_ids[:1]
    assert notes(trace)["a later turn: its prompt is the session so far and the new tokens"] == 1


def test_delta_sessions_are_apart_and_limited(tmp_path):
    other = changed(TURN, session_id="t")
    trace = read(tmp_path, TURN, other, TURN, format_name="mooncake-delta")
    assert [found.input_length for found in trace] == [16, 16, 36]
    most = changed(TURN, input_length=(1 << 31) - 1)
    assert refusal(tmp_path, TURN, most, format_name="mooncake-delta") == (
        "t.jsonl:2: $.input_length: the session has 2,147,483,667 tokens with this row, at most 2,147,483,647 "
        "are possible"
    )
