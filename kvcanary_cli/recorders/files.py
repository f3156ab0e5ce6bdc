"""The files of one recording: written in pieces, split by size, on the disk when the recorder stops."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from kvcanary_cli.trace.events import Header
from kvcanary_cli.trace.writer import PIECE_BYTES, encode_event

SYNC_SECONDS = 5.0


class TraceFiles:
    """Appends encoded lines to the current file, and starts the next part when one is full.

    Args:
        folder: made if it is not there.
        stem: name of the files without part number and suffix.
        make_header: header of part N, counted from 1.
        max_bytes: size from which on the next part is begun; 0: never.
    """

    def __init__(
        self, folder: Path, stem: str, make_header: Callable[[int], Header], *, max_bytes: int = 0
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._stem = stem
        self._make_header = make_header
        self._max_bytes = max_bytes
        self._waiting: list[bytes] = []
        self._num_waiting = 0
        self._num_bytes = 0
        self._is_dirty = False
        self._last_sync = time.monotonic()
        self.part = 0
        self.paths: list[Path] = []
        self._open_next()

    def write(self, line: bytes) -> None:
        """Append lines without the last line end."""
        self._waiting.append(line)
        self._num_waiting += len(line) + 1
        if self._num_waiting >= PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Give everything to the operating system, and every few seconds to the disk."""
        if self._waiting:
            data = b"\n".join(self._waiting) + b"\n"
            self._waiting.clear()
            self._num_waiting = 0
            self._num_bytes += len(data)
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._is_dirty = True
        if self._is_dirty and time.monotonic() - self._last_sync >= SYNC_SECONDS:
            self._sync()

    def is_full(self) -> bool:
        """Whether the next part is due."""
        return bool(self._max_bytes) and self._num_bytes + self._num_waiting >= self._max_bytes

    def next_part(self) -> None:
        """Close this part and begin the next one."""
        self.close()
        self._open_next()

    def close(self) -> None:
        """Write what is left and wait until the disk has it."""
        if self._file.closed:
            return
        self.flush()
        self._sync()
        self._file.close()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._is_dirty = False
        self._last_sync = time.monotonic()

    def _open_next(self) -> None:
        self.part += 1
        suffix = "" if self.part == 1 else f".part{self.part}"
        path = self._folder / f"{self._stem}{suffix}.jsonl"
        # unbuffered: lines are joined here, and what was written is with the system if the process is killed
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close
        self.paths.append(path)
        self._num_bytes = 0
        self.write(encode_event(self._make_header(self.part)))
        self.flush()
