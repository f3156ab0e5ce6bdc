from pathlib import Path

import pytest

from kvcanary_cli.trace.formats import open_requests
from tests.trace.request_files import changed, notes, read, refusal

SAMPLE = Path(__file__).parents[1] / "traces/dynamo/applied-compute-agentic.jsonl"
SESSION = {
    "num_turns": 1,
    "input_prompt_length": 20,
    "assistant_response_length": [5],
    "tool_call_output_length": [9],
    "tool_call_latency": [0.2],
    "final_assistant_response_length": 3,
}


def test_sample():
    trace = open_requests(str(SAMPLE))
    assert [(r.input_length, r.output_length, r.after, r.delay_s) for r in trace] == [
        (16, 4, None, 0),
        (28, 4, "session-1/1", 0.01),
        (40, 4, "session-1/2", 0.02),
    ]
    assert notes(trace)["no arrival times: every session starts at 0"] == 1


def test_later_prompts_begin_with_earlier_ones_and_sessions_share_nothing(tmp_path):
    first, second, other, _ = read(tmp_path, SESSION, SESSION)
    assert (first.session, other.session) == ("session-1", "session-2")
    assert len(first.block_ids) == 2
    assert len(second.block_ids) == 3
    # 20 tokens: one whole block of 16, and a partial one that goes on differently
    assert first.block_ids[0] == second.block_ids[0]
    assert first.block_ids[1] not in second.block_ids
    assert not set(first.block_ids) & set(other.block_ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_turns": 2}, "$.assistant_response_length: 1 items for 2 turns"),
        ({"tool_call_latency": []}, "$.tool_call_latency: 0 items for 1 turns"),
        ({"tool_call_latency": [-0.5]}, "$.tool_call_latency[0]: the latency is -0.5 s, it can't be below 0"),
        (
            {"tool_call_output_length": [True]},
            "$.tool_call_output_length[0]: a whole number is expected, found true",
        ),
        ({"assistant_response_length": 5}, "$.assistant_response_length: a list is expected, found 5"),
        (
            {"input_prompt_length": 0},
            "$.input_prompt_length: 0 tokens are not possible, 1 to 2,147,483,647 are",
        ),
        ({"final_assistant_response_length": ...}, '$: key "final_assistant_response_length" is missing'),
        (
            {"input_prompt_length": (1 << 31) - 1},
            "$: the session has 2,147,483,664 tokens, at most 2,147,483,647 are possible",
        ),
    ],
)
def test_refusals(tmp_path, changes, message):
    assert refusal(tmp_path, changed(SESSION, **changes)) == f"t.jsonl:1: {message}"
