"""Ask a running engine for a dump: by a signal from outside, or by a call from inside.

A signal arrives anywhere, also in the middle of a forward, where stamps and page table don't fit each other. The
handler therefore only notes it; the dump is written where the engine calls `poll`, between two forwards.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

logger = logging.getLogger("kvcanary")

DumpCallback = Callable[[int, str], Any]
"""Called with the number of the dump, from 1 on, and the reason: `signal` or what `request` was given."""


class SignalDump:
    """Dumps that were asked for and not written yet; made by `install_signal_dump`.

    Args:
        limit: dumps after which further requests are ignored: an engine that fails at every step fills no disk.
    """

    def __init__(self, callback: DumpCallback, *, limit: int) -> None:
        self._callback = callback
        self._limit = limit
        self._reason: str | None = None
        self._installed: tuple[int, Any] | None = None
        self.num_written = 0

    @property
    def is_wanted(self) -> bool:
        """Whether the next `poll` writes a dump."""
        return self._reason is not None

    def request(self, reason: str) -> None:
        """Ask for a dump at the next `poll`, as a signal does; the first of several reasons is kept."""
        if self._reason is None:
            self._reason = reason

    def poll(self) -> bool:
        """Write the dump that was asked for, if one was. Call it between two forwards. True: one was written.

        An exception of the callback goes to the log and no further: the engine must not fail for a dump.
        """
        reason = self._reason
        if reason is None:
            return False
        self._reason = None
        if self.num_written >= self._limit:
            logger.warning("kvcanary: no dump for %r: %d were written, the limit", reason, self._limit)
            return False
        try:
            self._callback(self.num_written + 1, reason)
        except Exception as error:
            logger.warning("kvcanary: the dump failed: %s; the engine is not affected", error, exc_info=True)
            return False
        self.num_written += 1
        return True

    def remove(self) -> None:
        """Give the signal back to whoever had it before."""
        if self._installed is not None:
            number, before = self._installed
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            self._installed = None

    def install(self, number: int) -> None:
        """Take the signal; a handler that was there is called too."""
        before = signal.getsignal(number)

        def handle(got: int, frame: FrameType | None) -> None:
            self.request("signal")
            if callable(before):
                before(got, frame)

        signal.signal(number, handle)
        self._installed = (number, before)


def install_signal_dump(
    callback: DumpCallback, *, number: int | None = signal.SIGUSR2, limit: int = 8
) -> SignalDump:
    """Have `callback` called at the `poll` that follows a signal, such as `kill -USR2 PID`.

    Args:
        number: of the signal; None: only `request` asks for dumps.

    Raises: RuntimeError outside of the main thread, where Python lets nobody take a signal.
    """
    asked = SignalDump(callback, limit=limit)
    if number is not None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "kvcanary: a signal can be taken in the main thread only; number=None does without"
            )
        asked.install(number)
    return asked
