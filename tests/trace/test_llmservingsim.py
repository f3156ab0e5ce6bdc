from pathlib import Path

import pytest

from kvcanary_cli.trace.formats import open_requests
from tests.trace.request_files import changed, notes, read, refusal

SAMPLES = Path(__file__).parents[1] / "traces/llmservingsim"
ROW = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 1_500_000, "input_tok_ids": [4, 5, 6]}
SUB = {"input_toks": 4, "output_toks": 2, "tool_duration_ns": 30_000_000}
SESSION = {"session_id": "s", "arrival_time_ns": 2_500_000, "sub_requests": [SUB, changed(SUB, input_toks=9)]}
MEASURED = {
    "request_id": "b-0",
    "input_toks": 5,
    "output_toks": 1,
    "arrival_time": 1787267980.08,
    "queued_ts": 2.5,
}


def test_samples():
    workload = open_requests(str(SAMPLES / "example_trace.jsonl"))
    assert (workload.records, workload.longest, workload.notes) == (10, 126, [])
    assert next(iter(workload)).prompt_tokens == tuple(range(1, 11))
    measured = open_requests(str(SAMPLES / "RTX4090_requests.head.jsonl"))
    assert (measured.records, measured.reordered) == (20, 0)
    assert notes(measured) == {"measured times beside the arrival are not used": 20}
    assert next(iter(measured)).rid == "bench-0"
    assert 1 < measured.span_s < 60


def test_rows_and_sessions_in_one_file(tmp_path):
    first, second, third = read(tmp_path, ROW, SESSION)
    assert (first.rid, first.arrival_s, first.prompt_tokens) == ("req-1", 0, (4, 5, 6))
    assert (second.rid, second.arrival_s, second.after) == ("s/1", 0.001, None)
    assert (third.session, third.after, third.delay_s, third.input_length) == ("s", "s/1", 0.03, 9)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(ROW, input_tok_ids=[4, 5]), "$.input_tok_ids: 2 token ids, input_toks is 3"),
        (changed(ROW, output_tok_ids=[1]), "$.output_tok_ids: 1 token ids, output_toks is 2"),
        (changed(ROW, input_tok_ids=[4, -1, 6]), "$.input_tok_ids[1]: token id -1 is below 0"),
        (
            changed(SESSION, sub_requests=[]),
            "$.sub_requests: a list of requests is expected, found an empty one",
        ),
        (
            changed(SESSION, sub_requests=[SUB, changed(SUB, tool_duration_ns=-1)]),
            "$.sub_requests[1].tool_duration_ns: the duration is -1 ns, it can't be below 0",
        ),
        (
            changed(ROW, arrival_time_ns=1_787_267_980_000_000_000),
            "$.arrival_time_ns: 1,787,267,980,000,000,000 ns are more than 1,000,000,000,000,000,000: this is Unix "
            "time, times count from the start",
        ),
        (changed(ROW, arrival_time_ns=...), '$: key "arrival_time_ns" is missing'),
        (changed(ROW, input_toks=0), "$.input_toks: 0 tokens are not possible, 1 to 2,147,483,647 are"),
    ],
)
def test_refusals(tmp_path, row, message):
    assert refusal(tmp_path, row) == f"t.jsonl:1: {message}"


def test_two_clocks_are_refused(tmp_path):
    message = "two clocks in one file, arrival_time_ns and arrival_time"
    assert refusal(tmp_path, ROW, MEASURED) == f"t.jsonl:2: $.arrival_time: {message}"
    both = changed(MEASURED, arrival_time_ns=5)
    assert refusal(tmp_path, both) == f"t.jsonl:1: $.arrival_time: {message}"


def test_ids_are_unique(tmp_path):
    assert refusal(tmp_path, MEASURED, MEASURED) == (
        't.jsonl:2: $.request_id: "b-0" is the request of line 1 already'
    )
    assert refusal(tmp_path, SESSION, SESSION) == (
        't.jsonl:2: $.session_id: "s/1" is the request of line 1 already'
    )
