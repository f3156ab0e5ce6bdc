"""Open an input for reading: plain, gzip or zstd by content, or standard input.

Everything that can be wrong with a *file*, as opposed to a row in it, is found here, so that each
reader of a format only has to understand its rows.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import shlex
import stat
import sys
import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import BinaryIO, cast

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.archives import BUFFER_BYTES, Joined, Unzstd

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
UTF8_BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
LFS_START = b"version https://git-lfs"
HTML_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<body")
# a pickle of protocol 2 to 5 starts with PROTO and its number
PICKLE_STARTS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
# a batch of KV events as an array: its time and its events
EVENT_BATCH = re.compile(rb"\[\s*(?:-?\d[\d.eE+-]*|null)\s*,\s*\[")
# enough for every mark above and for a whole Git LFS pointer, and less than a pipe gives at once
HEAD_BYTES = 1024
# one line of a whole-context prefill takes less than 10 MiB; a longer line is not line data
MAX_LINE_BYTES = 1 << 28


class LineError(InputError):
    """One line can't be used; the lines after it can still be read."""


class TruncatedError(LineError):
    """The last line has no line end and stops inside a record: whoever wrote the file was cut off."""


class ByteReader:
    """The lines of one input, as bytes with their line ends.

    `line` is the number of the line given last (1-based), `offset` where it began in the (unpacked) data.
    Iterating raises `LineError` for a line that is not UTF-8 (the next call goes on with the line
    after it), and `InputError` for what ends the input: a truncated archive, a read error, or nothing
    but blank lines.
    """

    def __init__(self, name: str, stream: BinaryIO, *, owned: BinaryIO | None, start: int = 0) -> None:
        self.name = name
        self.line = 0
        self.offset = start
        self._next_offset = start
        self._stream = stream
        self._owned = owned
        self._has_records = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            data = self._stream.readline(MAX_LINE_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise _read_error(self.name, error) from None
        if not data:
            if not self._has_records:
                raise InputError("no records", where=self.name)
            raise StopIteration
        self.line += 1
        self.offset = self._next_offset
        self._next_offset += len(data)
        if len(data) > MAX_LINE_BYTES:
            limit = f"{MAX_LINE_BYTES >> 20} MiB"
            raise InputError(f"the line is longer than {limit}", where=f"{self.name}:{self.line}")
        if not self._has_records and data.strip():
            self._has_records = True
        if not data.isascii():
            _check_text(data, where=f"{self.name}:{self.line}", start=self.offset)
        return data

    def read(self) -> bytes:
        """All that is left, for formats that are one JSON object; raises `InputError` as iteration does."""
        try:
            data = self._stream.read()
        except (EOFError, OSError, zlib.error) as error:
            raise _read_error(self.name, error) from None
        if not self._has_records and not data.strip():
            raise InputError("no records", where=self.name)
        _check_text(data, where=self.name, start=self._next_offset)
        self._next_offset += len(data)
        return data

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._owned is not None:
            self._stream.close()
            self._owned.close()

    def __enter__(self) -> ByteReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_bytes(path: str) -> tuple[str, ByteReader]:
    """Open `path` ("-" is standard input) and look at its first bytes.

    Returns the name to use in messages and the reader. gzip and zstd are unpacked whatever the file is
    called, a UTF-8 byte order mark is dropped.

    Raises:
        InputError: the path can't be opened, or its content is no text with one record a line.
        MissingError: the content is zstd and the zstandard package is not installed.
    """
    name, raw, owned = _open_raw(path)
    try:
        return name, _look_inside(name, raw, owned)
    except BaseException:
        if owned is not None:
            owned.close()
        raise


def reads_once(path: str) -> bool:
    """Whether reading from the path takes away what is read."""
    if path == "-":
        return True
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _open_raw(path: str) -> tuple[str, BinaryIO, BinaryIO | None]:
    """Name, stream, and the stream again if closing it is our business."""
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed", where="<stdin>")
        return "<stdin>", sys.stdin.buffer, None
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by ByteReader.close
    except FileNotFoundError:
        raise InputError("no such file", where=path) from None
    except IsADirectoryError:
        raise InputError("is a directory, a file is needed", where=path) from None
    except PermissionError:
        raise InputError("no permission to read", where=path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"can't be opened ({_reason(error)})", where=repr(path)[1:-1]) from None
    return path, file, file


def _look_inside(name: str, raw: BinaryIO, owned: BinaryIO | None) -> ByteReader:
    head = _read_head(name, raw)
    if not head:
        raise InputError("no records (the file is empty)", where=name)
    stream = Joined(head, raw)
    operand = f" {shlex.quote(name)}" if owned is not None else ""
    if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        packed = _buffered(stream)
        operand = ""
        unpacked: BinaryIO
        if head.startswith(GZIP_MAGIC):
            unpacked = cast(BinaryIO, gzip.GzipFile(fileobj=packed, mode="rb"))
        else:
            unpacked = cast(BinaryIO, Unzstd(name, packed))
        head = _read_head(name, unpacked)
        if not head:
            raise InputError("no records (the archive holds an empty file)", where=name)
        if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            raise InputError("is compressed twice", where=name, hint="unpack one layer first")
        stream = Joined(head, unpacked)
    buffered = _buffered(stream)
    start = 0
    if head.startswith(UTF8_BOM):
        start = len(buffered.read(len(UTF8_BOM)))
        head = head[start:]
    _refuse(name, head, start, operand)
    return ByteReader(name, buffered, owned=owned, start=start)


def _buffered(stream: io.RawIOBase) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(cast(io.FileIO, stream), BUFFER_BYTES))


def _refuse(name: str, head: bytes, start: int, operand: str) -> None:
    """Raise for content that holds no records, whatever the format.

    `start` is the offset of `head`; `operand` names the file in a command, empty if the command has to read a pipe.
    """
    if head.startswith(LFS_START):
        found = re.search(rb"^size (\d+)", head, re.MULTILINE)
        size = f"{int(found[1]):,} bytes" if found else "not stated"
        raise InputError(
            f"is a Git LFS pointer, not the data (size of the data: {size})",
            where=name,
            hint="`git lfs pull` fetches the data",
        )
    if head.startswith(UTF16_BOMS) or (len(head) > 1 and (head[0] == 0) != (head[1] == 0)):
        raise InputError(
            "is UTF-16 text, UTF-8 is needed",
            where=name,
            hint=f"`iconv -f UTF-16 -t UTF-8{operand}` converts it",
        )
    if head.startswith(PICKLE_STARTS):
        raise InputError("is a pickle; loading it would run code, so it is refused", where=name)
    if head.startswith(ZIP_STARTS):
        raise InputError(
            "is a zip archive (as of torch.save or npz); loading one can run code, so it is refused",
            where=name,
        )
    begin = head.lstrip()
    if begin[:9].lower().startswith(HTML_STARTS):
        raise InputError("looks like a web page, not like data", where=name)
    if begin.startswith(b"[") and not EVENT_BATCH.match(begin):
        raise InputError(
            "is a JSON array, one object per line is expected",
            where=name,
            hint=f"`jq -c '.[]'{operand}` converts it",
        )
    if b"\0" in head:
        raise InputError(f"is binary: byte 0x00 at offset {start + head.index(0)}", where=name)


def _check_text(data: bytes, *, where: str, start: int) -> None:
    """Raise `LineError` naming the first byte that is not UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end == len(data) and error.reason == "unexpected end of data":
            raise TruncatedError("the last line is cut off inside a character", where=where) from None
        byte, offset = data[error.start], start + error.start
        raise LineError(f"byte 0x{byte:02x} at offset {offset} is not UTF-8 text", where=where) from None


def _read_head(name: str, stream: BinaryIO) -> bytes:
    """The first bytes, as few reads as will tell what the content is: a pipe may not give more yet."""
    head = b""
    try:
        while len(head) < HEAD_BYTES:
            more = stream.read1(HEAD_BYTES) if hasattr(stream, "read1") else stream.read(HEAD_BYTES)
            head += more or b""
            if not more or (len(head) >= 16 and b"\n" in head and not head.startswith(LFS_START)):
                break
    except (EOFError, OSError, zlib.error) as error:
        raise _read_error(name, error) from None
    return head


def _read_error(name: str, error: Exception) -> InputError:
    if isinstance(error, EOFError):
        return InputError(
            "the compressed data ends too early, the file is truncated",
            where=name,
            hint="`gzip -dc` or `zstd -dc` gives the part that can be read",
        )
    if isinstance(error, (gzip.BadGzipFile, zlib.error)):
        return InputError(f"the gzip data is damaged ({error})", where=name)
    return InputError(f"can't be read ({_reason(error)})", where=name)


def _reason(error: Exception) -> str:
    """The system's words for an error, without the number and the path that Python adds."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno) if error.errno in errno.errorcode else str(error.errno)
    return str(error)
