"""Where a recording goes: JSON lines, in parts where a size is given."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.trace.files import LineError

FLUSH_SECONDS = 1.0
"""What a crash of this process may lose at most."""


class EventSink:
    """Writes lines; the parts after `NAME.jsonl` are `NAME.1.jsonl`, `NAME.2.jsonl`.

    Attributes:
        paths: files written.

    Raises: UsageError for a file that is there already: nobody can record it again.
    """

    def __init__(
        self, path: str, *, max_bytes: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
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
            raise InputError(f"can't be written: {error.strerror or error}", where=str(path)) from None
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
        self._file.write(line)
        self._written += len(line)
        self.lines += 1
        self.tick()

    def tick(self) -> None:
        """Hand what waits to the system, once a second."""
        now = self._clock()
        if now - self._flushed >= FLUSH_SECONDS:
            self._file.flush()
            self._flushed = now

    def _finish(self) -> None:
        self._file.flush()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if not self._path.is_char_device():
                raise InputError(
                    f"can't be written: {error.strerror or error}", where=str(self._path)
                ) from None
        self._file.close()

    def close(self) -> None:
        """Write everything to the disk."""
        if not self._file.closed:
            self._finish()

    def __enter__(self) -> EventSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
