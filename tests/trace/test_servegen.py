from pathlib import Path

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.run import simulate_file
from kvcanary_cli.trace.formats import open_requests, sniff
from tests.trace.request_files import changed, read, refusal

SAMPLES = Path(__file__).parents[1] / "traces/servegen"
IDS = {"request_id": 0, "type": "text", "input_length": 20, "hash_ids": [0, 1], "img_ids": []}
OUTPUTS = {"request_id": 0, "type": "text", "input_length": 20, "output_length": 300, "duration": 900}


def test_sample_has_ids_and_lacks_what_a_scheduler_needs():
    trace = open_requests(str(SAMPLES / "trace_a.head.jsonl"))
    assert (trace.records, trace.block_size, trace.lacks) == (8, 16, ["arrival times", "output lengths"])
    with pytest.raises(InputError) as caught:
        trace.require_schedulable()
    assert caught.value.message == (
        "ServeGen offline trace: the file has no arrival times and no output lengths, so it can't be scheduled"
    )


def test_files_with_outputs_lack_times_alone(tmp_path):
    assert read(tmp_path, OUTPUTS).lacks == ["arrival times"]


def test_the_scheduler_model_refuses_it():
    path = str(SAMPLES / "trace_a.head.jsonl")
    with pytest.raises(InputError, match="no arrival times and no output lengths"):
        simulate_file(path, sniff(path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [IDS, changed(OUTPUTS, request_id=1)],
            't.jsonl:2: $: key "output_length" is there, the rows before have none',
        ),
        (
            [OUTPUTS, changed(IDS, request_id=1)],
            't.jsonl:2: $: key "output_length" is missing, the rows before have it',
        ),
        ([IDS, IDS], 't.jsonl:2: $.request_id: "0" is the request of line 1 already'),
        (
            [changed(IDS, hash_ids=[0])],
            "t.jsonl:1: $.hash_ids: 1 block ids for 20 tokens, blocks of 16 make 2",
        ),
        (
            [IDS, changed(IDS, request_id=1, timestamp=5)],
            "t.jsonl:2: $.timestamp: the row has a time, which this format has not",
        ),
    ],
)
def test_refusals(tmp_path, rows, message):
    assert refusal(tmp_path, *rows) == message


def test_client_profiles_are_no_request_traces():
    with pytest.raises(InputError, match="client profile of ServeGen"):
        sniff(str(SAMPLES / "m-large_chunk-106-trace.head.csv"))
    with pytest.raises(InputError, match="the format is not known"):
        sniff(str(SAMPLES / "m-large_chunk-106-dataset.json"))
