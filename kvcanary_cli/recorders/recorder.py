"""The thread that writes, and the bounded queue in front of it. Hooks put facts in; they never wait."""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import queue
import threading
import time
from typing import Any

from kvcanary_cli.recorders.book import Book
from kvcanary_cli.recorders.files import TraceFiles
from kvcanary_cli.trace.events import Note
from kvcanary_cli.trace.writer import encode_event

logger = logging.getLogger("kvcanary")

Fact = tuple[Any, ...]  # a method of Book and its arguments
IDLE_SECONDS = 0.5
STOP_SECONDS = 30.0
# after each fact the interpreter is the engine's: without it, its thread would wait for Python's switch interval
YIELD_SECONDS = 0.00002


class Recorder:
    """Takes facts from the engine's thread and has them written by its own.

    Args:
        files, book: where facts end up; from here on only the writer's thread touches them.
        limit: facts that may wait. Beyond that everything is dropped until half of them are written and a new
            step begins, and a gap says how many forwards were among it.

    Attributes:
        is_on: whether facts are still wanted; hooks look at it first.
    """

    def __init__(self, files: TraceFiles, book: Book, *, limit: int) -> None:
        self.is_on = True
        self.files = files
        self.book = book
        self._limit = limit
        self._facts: collections.deque[Fact | None] = collections.deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_lost: int | None = None  # forwards dropped since the queue was full; None: not dropping
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="kvcanary-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def put(self, *fact: Any, num_forwards: int = 0) -> None:
        """Queue a method of `book` with its arguments, or drop it."""
        if not self.is_on:
            return
        if self._num_lost is None:
            if len(self._facts) < self._limit:
                self._facts.append(fact)
                return
            self._num_lost = 0
        self._num_lost += num_forwards

    def wake(self) -> None:
        """At the end of a step: the engine's thread has less to do than at any other time of it."""
        self._wake.put(None)

    def resume(self) -> bool:
        """At the begin of a step: whether recording goes on from here after a loss."""
        if self._num_lost is None or not self.is_on or len(self._facts) > self._limit // 2:
            return False
        self._end_loss()
        return True

    def fail(self, where: str, error: BaseException) -> None:
        """Something of ours went wrong: say so in the trace, and record nothing more."""
        if not self.is_on:
            return
        self.is_on = False
        self._failure = f"the recorder stopped: {where}: {type(error).__name__}: {error}"
        logger.warning("kvcanary: %s; the engine is not affected", self._failure, exc_info=error)
        self._facts.append((self.book.lost, None, self._failure))
        self._facts.append(None)
        self.wake()

    def stop(self) -> None:
        """Write what waits, and wait until the disk has it."""
        atexit.unregister(self.stop)
        if self.is_on:
            self.is_on = False
            if self._num_lost is not None:
                self._end_loss()
            self._facts.append(None)
            self.wake()
        self._thread.join(STOP_SECONDS)

    def _end_loss(self) -> None:
        self._facts.append((self.book.lost, self._num_lost, "queue full"))
        self._num_lost = None

    def _run(self) -> None:
        try:
            self._write_all()
        except BaseException as error:
            # the engine must not notice: the trace ends here, and the log says why
            self.is_on = False
            logger.warning("kvcanary: the recorder stopped: %s", error, exc_info=True)
            self._close_after(error)

    def _write_all(self) -> None:
        files, facts = self.files, self._facts
        while True:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=IDLE_SECONDS)
            while facts:
                fact = facts.popleft()
                if fact is None:
                    files.write(encode_event(Note(text="end of the recording")))
                    files.close()
                    return
                fact[0](*fact[1:])
                if files.is_full():
                    files.next_part()
                time.sleep(YIELD_SECONDS)
            # a scheduler may be killed at any time: what is written is then in the system's hands
            files.flush()

    def _close_after(self, error: BaseException) -> None:
        try:
            self.book.lost(None, f"the recorder stopped: writer: {type(error).__name__}: {error}")
            self.files.close()
        except Exception:
            logger.warning("kvcanary: %s can't be finished", self.files.paths[-1], exc_info=True)
        self._facts.clear()  # nobody writes them any more, and they hold requests and tensors
