"""Streams under an input file: bytes read ahead put back, and zstd unpacked."""

from __future__ import annotations

import io
from typing import BinaryIO

from kvcanary_cli.errors import InputError, MissingError

BUFFER_BYTES = 1 << 18
# zstd can pack 128 KiB of one byte into 4 bytes: small pieces keep an archive made to explode harmless
ZSTD_PIECE_BYTES = 1 << 12


class Joined(io.RawIOBase):
    """Bytes that were already read, followed by the rest of the stream."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._read = rest.read1 if hasattr(rest, "read1") else rest.read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._head[: len(buffer)] if self._head else self._read(len(buffer)) or b""
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)


class Unzstd(io.RawIOBase):
    """The unpacked bytes of a zstd file of one or more frames.

    Not zstandard's own stream reader: that one ends quietly when the file is cut inside a frame.
    """

    def __init__(self, name: str, packed: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingError(
                "is zstd, and the zstandard package is not installed",
                where=name,
                hint='`pip install "kvcanary[zstd]"`',
            ) from None
        self._name = name
        self._read = packed.read1 if hasattr(packed, "read1") else packed.read
        self._error = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new_frame()
        self._is_inside = True
        self._rest = b""
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read1(self, size: int) -> bytes:
        """At most `size` bytes; empty at the end."""
        while not self._out:
            data = self._rest or self._read(ZSTD_PIECE_BYTES)
            self._rest = b""
            if not data:
                if self._is_inside:
                    raise EOFError
                return b""
            if not self._is_inside:
                self._frame = self._new_frame()
                self._is_inside = True
            try:
                self._out = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise InputError(f"the zstd data is damaged ({error})", where=self._name) from None
            if self._frame.eof:
                self._rest = self._frame.unused_data
                self._is_inside = False
        data, self._out = self._out[:size], self._out[size:]
        return bytes(data)
