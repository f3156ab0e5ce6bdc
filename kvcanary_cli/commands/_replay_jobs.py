"""Replays side by side: a process for each job, which takes one file after the other.

Messages to a worker are requests, None ends it. From it come `("state", step, entries, findings)`,
`("finding", dict)` and `("done", outcome)`; the first state says that there is something to report.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from kvcanary_cli.commands._replay_files import OnFinding, Outcome, crashed, not_run, outcome_of
from kvcanary_cli.commands._replay_run import RunRequest, interruptible
from kvcanary_cli.progress import Progress

STATE_SECONDS = 0.2
POLL_SECONDS = 0.2


class _Reports(Progress):
    """Progress of a worker, sent to whoever started it."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        super().__init__("replay", stream=None)
        self._send = send
        self._next = 0.0

    def update(self, step: int, total: int | None, entries: int, findings: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + STATE_SECONDS
            self._send(("state", step, entries, findings))


def serve(connection: Connection) -> None:
    """What a worker does until it is told to end, or until nobody listens any more."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the parent alone, who passes it on once
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while (request := connection.recv()) is not None:
            done = outcome_of(
                request, _Reports(connection.send), lambda found: connection.send(("finding", found))
            )
            connection.send(("done", done))


class _Worker:
    """One process, and the file that it works on."""

    def __init__(self) -> None:
        # spawn: a fork would share Numba's threads and a GPU's context with the parent
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.index = -1
        self.state: tuple[int, int, int] | None = None

    def begin(self, index: int, request: RunRequest) -> None:
        self.index, self.state = index, None
        self.connection.send(request)

    def end(self) -> None:
        """End the process, whatever it does."""
        self.connection.close()
        self.process.terminate()
        self.process.join()


class _Pool:
    """Files that wait, workers, and what became of the files so far."""

    def __init__(self, requests: Sequence[RunRequest], progress: Progress, on_finding: OnFinding) -> None:
        self.requests = requests
        self.outcomes: dict[int, Outcome] = {}
        self.waiting = list(range(len(requests)))
        self.workers: list[_Worker] = []
        self._progress = progress
        self._on_finding = on_finding
        self._done = [0, 0, 0]

    def feed(self, worker: _Worker) -> None:
        """Give a worker the next file, or let it go."""
        if self.waiting:
            index = self.waiting.pop(0)
            worker.begin(index, self.requests[index])
        else:
            self.workers.remove(worker)
            worker.end()

    def take(self, worker: _Worker) -> None:
        """One message of a worker, or the news that it died."""
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._lose(worker)
            return
        request = self.requests[worker.index]
        if message[0] == "state":
            worker.state = message[1:]
            self._show()
        elif message[0] == "finding":
            self._on_finding(request.path, message[1])
        else:
            self.outcomes[worker.index] = message[1]
            self._done = [a + b for a, b in zip(self._done, worker.state or (0, 0, 0), strict=True)]
            self.feed(worker)

    def stop(self) -> None:
        """Ctrl-C: files that wait are left; those under way end with what they have."""
        for index in self.waiting:
            self.outcomes[index] = not_run(self.requests[index])
        self.waiting.clear()
        for worker in list(self.workers):
            if worker.state is not None and worker.process.pid is not None:
                os.kill(worker.process.pid, signal.SIGINT)
            else:
                self.outcomes[worker.index] = not_run(self.requests[worker.index])
                self.workers.remove(worker)
                worker.end()

    def _lose(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.process.join()
        self.outcomes[worker.index] = crashed(self.requests[worker.index], worker.process.exitcode)
        worker.end()
        if self.waiting:
            self.workers.append(_Worker())
            self.feed(self.workers[-1])

    def _show(self) -> None:
        states = [worker.state or (0, 0, 0) for worker in self.workers]
        step, entries, findings = (sum(part) for part in zip(self._done, *states, strict=True))
        self._progress.update(step, None, entries, findings)


def run_side_by_side(
    requests: Sequence[RunRequest], jobs: int, progress: Progress, on_finding: OnFinding
) -> list[Outcome]:
    """Replay files in at most `jobs` processes; their outcomes are in the order of the files."""
    pool = _Pool(requests, progress, on_finding)
    is_stopping = False
    try:
        with interruptible() as stop:
            for _ in range(min(jobs, len(requests))):
                pool.workers.append(_Worker())
                pool.feed(pool.workers[-1])
            while pool.workers:
                ready = wait([worker.connection for worker in pool.workers], POLL_SECONDS)
                for worker in [each for each in pool.workers if each.connection in ready]:
                    pool.take(worker)
                if stop.requested and not is_stopping:
                    is_stopping = True
                    pool.stop()
    finally:
        for worker in pool.workers:
            worker.end()
    return [pool.outcomes[index] for index in range(len(requests))]
