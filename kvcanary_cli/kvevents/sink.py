"""Where a recording goes: JSON lines, in parts where a size is given."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.trace.files import LineError

_PART = re.compile(r"(.*?)(?:\.(\d+))?((?:\.[A-Za-z]\w*)*)", re.DOTALL)

FLUSH_SECONDS = 1.0
"""What a crash of this process may lose at most."""


class EventSink:
    """Writes lines; the parts after `NAME.jsonl` are `NAME.1.jsonl`, `NAME.2.jsonl`.

    Attributes:
        paths: files written.

    Raises: UsageError for a file that is there already: nobody can record it again; for "-" too. InputError where
    the disk takes no more.
    """

    def __init__(
        self, path: str, *, max_bytes: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if path == "-":
            raise UsageError(
                "a recording goes into a file, `--output -` is none", hint="`--output events.jsonl`"
            )
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self.paths: list[str] = []
        self.lines = 0
        self._file = self._open(self._path)
        self._written = 0
        self._flushed = clock()

    def _open(self, path: Path) -> BinaryIO:
        try:
            file = open(path, "ab" if path.is_char_device() else "xb")  # noqa: SIM115 - closed by close
        except FileExistsError:
            raise UsageError(
                f"{path} is there already, and a recording is not written over",
                hint="`--output` takes a file that is not there",
            ) from None
        except OSError as error:
            raise _unwritten(path, error) from None
        self.paths.append(str(path))
        return file

    def write(self, value: dict[str, Any]) -> None:
        """One line; a new part begins where the size is reached.

        Raises: LineError for a value that JSON has no form for.
        """
        try:
            line = self._encode(value) + b"\n"
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LineError(f"can't be written as JSON ({error})") from None
        if self._max_bytes is not None and self._written and self._written + len(line) > self._max_bytes:
            self._finish()
            part = self._path.with_name(f"{self._path.stem}.{len(self.paths)}{self._path.suffix}")
            self._file, self._written = self._open(part), 0
        with self._named():
            self._file.write(line)
        self._written += len(line)
        self.lines += 1
        self.tick()

    def tick(self) -> None:
        """Hand what waits to the system, once a second."""
        now = self._clock()
        if now - self._flushed >= FLUSH_SECONDS:
            with self._named():
                self._file.flush()
            self._flushed = now

    def _finish(self) -> None:
        with self._named():
            self._file.flush()
            if not self._path.is_char_device():
                os.fsync(self._file.fileno())
            self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of the disk become messages that name the part."""
        try:
            yield
        except OSError as error:
            raise _unwritten(self.paths[-1], error) from None

    def close(self) -> None:
        """Write everything to the disk; a file into which nothing came is taken away, so that its name is free."""
        if self._file.closed:
            return
        self._finish()
        if not self.lines and self._path.is_file():
            self._path.unlink()
            self.paths.clear()

    def __enter__(self) -> EventSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def in_order(paths: Sequence[str]) -> list[str]:
    """Files in the order of their numbers if their names are those of one recording's parts, else as they are given.

    A shell lists `events.1.jsonl`, `events.10.jsonl`, `events.2.jsonl`, `events.jsonl`.
    """
    found = [_part_of(path) for path in paths]
    if len(set(found)) < len(found) or len({whole for whole, _ in found}) > 1:
        return list(paths)
    return [path for _, path in sorted(zip(found, paths, strict=True))]


def _part_of(path: str) -> tuple[str, int]:
    """The first file of the recording that a file may be a part of, and the part's number."""
    folder, name = os.path.split(path)
    match = _PART.fullmatch(name)
    if match is None or match[2] is None:
        return path, 0
    return os.path.join(folder, match[1] + match[3]), int(match[2][:18])


def _unwritten(path: str | Path, error: OSError) -> InputError:
    return InputError(f"can't be written: {error.strerror or error}", where=str(path))
