from pathlib import Path

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.formats import open_requests
from tests.trace.request_files import changed, notes, read, refusal, written

SAMPLE = Path(__file__).parents[1] / "traces/ragpulse/0_trace.head.jsonl"
NO_IDS = {"sys_prompt": [], "passages_ids": [], "history": [], "web_search": [], "user_input": []}
ROW = {
    "timestamp": "90",
    "input_length": 530,
    "output_length": 20,
    "hash_ids": {**NO_IDS, "sys_prompt": [8302], "user_input": [20633]},
    "session_id": "s-1",
}
LAID = "pieces laid end to end and cut into blocks of 16, named by all before their end"


def tables(tmp_path):
    written(tmp_path, ['{"sys_prompt_id": 8302, "token_length": 512}', ""], "1_sys.jsonl")
    rows = [{"user_input_id": number, "token_length": 10} for number in (20633, 20634)]
    written(tmp_path, rows, "4_user.jsonl")


def test_sample():
    trace = open_requests(str(SAMPLE))
    requests = list(trace)
    assert (trace.format.name, len(requests), notes(trace)) == ("ragpulse", 5, {LAID: 5})
    assert [request.arrival_s for request in requests[:3]] == [0, 11, 43]
    assert all(len(found.block_ids) == -(-found.input_length // 16) for found in requests)
    # the first two system prompts are the same, the third is not
    shared = [a == b for a, b in zip(requests[0].block_ids, requests[1].block_ids, strict=False)]
    assert shared == sorted(shared, reverse=True)
    assert 512 <= sum(shared) * 16 < 1536


def test_pieces_are_shared_as_prefixes_only(tmp_path):
    tables(tmp_path)
    ids = ROW["hash_ids"]
    trace = read(tmp_path, ROW, changed(ROW, hash_ids={**ids, "user_input": [20634]}))
    first, second = trace
    assert first.block_ids[:32] == second.block_ids[:32]  # 512 tokens of the system prompt
    assert not set(first.block_ids[32:]) & set(second.block_ids[32:])
    moved = changed(ROW, hash_ids={**ids, "sys_prompt": [], "history": []}, input_length=17)
    assert not set(next(iter(read(tmp_path, moved))).block_ids) & set(first.block_ids)


def test_block_size_can_be_chosen(tmp_path):
    tables(tmp_path)
    (request,) = read(tmp_path, ROW, block_size=64)
    assert (request.block_size, len(request.block_ids)) == (64, 9)


def test_tables_of_another_folder(tmp_path):
    (tmp_path / "side").mkdir()
    tables(tmp_path / "side")
    assert notes(read(tmp_path, ROW, tables=str(tmp_path / "side"))) == {LAID: 1}
    (tmp_path / "none").mkdir()
    assert refusal(tmp_path, ROW, tables=str(tmp_path / "none")) == "none: no side table in the folder"


def test_without_tables_nothing_is_shared_and_that_is_noted(tmp_path):
    trace = read(tmp_path, ROW)
    assert next(iter(trace)).block_ids == ()
    assert list(notes(trace)) == [
        "no side tables beside the file: pieces have no lengths, so nothing is shared"
    ]


def test_clock_restart_names_both_lines(tmp_path):
    rows = [changed(ROW, timestamp="604453"), changed(ROW, timestamp="0")]
    path = written(tmp_path, ["", *rows])
    with pytest.raises(InputError) as caught:
        open_requests(path)
    assert str(caught.value) == (
        f"{path}:3: $.timestamp: the clock restarts: line 2 is at 604,453 s, line 3 at 0 s"
    )
    assert caught.value.hint == f"split the file: `head -n 2 {path}` and `tail -n +3 {path}`"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timestamp": 90}, "$.timestamp: a string of whole seconds is expected, found 90"),
        ({"timestamp": "9.5"}, '$.timestamp: a string of whole seconds is expected, found "9.5"'),
        ({"input_length": 500}, "$.input_length: 500 tokens, the pieces have 522"),
        (
            {"hash_ids": {**NO_IDS, "user_input": [20633, 5]}},
            "$.hash_ids.user_input[1]: no side table gives the length of user_input_id 5",
        ),
        (
            {"hash_ids": {**NO_IDS, "history": [20633]}},
            "$.hash_ids.history[0]: no side table gives the length of history_id 20633",
        ),
        (
            {"hash_ids": {"passages": []}},
            "$.hash_ids.passages: unknown list, sys_prompt, passages_ids, history, web_search, user_input "
            "are expected",
        ),
    ],
)
def test_refusals(tmp_path, changes, message):
    tables(tmp_path)
    found = refusal(tmp_path, changed(ROW, **changes), format_name="ragpulse")
    assert found == f"t.jsonl:1: {message}"


def test_bad_side_table(tmp_path):
    tables(tmp_path)
    written(tmp_path, [{"history_id": 1, "token_length": 4}] * 2, "3_history.jsonl")
    assert refusal(tmp_path, ROW, skip_bad_lines=True) == (
        "3_history.jsonl:2: $.history_id: history_id 1 is there twice"
    )
