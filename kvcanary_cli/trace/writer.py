"""Write a trace; the same events always give the same bytes."""

from __future__ import annotations

import contextlib
import gzip
import os
import shlex
import sys
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from msgspec import Struct

from kvcanary_cli.errors import InputError, MissingError
from kvcanary_cli.trace.drafts import Draft
from kvcanary_cli.trace.events import Event, Header
from kvcanary_cli.trace.slots import compress_slots

# what a suffix says; None: nothing, so the trace is written plain
SUFFIXES = {".gz": "gz", ".zst": "zst"}
# 9 takes three times as long and saves 2 to 6 %, measured on recorded and made traces
GZIP_LEVEL = 6
# lines are written in pieces of this size: one call a line costs more than encoding it
PIECE_BYTES = 1 << 16


def _enc_hook(value: object) -> object:
    if isinstance(value, np.ndarray):
        if not len(value):
            raise ValueError(
                "an empty slot list can't be written; leave the event, or its optional list, out"
            )
        return compress_slots(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no encoding for {type(value)}")


_encode = msgspec.json.Encoder(enc_hook=_enc_hook).encode


def encode_event(event: Event) -> bytes:
    """One line without its line end: keys in the order of the struct, defaults left out, runs compressed."""
    return _encode(_with_own_defaults(event))


def _with_own_defaults(value: Struct) -> Struct:
    """`value` with the default itself in place of what only equals it: msgspec leaves out by identity."""
    changes = {}
    for name, default in _plain_defaults(type(value)):
        found = getattr(value, name)
        if found is not default and found == default:
            changes[name] = default
    if isinstance(value, Header):
        changes["pool"] = _with_own_defaults(value.pool)
        changes["groups"] = [_with_own_defaults(group) for group in value.groups]
        changes["sources"] = [_with_own_defaults(source) for source in value.sources]
    return msgspec.structs.replace(value, **changes) if changes else value


@cache
def _plain_defaults(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Fields whose default is a value other than None, with the default."""
    fields = msgspec.structs.fields(kind)
    return tuple((f.name, f.default) for f in fields if f.default not in (None, msgspec.NODEFAULT))


class TraceWriter:
    """Writes a header and then one event a line.

    A file is written under another name and takes its place with `close`; an error inside `with` leaves what was
    there before.

    Args:
        target: a path ("-" is standard output), or a binary file, which stays open.
        header: written at once.
        compress: "gz" or "zst"; None: what the suffix of the path says, else plain.

    Raises:
        InputError: the file can't be created or written.
        MissingError: zstd is asked for and the zstandard package is not installed.
    """

    def __init__(self, target: str | BinaryIO, header: Header, *, compress: str | None = None) -> None:
        self._name = target if isinstance(target, str) else "<output>"
        if compress is None and isinstance(target, str):
            compress = SUFFIXES.get(os.path.splitext(target)[1])
        # before the file is opened: a missing package must not leave an empty file behind
        pack = _packer(compress, self._name)
        self._draft: Draft | None = None
        if isinstance(target, str):
            self._file, self._draft = _open_target(target)
        else:
            self._file = target
        try:
            self._packed = pack(self._file) if pack is not None else None
        except OSError as error:
            raise _write_error(self._name, error) from None
        self._lines: list[bytes] = []
        self._num_waiting = 0
        self.num_lines = 0
        self.write(header)

    def write(self, event: Event) -> None:
        """Append one event; it reaches the file with `close` at the latest."""
        line = encode_event(event)
        self._lines.append(line)
        self._num_waiting += len(line) + 1
        self.num_lines += 1
        if self._num_waiting >= PIECE_BYTES:
            self._flush_lines()

    def close(self) -> None:
        """Finish the archive and close the file; a file that was passed in is flushed and stays open."""
        try:
            self._flush_lines()
            if self._packed is not None:
                self._packed.close()
            if self._draft is None:
                self._file.flush()
            elif not self._file.closed:
                self._draft.keep()
        except OSError as error:
            raise _write_error(self._name, error) from None
        finally:
            # nothing to drop once it is in its place
            if self._draft is not None:
                self._draft.drop()

    def _flush_lines(self) -> None:
        if not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        self._num_waiting = 0
        try:
            (self._packed or self._file).write(data)
        except OSError as error:
            raise _write_error(self._name, error) from None

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or self._draft is None or self._draft.is_in_place:
            self.close()
            return
        with contextlib.suppress(OSError):
            if self._packed is not None:
                self._packed.close()
        self._draft.drop()


def _packer(compress: str | None, name: str) -> Callable[[BinaryIO], BinaryIO] | None:
    """What turns the file into one that compresses; closing its result leaves the file open."""
    if compress is None:
        return None
    if compress == "gz":
        # no time and no name in the archive: the same events give the same bytes
        return lambda file: cast(
            BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=GZIP_LEVEL)
        )
    if compress != "zst":
        raise ValueError(f"compress is {compress!r}, None, gz or zst is expected")
    try:
        import zstandard
    except ImportError:
        raise MissingError(
            "zstd output needs the zstandard package, which is not installed",
            where=name,
            hint='`pip install "kvcanary[zstd]"`',
        ) from None
    return lambda file: cast(BinaryIO, zstandard.ZstdCompressor().stream_writer(file, closefd=False))


def _open_target(path: str) -> tuple[BinaryIO, Draft | None]:
    if path == "-":
        if sys.stdout is None:
            raise InputError("standard output is closed", where="<stdout>")
        return sys.stdout.buffer, None
    try:
        draft = Draft(path)
        return draft.file, draft
    except FileNotFoundError as error:
        folder = os.path.dirname(path)
        if not folder or os.path.isdir(folder):
            raise _write_error(path, error) from None
        raise InputError(
            f"the folder {folder} does not exist", where=path, hint=f"`mkdir -p {shlex.quote(folder)}`"
        ) from None
    except IsADirectoryError:
        raise InputError("is a directory, a file is needed", where=path) from None
    except PermissionError:
        raise InputError("no permission to write", where=path) from None
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from None


def _write_error(name: str, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"can't be written ({reason})", where=name)
