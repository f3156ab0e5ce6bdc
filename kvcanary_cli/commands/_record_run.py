"""From the words of `kvcanary record-events` to its report: sockets and file opened, signals caught."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvcanary_cli.kvevents.record import RecordFacts, record
from kvcanary_cli.kvevents.sink import EventSink
from kvcanary_cli.kvevents.zmq_sockets import ReplaySocket, Subscriber
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Report
from kvcanary_cli.report.record_events import build_record

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_record(inputs: dict[str, Any], progress: Progress) -> Report:
    """Record as asked; returns the report.

    Raises: MissingError without pyzmq, UsageError for an endpoint or a file that can't be used.
    """
    started = time.monotonic()
    replay = ReplaySocket(inputs["replay"]) if inputs["replay"] is not None else None
    max_bytes = inputs["max_mb"] << 20 if inputs["max_mb"] is not None else None

    def tell(facts: RecordFacts) -> None:
        progress.update(facts.batches, inputs["max_batches"], facts.events.total(), facts.num_gaps)

    with (
        Subscriber(inputs["endpoint"], inputs["topic"], bind=inputs["bind"]) as source,
        EventSink(inputs["output"], max_bytes=max_bytes) as sink,
        _stoppable() as is_stopped,
    ):
        facts = record(
            source,
            sink,
            replay,
            duration=inputs["duration_seconds"],
            max_batches=inputs["max_batches"],
            on_progress=tell,
            should_stop=is_stopped,
        )
    return build_record(facts, inputs=inputs, paths=sink.paths, seconds=time.monotonic() - started)


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, and the signal that ends a service, become a request to stop; a second one ends at once."""
    pressed: list[int] = []

    def note(signum: int, frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(signum)

    try:
        before = [(each, signal.signal(each, note)) for each in SIGNALS]
    except ValueError:  # not the main thread: whoever runs us decides
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        for each, handler in before:
            signal.signal(each, handler)
