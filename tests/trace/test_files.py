"""Opening inputs: what is read, and what each kind of wrong file is told."""

from __future__ import annotations

import gzip
import io
import os
import sys
from pathlib import Path

import pytest
import zstandard

from kvcanary_cli.errors import InputError, MissingError
from kvcanary_cli.exits import Exit
from kvcanary_cli.trace import files
from kvcanary_cli.trace.files import LineError, TruncatedError, open_bytes

TEXT = b'{"a": 1}\r\n\n{"b": "\xc3\xa9"}'
LINES = [b'{"a": 1}\r\n', b"\n", b'{"b": "\xc3\xa9"}']


def packed(data: bytes) -> bytes:
    """gzip without the time of day: a parameter is part of its test's name, which must not change."""
    return gzip.compress(data, mtime=0)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4bb3\nsize 52283111\n"


def write(folder: Path, data: bytes, name: str = "input.jsonl") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def read_all(path: str) -> list[bytes]:
    _, reader = open_bytes(path)
    with reader:
        return list(reader)


def failure(path: str) -> InputError:
    """The error of reading all of a file."""
    with pytest.raises(InputError) as caught:
        read_all(path)
    assert caught.value.where is not None
    return caught.value


@pytest.mark.parametrize("name", ["input.jsonl", "input.gz", "input.zst"])
@pytest.mark.parametrize(
    "pack",
    [lambda data: data, gzip.compress, zstandard.compress],
    ids=["plain", "gzip", "zstd"],
)
def test_content_decides_how_a_file_is_read(tmp_path, name, pack):
    shown, reader = open_bytes(write(tmp_path, pack(TEXT), name))
    with reader:
        assert list(reader) == LINES
    assert shown == str(tmp_path / name)
    assert reader.line == 3


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_archives_of_several_parts_are_one_text(tmp_path, pack):
    _, reader = open_bytes(write(tmp_path, pack(b"one\ntw") + pack(b"") + pack(b"o\n")))
    with reader:
        assert list(reader) == [b"one\n", b"two\n"]


def test_lines_longer_than_all_buffers_stay_whole(tmp_path):
    line = b"x" * 700_000 + b"\n"
    for pack in (bytes, gzip.compress, zstandard.compress):
        _, reader = open_bytes(write(tmp_path, pack(line * 2)))
        with reader:
            assert list(reader) == [line, line]


def test_bom_is_dropped_and_counted(tmp_path):
    _, reader = open_bytes(write(tmp_path, files.UTF8_BOM + b"ab\ncd\n"))
    with reader:
        assert [(line, reader.offset) for line in reader] == [(b"ab\n", 3), (b"cd\n", 6)]


def test_read_gives_all_that_is_left(tmp_path):
    _, reader = open_bytes(write(tmp_path, gzip.compress(TEXT)))
    with reader:
        assert next(reader) == LINES[0]
        assert reader.read() == b"".join(LINES[1:])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_standard_input(monkeypatch, pack):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(TEXT))))
    name, reader = open_bytes("-")
    with reader:
        assert list(reader) == LINES
    assert name == "<stdin>"
    assert not sys.stdin.closed


def test_a_pipe_is_not_waited_for(monkeypatch):
    """A line that came through a pipe is given before the next one is written."""
    read_end, write_end = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read_end, "r"))
    os.write(write_end, b'{"ev":"header"}\n')
    _, reader = open_bytes("-")
    assert next(reader) == b'{"ev":"header"}\n'
    os.write(write_end, b"second\n")
    assert next(reader) == b"second\n"
    os.close(write_end)
    assert list(reader) == []


def test_closed_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert str(failure("-")) == "<stdin>: standard input is closed"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no records (the file is empty)"),
        (b" \n\t\r\n", "no records"),
        (packed(b""), "no records (the archive holds an empty file)"),
        (packed(b"\n"), "no records"),
        (POINTER, "is a Git LFS pointer, not the data (size of the data: 52,283,111 bytes)"),
        (POINTER[:60], "is a Git LFS pointer, not the data (size of the data: not stated)"),
        (b"\xff\xfe{\x00", "is UTF-16 text, UTF-8 is needed"),
        (b"\xfe\xff\x00{", "is UTF-16 text, UTF-8 is needed"),
        (b'{\x00"\x00', "is UTF-16 text, UTF-8 is needed"),
        (b"  <!DOCTYPE html><html>", "looks like a web page, not like data"),
        (b"<HTML>", "looks like a web page, not like data"),
        (b"\x80\x04\x95", "is a pickle; loading it would run code, so it is refused"),
        (
            b"PK\x03\x04rest",
            "is a zip archive (as of torch.save or npz); loading one can run code, so it is refused",
        ),
        (b' [{"a": 1}]', "is a JSON array, one object per line is expected"),
        (b"abc\x00def", "is binary: byte 0x00 at offset 3"),
        (files.UTF8_BOM + b"abc\x00def", "is binary: byte 0x00 at offset 6"),
        (packed(POINTER), "is a Git LFS pointer, not the data (size of the data: 52,283,111 bytes)"),
        (packed(packed(b"a")), "is compressed twice"),
        (packed(zstandard.compress(b"a")), "is compressed twice"),
        (packed(b"a") + b"junk", "the gzip data is damaged (Not a gzipped file (b'ju'))"),
        (zstandard.compress(b"a") + b"junk", "the zstd data is damaged (zstd decompressor error: "),
    ],
)
def test_refused_content(tmp_path, data, message):
    path = write(tmp_path, data)
    error = failure(path)
    assert str(error).startswith(f"{path}: {message}")
    assert error.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("data", "command"), [(b"[1]", "jq -c '.[]'"), (b"\xff\xfe{\x00", "iconv -f UTF-16 -t UTF-8")]
)
def test_hints_can_be_pasted(tmp_path, data, command, monkeypatch):
    path = write(tmp_path, data, "my file.json")
    assert failure(path).hint == f"`{command} '{path}'` converts it"
    # the command would not unpack the file, and has no name for standard input
    assert failure(write(tmp_path, gzip.compress(data))).hint == f"`{command}` converts it"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert failure("-").hint == f"`{command}` converts it"


@pytest.mark.parametrize("level", [1, 9])
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.99])
def test_a_truncated_archive_is_an_error_although_rows_were_read(tmp_path, level, kept):
    text = b"".join(b'{"line": %d, "hash": %d}\n' % (n, n * n * 7919 % 104729) for n in range(5000))
    for packed in (gzip.compress(text, level), zstandard.compress(text, level)):
        path = write(tmp_path, packed[: int(len(packed) * kept)])
        error = failure(path)
        assert str(error) == f"{path}: the compressed data ends too early, the file is truncated"
        assert not isinstance(error, LineError)


def test_a_truncated_archive_is_an_error_of_read_too(tmp_path):
    path = write(tmp_path, gzip.compress(b"".join(b"%d\n" % n for n in range(3000)))[:-4])
    _, reader = open_bytes(path)
    with reader, pytest.raises(InputError, match="truncated"):
        reader.read()


def test_a_changed_byte_in_gzip_is_an_error(tmp_path):
    packed = bytearray(gzip.compress(b"".join(b"%d\n" % (n * 7919) for n in range(3000))))
    packed[-6] ^= 1
    assert "the gzip data is damaged (CRC check failed" in str(failure(write(tmp_path, bytes(packed))))


def test_missing_file_is_named_as_typed():
    assert str(failure("no/such.jsonl")) == "no/such.jsonl: no such file"


def test_folder(tmp_path):
    assert str(failure(str(tmp_path))) == f"{tmp_path}: is a directory, a file is needed"


def test_no_permission(monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert str(failure("secret.jsonl")) == "secret.jsonl: no permission to read"


def test_a_path_that_no_system_has():
    assert str(failure("a\0b")) == r"a\x00b: can't be opened (embedded null byte)"
    assert "can't be opened (File name too long)" in str(failure("x" * 5000))


def test_a_read_error_is_reported(tmp_path, monkeypatch):
    class Broken(io.BytesIO):
        def read1(self, size=-1):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Broken(b"x")))
    assert str(failure("-")) == "<stdin>: can't be read (Input/output error)"


def test_bad_utf8_names_line_byte_and_offset_and_the_next_line_follows(tmp_path):
    path = write(tmp_path, b'{"a": "\xc3\xa9"}\n{"b": "\xff"}\n{"c": 1}\n')
    _, reader = open_bytes(path)
    with reader:
        next(reader)
        with pytest.raises(LineError) as caught:
            next(reader)
        assert str(caught.value) == f"{path}:2: byte 0xff at offset 19 is not UTF-8 text"
        assert list(reader) == [b'{"c": 1}\n']


def test_bad_utf8_is_an_error_of_read_too(tmp_path):
    path = write(tmp_path, b"ab\ncd\xe9\n")
    _, reader = open_bytes(path)
    with reader, pytest.raises(LineError, match="byte 0xe9 at offset 5 is not UTF-8 text"):
        reader.read()


def test_a_last_line_cut_inside_a_character_is_truncated(tmp_path):
    path = write(tmp_path, b'{"a": 1}\n{"b": "\xc3')
    _, reader = open_bytes(path)
    with reader:
        next(reader)
        with pytest.raises(TruncatedError, match="the last line is cut off inside a character"):
            next(reader)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1 << 20)
    path = write(tmp_path, b"{}\n" + b" " * ((1 << 20) + 1))
    assert str(failure(path)) == f"{path}:2: the line is longer than 1 MiB"


def test_zstd_without_the_package(tmp_path, monkeypatch):
    path = write(tmp_path, zstandard.compress(b"{}\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingError) as caught:
        open_bytes(path)
    assert str(caught.value) == f"{path}: is zstd, and the zstandard package is not installed"
    assert caught.value.hint == '`pip install "kvcanary[zstd]"`'
    assert caught.value.exit_code == Exit.ENVIRONMENT
