"""Reading a trace: order, places, bad and truncated lines, compression, memory."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import sys
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from kvcanary_cli.errors import InputError, MissingError
from kvcanary_cli.exits import Exit
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import SKIP_HINT, TraceReader, open_trace
from tests.trace.samples import HEADER, read_trace, trace_error, write_trace

BIND = {"ev": "bind", "row": 1, "rid": "A"}
BAD = {"ev": "bind", "row": 9, "rid": "A"}
SWEEP = {"ev": "sweep"}


def numbers(path: str) -> list[int]:
    return [number for number, _ in read_trace(path)]


def test_events_come_with_the_number_of_their_line(tmp_path):
    path = write_trace(tmp_path, "", BIND, '{"ev":"note","a":1}', " \t", SWEEP)
    with open_trace(path) as reader:
        assert isinstance(reader.header, ev.Header)
        assert reader.header.pool.slots == 64
        assert reader.path == path
        events = list(reader)
    assert [(number, type(event)) for number, event in events] == [(3, ev.Bind), (6, ev.Sweep)]
    assert (reader.bad_lines, reader.truncated, reader.first_bad) == ([], None, None)


def test_notes_and_blank_lines_may_stand_before_the_header(tmp_path):
    path = Path(write_trace(tmp_path, BIND))
    path.write_text('\n{"ev":"note","text":"hello"}\n' + path.read_text())
    assert numbers(str(path)) == [4]


def test_both_line_ends_and_a_bom(tmp_path):
    path = Path(write_trace(tmp_path, BIND, SWEEP))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert numbers(str(path)) == [2, 3]


def test_a_whole_last_line_needs_no_line_end(tmp_path):
    path = Path(write_trace(tmp_path, BIND, SWEEP))
    path.write_bytes(path.read_bytes().rstrip())
    assert numbers(str(path)) == [2, 3]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_compressed_traces_whatever_they_are_called(tmp_path, pack):
    path = Path(write_trace(tmp_path, BIND, BAD))
    path.write_bytes(pack(path.read_bytes()))
    assert str(trace_error(str(path))).startswith("trace.jsonl:3: $.row: row 9 is outside the page table")


def test_standard_input(monkeypatch, tmp_path):
    data = Path(write_trace(tmp_path, BIND, BAD)).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with open_trace("-") as reader, pytest.raises(InputError) as caught:
        list(reader)
    assert str(caught.value) == "<stdin>:3: $.row: row 9 is outside the page table (0 to 4)"


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (BIND, 'trace.jsonl:1: $.ev: the first event is "bind", the header is expected'),
        ({"ev": "sweep"}, 'trace.jsonl:1: $.ev: the first event is "sweep", the header is expected'),
        ("hello", "trace.jsonl:1: not JSON (expecting value at column 1)"),
        ({"input_length": 1}, 'trace.jsonl:1: $: key "ev" is missing, every event names its kind'),
        ({"ev": "note"}, 'trace.jsonl:2: $.ev: the first event is "bind", the header is expected'),
    ],
)
@pytest.mark.parametrize("skip", [False, True])
def test_without_header_nothing_is_read_even_when_bad_lines_are_skipped(tmp_path, first, message, skip):
    path = write_trace(tmp_path, BIND, HEADER, head=first)
    with pytest.raises(InputError) as caught:
        open_trace(path, skip_bad_lines=skip)
    assert str(caught.value).replace(path, "trace.jsonl") == message
    assert caught.value.hint != SKIP_HINT


def test_notes_only(tmp_path):
    error = trace_error(write_trace(tmp_path, head={"ev": "note"}))
    assert str(error) == "trace.jsonl: no header, the file has notes only"


def test_an_empty_file(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n\n")
    assert str(trace_error(str(path))) == "trace.jsonl: no records"


def test_a_cut_header(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json.dumps(HEADER).encode()[:60])
    assert str(trace_error(str(path))).startswith("trace.jsonl:1: the last line is truncated after 60 bytes")


def test_a_bad_line_stops_the_run(tmp_path):
    path = write_trace(tmp_path, BIND, BAD, SWEEP)
    with open_trace(path) as reader:
        events = iter(reader)
        assert next(events)[0] == 2
        with pytest.raises(InputError) as caught:
            next(events)
    error = caught.value
    assert (error.where, error.path) == (f"{path}:3", "$.row")
    assert error.exit_code == Exit.USAGE
    assert error.hint == SKIP_HINT


def test_an_error_keeps_its_own_hint(tmp_path):
    hint = trace_error(write_trace(tmp_path, {"ev": "sweeep"})).hint
    assert hint is not None
    assert hint.startswith("events are ")


def test_bad_lines_are_skipped_and_counted(tmp_path):
    bad_utf8 = "@"
    path = Path(write_trace(tmp_path, BAD, BIND, "{", bad_utf8, SWEEP, HEADER, {"ev": "x"}, SWEEP))
    path.write_bytes(path.read_bytes().replace(b"@", b"\xff"))
    with open_trace(str(path), skip_bad_lines=True) as reader:
        assert [number for number, _ in reader] == [3, 6, 9]
    assert reader.bad_lines == [2, 4, 5, 7, 8]
    assert str(reader.first_bad) == f"{path}:2: $.row: row 9 is outside the page table (0 to 4)"
    assert reader.truncated is None


CUT = b'{"ev":"bind","row":1,"ri'


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (CUT, "the last line is truncated after 24 bytes"),
        (b"{", "the last line is truncated after 1 bytes"),
        (b'{"ev":"bind","rid":"\xc3', "the last line is cut off inside a character"),
    ],
)
def test_a_truncated_last_line(tmp_path, tail, message):
    path = Path(write_trace(tmp_path, BIND))
    path.write_bytes(path.read_bytes() + tail)
    assert str(trace_error(str(path))).startswith(f"trace.jsonl:3: {message}")
    with open_trace(str(path), skip_bad_lines=True) as reader:
        assert [number for number, _ in reader] == [2]
    assert (reader.truncated, reader.bad_lines) == (3, [3])


def test_a_bad_last_line_that_is_whole_json_is_not_truncated(tmp_path):
    path = Path(write_trace(tmp_path, BIND, BAD))
    path.write_bytes(path.read_bytes().rstrip())
    with open_trace(str(path), skip_bad_lines=True) as reader:
        assert [number for number, _ in reader] == [2]
    assert (reader.truncated, reader.bad_lines) == (None, [3])


def test_a_broken_line_with_line_end_is_not_truncated(tmp_path):
    error = trace_error(write_trace(tmp_path, CUT.decode(), SWEEP))
    assert str(error) == "trace.jsonl:2: not JSON (unterminated string at column 22)"


def test_a_truncated_archive_is_an_error_even_when_bad_lines_are_skipped(tmp_path):
    path = Path(write_trace(tmp_path, *[BIND | {"rid": f"r{n * n}"} for n in range(3000)]))
    path.write_bytes(gzip.compress(path.read_bytes())[:-500])
    with open_trace(str(path), skip_bad_lines=True) as reader, pytest.raises(InputError) as caught:
        list(reader)
    assert str(caught.value) == f"{path}: the compressed data ends too early, the file is truncated"


def test_iteration_goes_on_where_it_stopped(tmp_path):
    with open_trace(write_trace(tmp_path, BIND, SWEEP, SWEEP)) as reader:
        assert [number for number, _ in itertools.islice(reader, 1)] == [2]
        assert [number for number, _ in reader] == [3, 4]
        assert list(reader) == []


def test_zstd_without_the_package(tmp_path, monkeypatch):
    path = Path(write_trace(tmp_path, BIND))
    path.write_bytes(zstandard.compress(path.read_bytes()))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingError) as caught:
        open_trace(str(path))
    assert caught.value.hint == '`pip install "kvcanary[zstd]"`'


def test_files_are_closed(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr("kvcanary_cli.trace.files.ByteReader.close", lambda self: closed.append(self.name))
    path = write_trace(tmp_path, BIND)
    with open_trace(path) as reader:
        assert isinstance(reader, TraceReader)
    with pytest.raises(InputError):
        open_trace(write_trace(tmp_path, head="no header"))
    assert closed == [path, path]


def test_memory_does_not_grow_with_the_file(tmp_path):
    """10,000 lines of 1 kB, read one by one, never take more than a piece of the file."""
    line = json.dumps({"ev": "truth", "rid": "A", "at": 0, "tokens": list(range(10000, 10160))})
    path = write_trace(tmp_path, *[line] * 10_000)
    size = Path(path).stat().st_size
    tracemalloc.start()
    try:
        with open_trace(path) as reader:
            assert sum(1 for _ in reader) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 4
