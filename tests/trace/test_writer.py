"""Writing traces: exact lines, the same bytes every time, and output that can't be written."""

from __future__ import annotations

import gzip
import io
import os
import sys

import numpy as np
import pytest
import zstandard

from kvcanary_cli.errors import InputError, MissingError
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import TraceWriter, encode_event
from tests.trace.samples import array, header, read_trace

EVENTS = [ev.Bind(row=1, rid="A"), ev.Alloc(to="A", slots=array(1, 2, 3, 4, 9)), ev.Sweep(t=0.5)]
TEXT = (
    b'{"ev":"header","format":"kvcanary-trace","version":1,"pool":{"slots":64,"rows":5,"row_width":32},'
    b'"groups":[{"kind":"full"}]}\n'
    b'{"ev":"bind","row":1,"rid":"A"}\n'
    b'{"ev":"alloc","to":"A","slots":[[1,4],9]}\n'
    b'{"ev":"sweep","t":0.5}\n'
)


def write(target, events=EVENTS, **options):
    with TraceWriter(target, header(), **options) as writer:
        for event in events:
            writer.write(event)
    return writer


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            ev.Forward(rows=[1, 2], prefix=[3, 4], slots=array(5, -1)),
            b'{"ev":"forward","rows":[1,2],"prefix":[3,4],"slots":[5,-1]}',
        ),
        (
            ev.Forward(
                rows=[],
                prefix=[],
                mode="idle",
                width=0,
                chain_positions=False,
                byte_salt=-3,
                lens=[],
                tokens=[],
            ),
            b'{"ev":"forward","mode":"idle","rows":[],"prefix":[],"lens":[],"tokens":[],'
            b'"chain_positions":false,"width":0,"byte_salt":-3}',
        ),
        (ev.Gap(), b'{"ev":"gap"}'),
        (
            ev.Kv(op="copy", slots=array(1), from_=array(2), group="full"),
            b'{"ev":"kv","op":"copy","slots":[1],"from":[2]}',
        ),
        (
            ev.Xfer(id="t", op="done", at=0, stamps=True, tokens=[1]),
            b'{"ev":"xfer","id":"t","op":"done","tokens":[1]}',
        ),
        (
            ev.Publish(at=0, slots=array(7), key={"b": 1, "a": None}),
            b'{"ev":"publish","at":0,"slots":[7],"key":{"b":1,"a":null}}',
        ),
        (ev.Note(text="hé"), '{"ev":"note","text":"hé"}'.encode()),
        (
            header(sources=[ev.Source(name="k", bytes_per_slot=64, hashed_bytes=0)], ring_capacity=1024),
            TEXT.split(b"\n")[0][:-1] + b',"sources":[{"name":"k","bytes_per_slot":64,"hashed_bytes":0}]}',
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bytes) else "",
)
def test_defaults_are_left_out(event, line):
    assert encode_event(event) == line


def test_numpy_numbers_in_lists_are_numbers():
    event = ev.Forward(rows=list(array(1, 2)), prefix=[np.int32(0), 7], width=np.int64(2), t=np.float32(0.5))
    assert encode_event(event) == b'{"ev":"forward","t":0.5,"rows":[1,2],"prefix":[0,7],"width":2}'


def test_a_default_is_left_out_however_it_was_computed():
    """The same values give the same bytes, whatever objects hold them."""
    full = "".join(["fu", "ll"])
    event = ev.Forward(rows=[1], prefix=[2], byte_salt=np.int64(0), chain_positions=np.bool_(True))
    assert encode_event(event) == b'{"ev":"forward","rows":[1],"prefix":[2]}'
    assert encode_event(ev.Evict(slots=array(1), group=full)) == b'{"ev":"evict","slots":[1]}'
    head = header(
        pool=ev.Pool(slots=64, page_size=np.int64(1), rows=5, row_width=32),
        groups=[ev.Group(kind="full", window=np.int64(0))],
        sources=[ev.Source(name="k", bytes_per_slot=64, hashed_bytes=0, group=full)],
        ring_capacity=int("1024"),
    )
    line = b',"sources":[{"name":"k","bytes_per_slot":64,"hashed_bytes":0}]}'
    assert encode_event(head) == TEXT.split(b"\n")[0][:-1] + line


def test_an_empty_slot_list_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="an empty slot list"):
        encode_event(ev.Free(by="A", slots=array()))


def test_other_types_are_a_bug_of_the_caller():
    with pytest.raises(TypeError, match="no encoding for"):
        encode_event(ev.Note(text=object()))


def test_plain_file(tmp_path):
    path = tmp_path / "out.jsonl"
    assert write(str(path)).num_lines == 4
    assert path.read_bytes() == TEXT


@pytest.mark.parametrize(
    ("name", "options", "unpack"),
    [
        ("a.jsonl.gz", {}, gzip.decompress),
        ("a.jsonl", {"compress": "gz"}, gzip.decompress),
        ("a.jsonl.zst", {}, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
        (
            "a.jsonl",
            {"compress": "zst"},
            lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
        ),
        ("a.zip", {}, bytes),
    ],
)
def test_compression_by_name_or_by_wish(tmp_path, name, options, unpack):
    path = tmp_path / name
    write(str(path), **options)
    assert unpack(path.read_bytes()) == TEXT


@pytest.mark.parametrize("compress", ["gz", "zst"])
def test_the_same_events_give_the_same_archive(tmp_path, compress, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    write(str(first), EVENTS * 500, compress=compress)
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    write(str(second), EVENTS * 500, compress=compress)
    assert first.read_bytes() == second.read_bytes()


def test_gzip_holds_no_time_and_no_name(tmp_path):
    path = tmp_path / "out.gz"
    write(str(path))
    flags, mtime = path.read_bytes()[3], path.read_bytes()[4:8]
    assert (flags, mtime) == (0, b"\0\0\0\0")


def test_more_lines_than_one_piece(tmp_path):
    path = tmp_path / "out.jsonl.gz"
    events = [ev.Truth(rid="A", at=n, tokens=[n] * 50) for n in range(2000)]
    write(str(path), events)
    got = [event for _, event in read_trace(str(path))]
    assert [event.at for event in got] == list(range(2000))


@pytest.mark.parametrize("compress", [None, "gz", "zst"])
def test_a_file_that_was_passed_in_stays_open(compress):
    file = io.BytesIO()
    write(file, compress=compress)
    assert not file.closed
    if compress is None:
        assert file.getvalue() == TEXT


def test_standard_output(monkeypatch):
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file))
    write("-")
    assert file.getvalue() == TEXT
    assert not file.closed


@pytest.mark.parametrize("compress", ["gz", "zst"])
def test_closing_twice_writes_once(tmp_path, compress):
    path = tmp_path / "out.jsonl"
    writer = write(str(path), compress=compress)
    size = path.stat().st_size
    writer.close()
    assert path.stat().st_size == size


def failure(path: str) -> InputError:
    with pytest.raises(InputError) as caught:
        TraceWriter(path, header())
    return caught.value


def test_missing_folder(tmp_path):
    path = str(tmp_path / "new folder" / "out.jsonl")
    error = failure(path)
    assert str(error) == f"{path}: the folder {tmp_path / 'new folder'} does not exist"
    assert error.hint == f"`mkdir -p '{tmp_path / 'new folder'}'`"


def test_a_folder_as_target(tmp_path):
    assert str(failure(str(tmp_path))) == f"{tmp_path}: is a directory, a file is needed"


def test_no_permission(monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert str(failure("secret.jsonl")) == "secret.jsonl: no permission to write"


def test_a_path_that_no_system_has():
    assert "can't be written (File name too long)" in str(failure("x" * 5000))


def test_closed_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert str(failure("-")) == "<stdout>: standard output is closed"


def test_a_place_where_no_file_can_be_made():
    assert str(failure("/proc/x.jsonl")).startswith("/proc/x.jsonl: can't be written (")


@pytest.mark.parametrize("compress", [None, "gz", "zst"])
@pytest.mark.parametrize("before", [None, b"precious"])
def test_a_run_that_fails_leaves_what_was_there(tmp_path, compress, before):
    path = tmp_path / "out.jsonl"
    if before is not None:
        path.write_bytes(before)

    def events():
        yield from EVENTS * 5000
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(str(path), events(), compress=compress)
    assert (path.read_bytes() if path.exists() else None) == before
    assert list(tmp_path.iterdir()) == ([path] if before is not None else [])


def test_a_disk_that_is_full_at_the_end_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"precious")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InputError, match="No space left on device"):
        write(str(path))
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"precious", [path])


def test_a_file_that_is_replaced_keeps_its_permissions_and_the_links_to_it(tmp_path):
    path, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write(str(link))
    assert link.is_symlink()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (TEXT, 0o640)


def test_a_pipe_is_written_in_place(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(str(path))
        assert os.read(reader, 1 << 16) == TEXT
    finally:
        os.close(reader)


def test_a_stream_by_its_name_in_the_file_system_is_not_replaced(tmp_path):
    path = tmp_path / "out.jsonl"
    with open(path, "wb") as file:
        write(f"/dev/fd/{file.fileno()}")
        assert os.fstat(file.fileno()).st_ino == path.stat().st_ino
    assert path.read_bytes() == TEXT


class Full(io.BytesIO):
    def write(self, data):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("compress", [None, "gz"])
def test_a_full_disk_is_reported(compress):
    with pytest.raises(InputError, match=r"<output>: can't be written \(No space left on device\)"):
        write(Full(), compress=compress)


def test_zstd_without_the_package_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "out.zst"
    with pytest.raises(MissingError) as caught:
        TraceWriter(str(path), header())
    assert caught.value.hint == '`pip install "kvcanary[zstd]"`'
    assert not path.exists()


def test_an_unknown_compression_is_a_bug_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match="compress is 'xz'"):
        TraceWriter(str(tmp_path / "a"), header(), compress="xz")
