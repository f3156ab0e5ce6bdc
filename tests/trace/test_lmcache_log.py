import pytest

from tests.trace.request_files import changed, notes, read, refusal

ROW = {
    "timestamp": 1700000000.5,
    "request_id": "r1",
    "model_name": "m",
    "chunk_size": 256,
    "seq_len": 600,
    "dtypes": ["bfloat16"],
    "shapes": [[2, 4, 256, 128]],
    "chunk_hashes": ["00a1", "00a2"],
}


def test_row(tmp_path):
    trace = read(tmp_path, ROW, changed(ROW, request_id="r2", timestamp=1700000001.75))
    first, second = trace
    assert (trace.format.name, trace.block_size, trace.lacks) == ("lmcache-lookup", 256, ["output lengths"])
    assert (first.rid, first.input_length, first.block_ids) == ("r1", 600, (0xA1, 0xA2))
    assert second.arrival_s == 1.25


def test_models_share_nothing_and_repeats_are_noted(tmp_path):
    trace = read(tmp_path, ROW, changed(ROW, model_name="n"))
    first, second = trace
    assert not set(first.block_ids) & set(second.block_ids)
    assert second.rid == "r1@2"
    assert notes(trace) == {"the request was looked up before, and counts as one of its own": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [changed(ROW, chunk_hashes=["00a1"])],
            "1: $.chunk_hashes: 1 block ids for 600 tokens, blocks of 256 make 2",
        ),
        (
            [changed(ROW, chunk_hashes=["00a1", "zz"])],
            '1: $.chunk_hashes[1]: a hash in hex digits is expected, found "zz"',
        ),
        ([ROW, changed(ROW, chunk_size=16)], "2: $.chunk_size: blocks of 16 tokens, rows before have 256"),
        ([changed(ROW, timestamp=...)], '1: $: key "timestamp" is missing'),
    ],
)
def test_refusals(tmp_path, rows, message):
    assert refusal(tmp_path, *rows) == f"t.jsonl:{message}"
