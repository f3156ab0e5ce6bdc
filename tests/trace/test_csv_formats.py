"""CSV request traces: what each reader accepts, and what it says of a line that it can't use."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.csv_formats import CSV_FORMATS, csv_format
from kvcanary_cli.trace.files import LineError, TruncatedError
from kvcanary_cli.trace.request_trace import Format, ReadOptions, RequestTrace

SAMPLES = Path(__file__).parent / "csv_samples"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens"
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"
SPLITWISE = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"


def format_of(name: str) -> Format:
    module, attribute = CSV_FORMATS[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def read(path: str | Path, **options) -> RequestTrace:
    """The file through the format that its header belongs to."""
    header = next(line for line in Path(path).read_text().splitlines() if line.strip())
    name = csv_format(header.removeprefix("\ufeff").split(","))
    assert name is not None
    return RequestTrace(str(path), format_of(name), ReadOptions(**options))


def write(folder: Path, *lines: str, end: str = "\n", last: str = "\n") -> str:
    path = folder / "t.csv"
    path.write_bytes((end.join(lines) + last).encode())
    return str(path)


def failure(path: str, **options) -> InputError:
    with pytest.raises(InputError) as caught:
        list(read(path, **options))
    caught.value.where = (caught.value.where or "").replace(path, Path(path).name)
    return caught.value


def times(path: str) -> list[float]:
    return [request.arrival_s for request in read(path)]


@pytest.mark.parametrize(
    ("sample", "name", "rows", "prompt", "output", "longest"),
    [
        ("azure-2023", "azure", 11, 24_441, 157, 7_447),
        ("burstgpt-1", "burstgpt", 3, 1_976, 524, 1_317),
        ("burstgpt-3", "burstgpt", 4, 3_656, 776, 1_902),
        ("vidur", "vidur", 11, 24_441, 157, 7_447),
        ("vidur-lengths", "vidur-lengths", 5, 15_323, 611, 3_991),
        ("splitwise-sim", "splitwise-sim", 3, 8_192, 56, 4_128),
    ],
)
def test_samples(sample, name, rows, prompt, output, longest):
    trace = read(SAMPLES / f"{sample}.csv")
    requests = list(trace)
    sums = (sum(r.input_length for r in requests), sum(r.output_length for r in requests), trace.longest)
    assert (trace.format.name, trace.records, len(requests)) == (name, rows, rows)
    assert sums == (prompt, output, longest)
    assert (trace.reordered, trace.bad_lines, dict(trace.unknown_keys)) == (0, [], {})
    assert requests[0].arrival_s == 0


def test_two_formats_of_one_workload_agree():
    azure, vidur = (list(read(SAMPLES / f"{name}.csv")) for name in ("azure-2023", "vidur"))
    assert [(r.rid, r.arrival_s, r.input_length, r.output_length) for r in azure] == [
        (r.rid, r.arrival_s, r.input_length, r.output_length) for r in vidur
    ]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("no-requests-sim", "is the output of a simulator (LLMServingSim), not a request trace"),
        ("no-requests-timeseries", "is a time series of a server's load, not a request trace"),
        ("no-requests-servegen", "the CSV has no header, so its columns have no meaning"),
    ],
)
def test_tables_of_something_else_are_refused(sample, message):
    header = (SAMPLES / f"{sample}.csv").read_text().splitlines()[0]
    with pytest.raises(LineError) as caught:
        csv_format(header.split(","))
    assert str(caught.value).startswith(message)
    assert caught.value.hint == "a file with one row a request is needed, with prompt and output tokens"


@pytest.mark.parametrize("header", ["a,b,c", "", "5", "just text", '{"a": 1}', "12 monkeys,b"])
def test_other_first_lines_are_no_csv_of_ours(header):
    assert csv_format(header.split(",")) is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n"])
def test_line_ends_blank_lines_and_a_byte_order_mark(tmp_path, start, end, last):
    path = write(tmp_path, start + VIDUR, "0.5,64,16", "1,8,0", end=end, last=last)
    assert [(r.arrival_s, r.input_length, r.output_length) for r in read(path)] == [(0, 64, 16), (0.5, 8, 0)]


def test_quoted_cells_may_hold_commas(tmp_path):
    path = write(tmp_path, "note," + VIDUR, '"[1, 2, ""x""]",0,64,"16"')
    trace = read(path)
    assert [(r.input_length, r.output_length) for r in trace] == [(64, 16)]
    assert dict(trace.unknown_keys) == {"note": 1}


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (VIDUR, "0,64", "t.csv:3: 2 cells, the header has 3"),
        (VIDUR, "0,64,1,2", "t.csv:3: 4 cells, the header has 3"),
        (VIDUR, '0,"64,1', "t.csv:3: a quoted cell is wrong: unexpected end of data"),
        (VIDUR, '0,"64"x,1', "t.csv:3: a quoted cell is wrong: ',' expected after '\"'"),
        (VIDUR, '0,"%s",1' % ("6" * 200_000), "t.csv:3: a quoted cell is wrong: field larger than"),
        (VIDUR, "0,64\r,1", "t.csv:3: a carriage return stands inside the line, lines end with LF or CRLF"),
        (VIDUR, "0,,1", 't.csv:3: column "num_prefill_tokens": a whole number is expected, found an empty'),
        (VIDUR, "0,64.5,1", 't.csv:3: column "num_prefill_tokens": a whole number is expected, found "64.5"'),
        (VIDUR, "0,true,1", 't.csv:3: column "num_prefill_tokens": a whole number is expected, found "true"'),
        (VIDUR, "0,6_4,1", 't.csv:3: column "num_prefill_tokens": a whole number is expected, found "6_4"'),
        (VIDUR, "0,1e400,1", 't.csv:3: column "num_prefill_tokens": a whole number is expected, found'),
        (VIDUR, f"0,{'9' * 5000},1", 't.csv:3: column "num_prefill_tokens": a number of 5,000 digits is too'),
        (VIDUR, "0,0,1", "t.csv:3: 0 input tokens are not possible, 1 to 2,147,483,647 are"),
        (VIDUR, "0,-5,1", "t.csv:3: -5 input tokens are not possible"),
        (VIDUR, "0,5,-1", "t.csv:3: -1 output tokens are not possible, 0 to 2,147,483,647 are"),
        (VIDUR, "0,3e9,1", "t.csv:3: 3,000,000,000 input tokens are not possible"),
        (VIDUR, "nan,5,1", 't.csv:3: column "arrived_at": a time in seconds is expected, found "nan"'),
        (VIDUR, "inf,5,1", 't.csv:3: column "arrived_at": a time in seconds is expected, found "inf"'),
        (VIDUR, "-0.5,5,1", 't.csv:3: column "arrived_at": a time from 0 to 1,000,000,000,000 s is expected'),
        (
            VIDUR,
            "1e400,5,1",
            't.csv:3: column "arrived_at": a time from 0 to 1,000,000,000,000 s is expected',
        ),
        (VIDUR, ",5,1", 't.csv:3: column "arrived_at": a time in seconds is expected, found an empty cell'),
        (AZURE, "2023-11-16 09:00:00.1234567,5,x", 't.csv:3: column "GeneratedTokens": a whole number is'),
        (BURST, "1,GPT-4,x,4,94,API log", 't.csv:3: column "Request tokens": a whole number is expected'),
        (SPLITWISE, ",2,0,0.5,1,300,12", 't.csv:3: column "request_id": the id is empty'),
    ],
)
def test_bad_rows(tmp_path, header, row, message):
    good = {
        VIDUR: "0,1,1",
        AZURE: "2023-11-16 09:00:00,1,1",
        BURST: "0,m,1,1,2,l",
        SPLITWISE: "0,2,0,0.5,1,300,12",
    }[header]
    path = write(tmp_path, header, good, row, good.replace("0,2,", "9,2,"))
    assert str(failure(path)).startswith(message)
    skipping = read(path, skip_bad_lines=True)
    assert (skipping.records, skipping.bad_lines) == (2, [3])


def test_a_cut_last_line_is_truncated(tmp_path):
    path = write(tmp_path, VIDUR, "0,64,16", "1,64", last="")
    error = failure(path)
    assert isinstance(error, TruncatedError)
    assert str(error) == "t.csv:3: the last line is truncated after 4 bytes (2 cells, the header has 3)"


def test_a_line_that_is_no_text_can_be_skipped(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(VIDUR.encode() + b"\n0,1,1\n1,\xff,1\n2,1,1\n")
    trace = RequestTrace(str(path), format_of("vidur"), ReadOptions(skip_bad_lines=True))
    assert (trace.records, trace.bad_lines) == (2, [3])
    with pytest.raises(LineError, match=r"t\.csv:3: byte 0xff at offset"):
        RequestTrace(str(path), format_of("vidur"))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (AZURE.lower(), 'column "timestamp" is "TIMESTAMP" in this format, case counts'),
        (AZURE.replace(",", ";"), "cells are separated by semicolons, commas are expected"),
        (AZURE.replace(",", "\t"), "cells are separated by tabs, commas are expected"),
        (f"{AZURE},TIMESTAMP", 'column "TIMESTAMP" is there 2 times'),
        ("TIMESTAMP,ContextTokens", 'column "GeneratedTokens" is missing'),
        ("TIMESTAMP,ContextTokens,GenTokens", 'column "GeneratedTokens" is missing, found "GenTokens"'),
        (BURST.replace("Timestamp,", ""), 'column "Timestamp" is missing'),
        (BURST.replace("Response", "Output"), 'column "Response tokens" is missing'),
        (SPLITWISE.replace("arrival_timestamp", "time"), 'column "arrival_timestamp" is missing'),
        (LENGTHS.replace("num_decode", "decode"), 'column "num_decode_tokens" is missing, found'),
    ],
)
def test_bad_headers(tmp_path, header, message):
    path = write(tmp_path, header, "1,2,3")
    error = failure(path, skip_bad_lines=True)
    assert str(error).startswith(f"t.csv:1: {message}")
    assert (error.hint or "").startswith("the header of ")


def test_a_header_alone_holds_no_records(tmp_path):
    assert str(failure(write(tmp_path, "", VIDUR))) == "t.csv:2: no records, only a header"


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", "-07:30", "+0200"])
def test_azure_times_keep_all_their_digits(tmp_path, zone):
    clocks = ["09:00:00", "09:00:00.5", "09:00:00.1234567", "09:00:01.123456789", "09:00:00"]
    path = write(tmp_path, AZURE, *(f"2024-05-10 {clock}{zone},5,1" for clock in clocks))
    trace = read(path)
    assert (trace.reordered, trace.span_s) == (2, 1.123456789)
    assert [r.arrival_s for r in trace] == [0, 0, 0.1234567, 0.5, 1.123456789]


def test_azure_zones_and_midnight(tmp_path):
    path = write(tmp_path, AZURE, "2023-12-31T23:59:59.5Z,5,1", "2024-01-01T01:00:00.000+01:00,5,1")
    assert times(path) == [0, 0.5]


@pytest.mark.parametrize(
    "text",
    [
        *("", "09:00:00", "2023-11-16", "2023-13-01 09:00:00", "2023-02-29 09:00:00", "2023-11-16 24:00:00"),
        *("2023-11-16 09:60:00", "2023-11-16 09:00:60", "2023-11-16 09:00:00.1234567890", "1700125200"),
        *(
            "2023-11-16 09:00:00.",
            "2023-11-16 09:00:00 UTC",
            "0000-01-01 00:00:00",
            "2023-11-16 09:00:00+24:00",
        ),
        "２０23-11-16 09:00:00",
    ],
)
def test_azure_times_that_are_none(tmp_path, text):
    path = write(tmp_path, AZURE, "2023-11-16 09:00:00,5,1", f"{text},5,1")
    message = 't.csv:3: column "TIMESTAMP": a time like 2023-11-16 18:17:03.9799600 is expected, found '
    assert str(failure(path)) == message + (f'"{text}"' if text else "an empty cell")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("", "Z", "the time has a zone, the times before have none"),
        ("+00:00", "", "the time has no zone, the times before have one"),
    ],
)
def test_azure_times_with_and_without_zone_do_not_mix(tmp_path, first, second, message):
    path = write(tmp_path, AZURE, f"2023-11-16 09:00:00{first},5,1", f"2023-11-16 09:00:01{second},5,1")
    assert str(failure(path)) == f't.csv:3: column "TIMESTAMP": {message}'


def test_azure_with_images(tmp_path):
    header = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
    path = write(tmp_path, header, "2025-01-01T00:00:00.100Z,0,5,1", "2025-01-01T00:00:00.200Z,3,900,2")
    trace = read(path)
    assert [(r.arrival_s, r.input_length, r.output_length) for r in trace] == [(0, 5, 1), (0.1, 900, 2)]
    assert [(n.text, n.count, n.line) for n in trace.notes] == [
        ("has images (NumImages); its prompt counts as ContextTokens says", 1, 3)
    ]
    assert dict(trace.unknown_keys) == {}


def test_years_apart_are_refused(tmp_path):
    path = write(tmp_path, AZURE, "2023-11-16 09:00:00,5,1", "2025-11-16 09:00:00,5,1")
    assert "more than a year" in str(failure(path))


def test_burstgpt_failed_calls_models_and_sessions(tmp_path):
    header = BURST.replace("Timestamp,", "Timestamp,Session ID,Elapsed time,")
    rows = ["10.0,s1,4,GPT-4,90,4,94,API log", "11.5,,,GPT-4,8,0,8,API log", "12,s1,2,ChatGPT,3,2,7,API log"]
    trace = read(write(tmp_path, header, *rows))
    assert [(r.arrival_s, r.session) for r in trace] == [(0, "s1"), (1.5, None), (2, "s1")]
    assert [(n.text.partition(",")[0], n.count, n.line) for n in trace.notes] == [
        ("has no response tokens", 1, 3),
        ('"Total tokens" is not prompt + output', 1, 4),
        ("is for another model than the first row; models share no KV pool", 1, 4),
    ]


def test_burstgpt_rows_without_a_prompt(tmp_path):
    path = write(tmp_path, BURST, "1,GPT-4,90,4,94,API log", "2,GPT-4,0,0,0,API log")
    error = failure(path)
    assert (
        str(error) == 't.csv:3: column "Request tokens": the prompt has 0 tokens, there is nothing to serve'
    )
    assert error.hint == "`--skip-bad-lines` leaves such rows out, and counts them"
    trace = read(path, skip_bad_lines=True)
    assert (trace.records, trace.bad_lines, trace.notes) == (1, [3], [])


def test_vidur_whole_floats_and_total(tmp_path):
    trace = read(write(tmp_path, LENGTHS, "120.0,1e1,130,12", "1,2,4,0.5"))
    assert [(r.input_length, r.output_length, r.arrival_s) for r in trace] == [(120, 10, 0), (1, 2, 0)]
    assert not trace.format.has_times
    assert [(n.count, n.line) for n in trace.notes] == [(1, 3)]


def test_vidur_times_in_scientific_notation(tmp_path):
    assert times(write(tmp_path, VIDUR, "0.0,1,1", "1e-05,1,1", "4.314579,1,1")) == [0, 1e-05, 4.314579]


def test_splitwise_ids_are_kept_and_never_twice(tmp_path):
    path = write(tmp_path, SPLITWISE, "a,2,0,0.5,1,300,12", "b,1,0,0.5,3,300,12", "a,2,0,1,1,3,1")
    assert str(failure(path)) == 't.csv:4: column "request_id": the id "a" is that of line 2 too'
    trace = read(path, limit=2)
    assert [r.rid for r in trace] == ["a", "b"]
    assert [n.text.partition(";")[0] for n in trace.notes] == [
        "has a request type other than 2 (generation)",
        "has a batch size other than 1",
    ]


def test_a_block_size_is_not_ignored_in_silence(tmp_path):
    trace = read(write(tmp_path, VIDUR, "0,64,16"), block_size=16)
    assert [note.text for note in trace.notes] == [
        "`--block-size` changes nothing, the format has no block ids"
    ]
