"""A recording: messages in their order, lost ones asked for, restarts and damaged frames noted."""

from __future__ import annotations

import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvcanary_cli.kvevents.audit import NAMES
from kvcanary_cli.kvevents.decode import EventDecoder
from kvcanary_cli.kvevents.payload import SHOWN_BYTES, decode_payload
from kvcanary_cli.kvevents.zmq_sockets import Message
from kvcanary_cli.trace.files import LineError

RECENT = 4_096
"""Batches whose number and content are kept, to tell one that comes twice from a restart."""
MOST_ERRORS = 10
"""Reasons of damaged frames that a report shows."""
POLL_SECONDS = 0.1


class Receives(Protocol):
    """What a subscriber does."""

    def receive(self, seconds: float) -> Message | None:
        """The next message, or None."""


class Answers(Protocol):
    """What a replay socket does."""

    def ask(self, first: int) -> Iterator[Message]:
        """Kept batches from a number on."""


class Writes(Protocol):
    """What a sink does."""

    def write(self, value: dict[str, Any]) -> None:
        """One line."""

    def tick(self) -> None:
        """Called while nothing comes."""


@dataclass(kw_only=True, slots=True)
class RecordFacts:
    """What a recording holds.

    Attributes:
        gaps: first and last number of each that was not filled.
        lost: batches in them.
        missed_start: batches before the first that the publisher no longer keeps.
        replayed: batches that came from the replay socket.
        stopped: `duration`, `batches` or `interrupted`.
    """

    batches: int = 0
    events: Counter[str] = field(default_factory=Counter)
    ranks: Counter[str] = field(default_factory=Counter)
    first_seq: int | None = None
    last_seq: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    num_gaps: int = 0
    lost: int = 0
    missed_start: int = 0
    asked: int = 0
    replayed: int = 0
    restarts: int = 0
    repeated: int = 0
    malformed: int = 0
    errors: list[str] = field(default_factory=list)
    extra_items: int = 0
    unknown_keys: Counter[str] = field(default_factory=Counter)
    stopped: str = "duration"


class Recorder:
    """Takes messages one by one."""

    def __init__(self, sink: Writes, replay: Answers | None = None) -> None:
        self.facts = RecordFacts()
        self._sink = sink
        self._replay = replay
        self._decoder = EventDecoder()
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._last: int | None = None

    def begin(self) -> None:
        """Ask for everything that is kept, so that the recording begins as early as it can."""
        if self._replay is not None:
            self._fill(0, None)

    def take(self, message: Message) -> None:
        """Write one message, after those that were lost before it."""
        if message.seq is None or message.error is not None:
            self._damaged(message.seq, message.error or "no number", message.payload)
            return
        if self._is_repeated(message):
            self.facts.repeated += 1
            return
        if self._last is not None and message.seq <= self._last:
            self.facts.restarts += 1
            self._sink.write({"restart": {"seq": message.seq, "last": self._last}})
            self._recent.clear()
            self._last = -1
        if self._last is None:
            if message.seq:
                self._missed(0, message.seq - 1, is_start=True)
        elif message.seq > self._last + 1:
            self._missed(self._last + 1, message.seq - 1)
        self._write(message)

    def _is_repeated(self, message: Message) -> bool:
        return message.seq is not None and self._recent.get(message.seq) == zlib.crc32(message.payload)

    def _missed(self, first: int, last: int, *, is_start: bool = False) -> None:
        """Numbers that did not come: ask for them, and note those that are gone."""
        missing = self._fill(first, last) if self._replay is not None else [(first, last)]
        for low, high in missing:
            self._gap(low, high, is_before=is_start and low == 0)

    def _gap(self, low: int, high: int, *, is_before: bool) -> None:
        if is_before:
            self.facts.missed_start += high - low + 1
        else:
            self.facts.num_gaps += 1
            self.facts.lost += high - low + 1
            if len(self.facts.gaps) < RECENT:
                self.facts.gaps.append((low, high))
        self._sink.write({"gap": {"seq": [low, high], "before": is_before}})
        self._last = high

    def _fill(self, first: int, last: int | None) -> list[tuple[int, int]]:
        """Write kept batches from `first` to `last`, or all; returns the numbers that are not kept."""
        if self._replay is None:
            return []
        self.facts.asked += 1
        wanted = first
        for message in self._replay.ask(first):
            if message.seq is None or message.error is not None:
                self._damaged(None, message.error or "no number", message.payload)
                continue
            if last is not None and message.seq > last:
                break
            if message.seq < wanted:
                continue
            if message.seq > wanted:
                self._gap(wanted, message.seq - 1, is_before=wanted == 0 and self.facts.batches == 0)
            self.facts.replayed += 1
            self._write(message)
            wanted = message.seq + 1
        return [(wanted, last)] if last is not None and wanted <= last else []

    def _write(self, message: Message) -> None:
        seq = message.seq
        self._last = seq
        if seq is not None:
            self.facts.first_seq = seq if self.facts.first_seq is None else self.facts.first_seq
            self.facts.last_seq = seq
            self._recent[seq] = zlib.crc32(message.payload)
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        try:
            batch, line = decode_payload(message.payload, self._decoder)
            self._sink.write({"seq": seq, **line})
        except LineError as error:
            self._damaged(seq, str(error), message.payload)
            return
        facts = self.facts
        facts.batches += 1
        facts.events.update(NAMES[type(event)] for event in batch.events)
        facts.ranks[str(batch.source)] += 1

    def _damaged(self, seq: int | None, error: str, payload: bytes) -> None:
        self.facts.malformed += 1
        if len(self.facts.errors) < MOST_ERRORS:
            self.facts.errors.append(error if seq is None else f"number {seq:,}: {error}")
        start = payload[:SHOWN_BYTES].hex()
        self._sink.write({"malformed": {"seq": seq, "error": error, "bytes": len(payload), "start": start}})

    def finish(self) -> RecordFacts:
        """The facts of the recording."""
        self.facts.extra_items = self._decoder.extra_items
        self.facts.unknown_keys = self._decoder.unknown_keys
        return self.facts


def record(
    source: Receives,
    sink: Writes,
    replay: Answers | None = None,
    *,
    duration: float | None = None,
    max_batches: int | None = None,
    on_progress: Callable[[RecordFacts], None] = lambda facts: None,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> RecordFacts:
    """Record until the time is over, enough batches came, or `should_stop` says so."""
    recorder = Recorder(sink, replay)
    end = None if duration is None else clock() + duration
    recorder.begin()
    while True:
        on_progress(recorder.facts)
        left = POLL_SECONDS if end is None else end - clock()
        if should_stop():
            recorder.facts.stopped = "interrupted"
        elif max_batches is not None and recorder.facts.batches >= max_batches:
            recorder.facts.stopped = "batches"
        elif left > 0:
            message = source.receive(min(left, POLL_SECONDS))
            if message is None:
                sink.tick()
            else:
                recorder.take(message)
            continue
        return recorder.finish()
