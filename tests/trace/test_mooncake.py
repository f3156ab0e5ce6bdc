import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.formats import open_requests
from kvcanary_cli.trace.request_trace import ReadOptions
from kvcanary_cli.trace.requests import Request

EXAMPLE = Path(__file__).parents[2] / "docs/examples/mooncake-conversation.jsonl"
PLAIN = '{"timestamp": 2500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]}'


def row(**changes):
    """A row as JSON text; values are JSON texts themselves, None leaves the key out."""
    keys = {"timestamp": "2500", "input_length": "1100", "output_length": "7", "hash_ids": "[0, 1, 9]"}
    pairs = {**keys, **changes}.items()
    return "{" + ", ".join(f'"{key}": {value}' for key, value in pairs if value is not None) + "}"


def open_mooncake(path, **options):
    return open_requests(path, format_name="mooncake", options=ReadOptions(**options))


def written(tmp_path, *lines, end="\n"):
    path = tmp_path / "t.jsonl"
    path.write_bytes(("\n".join(lines) + end).encode())
    return str(path)


def read(tmp_path, *lines, end="\n", **options):
    return open_mooncake(written(tmp_path, *lines, end=end), **options)


def refusal(tmp_path, *lines, end="\n", **options):
    with pytest.raises(InputError) as caught:
        read(tmp_path, *lines, end=end, **options)
    return caught.value


def test_row_becomes_a_request(tmp_path):
    assert list(read(tmp_path, PLAIN)) == [
        Request(
            rid="req-1",
            arrival_s=0.0,
            input_length=1100,
            output_length=7,
            block_ids=(0, 1, 9),
            block_size=512,
        )
    ]


def test_real_trace_is_read_whole():
    trace = open_mooncake(str(EXAMPLE))
    requests = list(trace)
    assert trace.records == len(requests) == 200
    assert trace.longest == 121_213
    assert (trace.reordered, trace.moved_ids, dict(trace.unknown_keys)) == (0, 0, {})
    assert sum(request.input_length for request in requests) == 2_782_179
    assert requests[-1].arrival_s == 72.0
    assert all(len(request.block_ids) == -(-request.input_length // 512) for request in requests)


def test_trace_can_be_read_again(tmp_path):
    trace = read(tmp_path, PLAIN, PLAIN)
    assert [request.rid for request in trace] == [request.rid for request in trace] == ["req-1", "req-2"]


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (row(input_length="1.1e3"), "input_length", 1100),
        (row(timestamp="2500.0"), "arrival_s", 0.0),
        (row(hash_ids='["0", "18446744073709551615", 9]'), "block_ids", (0, (1 << 64) - 1, 9)),
        (row(hash_ids="[0, 1]"), "block_ids", (0, 1)),
        (row(hash_ids=None), "block_ids", ()),
        (row(input_length="100", hash_ids="[]"), "block_ids", ()),
        (row(output_length="0"), "output_length", 0),
        (r'{"timestamp": 2500, "input\u005flength": 1100, "output_length": 7}', "input_length", 1100),
    ],
    ids=["exponent", "whole float", "text ids", "floor count", "no ids", "empty ids", "no output", "escape"],
)
def test_unusual_rows_that_are_fine(tmp_path, line, field, value):
    (request,) = read(tmp_path, line)
    assert getattr(request, field) == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (row(input_length="true"), "$.input_length: a whole number is expected, found true"),
        (row(timestamp="2500.5"), "$.timestamp: a whole number is expected, found 2500.5"),
        (row(output_length='"7"'), '$.output_length: a whole number is expected, found "7"'),
        (row(output_length="null"), "$.output_length: a whole number is expected, found null"),
        (row(timestamp="NaN"), "not JSON (NaN is not a JSON number)"),
        (row(timestamp="-1"), "$.timestamp: the time is -1 ms, times begin at 0"),
        (
            row(input_length="0", hash_ids="[]"),
            "$.input_length: 0 tokens are not possible, 1 to 2,147,483,647 are",
        ),
        (row(output_length="-7"), "$.output_length: -7 tokens are not possible, 0 to 2,147,483,647 are"),
        (
            row(output_length="2147483648"),
            "$.output_length: 2,147,483,648 tokens are not possible, 0 to 2,147,483,647 are",
        ),
        (row(timestamp=None), '$: key "timestamp" is missing'),
        (row(input_length=None, input_lenght="5"), '$: key "input_length" is missing, found "input_lenght"'),
        (row(hash_ids="{}"), "$.hash_ids: a list of whole numbers is expected, found an object"),
        (row(hash_ids="[0, true, 9]"), "$.hash_ids[1]: a whole number is expected, found true"),
        (row(hash_ids='[0, "0x1", 9]'), '$.hash_ids[1]: a whole number is expected, found "0x1"'),
        (row(hash_ids="[0, -1, 9]"), "$.hash_ids[1]: block id -1 is below 0"),
        (
            row(hash_ids="[0, 1, 2, 9]"),
            "$.hash_ids: 4 block ids for 1,100 tokens, blocks of 512 make 2 or 3",
        ),
        (row(hash_ids="[0]"), "$.hash_ids: 1 block ids for 1,100 tokens, blocks of 512 make 2 or 3"),
        (
            row(input_length="1024", hash_ids="[0, 1, 2]"),
            "$.hash_ids: 3 block ids for 1,024 tokens, blocks of 512 make 2",
        ),
        (row().replace("}", ', "timestamp": 2500}'), 'key "timestamp" appears twice in one object'),
        ("[1, 2]", "$: an object is expected, found [1, 2]"),
        ("{nothing}", "not JSON (expecting property name enclosed in double quotes at column 2)"),
    ],
)
def test_rows_that_are_refused(tmp_path, line, message):
    error = refusal(tmp_path, PLAIN, line)
    assert str(error) == f"{tmp_path}/t.jsonl:2: {message}"


def test_last_line_that_was_cut_off(tmp_path):
    error = refusal(tmp_path, PLAIN, PLAIN[:30], end="")
    assert str(error).startswith(f"{tmp_path}/t.jsonl:2: the last line is truncated after 30 bytes (")


def test_whole_last_line_needs_no_line_end(tmp_path):
    assert read(tmp_path, PLAIN, PLAIN, end="").records == 2


def test_wrong_block_size_is_met_with_those_that_fit(tmp_path):
    rows = [row(input_length="1100", hash_ids="[1, 2, 3]"), row(input_length="700", hash_ids="[4, 5]")]
    assert refusal(tmp_path, *rows, block_size=16).hint == (
        "`--block-size N` fits every row with N from 367 to 549"
    )
    exact = [row(input_length="1024", hash_ids="[1, 2]"), row(input_length="513", hash_ids="[4, 5]")]
    assert refusal(tmp_path, *exact, block_size=16).hint == "`--block-size 512` fits every row"
    none = [row(input_length="1024", hash_ids="[1, 2]"), row(input_length="513", hash_ids="[4, 5, 6]")]
    assert refusal(tmp_path, *none).hint == "no block size explains the number of ids in every row"


def test_block_size_of_the_caller_is_used(tmp_path):
    (request,) = read(tmp_path, row(input_length="40", hash_ids="[1, 2, 3]"), block_size=16)
    assert request.block_size == 16


def test_times_that_go_back_are_sorted_and_counted(tmp_path):
    times = [5, 9, 3, 9, 5, 1]
    trace = read(tmp_path, *(row(timestamp=str(time)) for time in times))
    assert trace.reordered == 3
    assert [request.rid for request in trace] == ["req-6", "req-3", "req-1", "req-5", "req-2", "req-4"]


def test_times_a_year_apart_are_in_another_unit(tmp_path):
    error = refusal(tmp_path, row(timestamp="0"), row(timestamp=str(366 * 86_400_000 + 1)))
    assert str(error) == (
        f"{tmp_path}/t.jsonl:2: the time is 31,622,400 s away from another row's, more than a year"
    )
    assert read(tmp_path, row(timestamp="0"), row(timestamp=str(366 * 86_400_000))).records == 2


def test_unknown_keys_are_counted(tmp_path):
    trace = read(tmp_path, row(model='"a:b"'), PLAIN, row(model="1", kind="2"))
    assert dict(trace.unknown_keys) == {"model": 2, "kind": 1}
    assert trace.records == 3


def test_ids_that_move_are_counted(tmp_path):
    ids = ["[0, 1, 2]", "[0, 1, 3]", "[0, 4, 3]", "[1, 5, 6]"]
    # 3 follows 1 and 4, 1 stands second and first
    assert read(tmp_path, *(row(hash_ids=value) for value in ids)).moved_ids == 2


def test_blank_lines_keep_the_numbers_of_the_others(tmp_path):
    assert [request.rid for request in read(tmp_path, "", PLAIN, "  ", PLAIN)] == ["req-2", "req-4"]


def test_bad_lines_can_be_skipped(tmp_path):
    trace = read(tmp_path, PLAIN, row(input_length="0"), PLAIN, PLAIN[:20], end="", skip_bad_lines=True)
    assert trace.bad_lines == [2, 4]
    assert [request.rid for request in trace] == ["req-1", "req-3"]
    assert trace.bad_lines == [2, 4]


def test_limit_leaves_the_rest_unread(tmp_path):
    trace = read(tmp_path, PLAIN, PLAIN, "{broken", limit=2)
    assert trace.records == len(list(trace)) == 2


def test_standard_input_is_read_once(monkeypatch):
    data = (row(timestamp="7") + "\n" + row(timestamp="2") + "\n").encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    trace = open_mooncake("-")
    assert [request.rid for request in trace] == [request.rid for request in trace] == ["req-2", "req-1"]


def test_error_on_standard_input_names_it(monkeypatch):
    data = row(hash_ids="[]").encode() + b"\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    with pytest.raises(InputError) as caught:
        open_mooncake("-")
    assert str(caught.value).startswith("<stdin>:1: $.hash_ids: 0 block ids")
    assert caught.value.hint is None
