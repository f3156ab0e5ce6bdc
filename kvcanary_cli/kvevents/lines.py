"""Records of a file of KV events: batches as arrays or objects, Dynamo's recorder, single events, recordings.

Every form holds one JSON value a line, except that a file may be one object over several lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvcanary_cli.kvevents.decode import EventDecoder, medium_of_tier
from kvcanary_cli.kvevents.events import (
    Batch,
    Cleared,
    Event,
    Gap,
    Malformed,
    Record,
    Removed,
    Restart,
    Source,
    Stored,
)
from kvcanary_cli.trace.event_marks import MARKERS
from kvcanary_cli.trace.files import ByteReader, LineError, TruncatedError, open_bytes


class EventFile:
    """Iterates over `(file, line, record)` of one stream, whose files are parts in their order.

    Attributes:
        forms: lines by the form that they have.
        bad_lines: `(file, line)` that were skipped.
        truncated: `(file, line)` in which the last file ends.
        files, line: what was read last.
    """

    def __init__(self, paths: Sequence[str], *, skip_bad_lines: bool = False) -> None:
        self.paths = list(paths)
        self.decoder = EventDecoder()
        self.forms: Counter[str] = Counter()
        self.bad_lines: list[tuple[str, int]] = []
        self.truncated: tuple[str, int] | None = None
        self.lines = 0
        self._skip = skip_bad_lines

    def __iter__(self) -> Iterator[tuple[str, int, Record]]:
        for path in self.paths:
            name, source = open_bytes(path)
            with source:
                yield from self._records(name, source)

    def _records(self, name: str, source: ByteReader) -> Iterator[tuple[str, int, Record]]:
        while True:
            is_read = False
            try:
                line = next(source, None)
                is_read = True
                if line is None:
                    return
                if line.isspace():
                    continue
                self.lines += 1
                record = self._record(line, source)
            except TruncatedError:
                self.truncated = (name, source.line)
                return
            except LineError as error:
                if not self._skip:
                    error.where = f"{name}:{source.line}"
                    error.hint = error.hint or "`--skip-bad-lines` goes on after it"
                    raise
                self.lines += not is_read
                self.bad_lines.append((name, source.line))
                continue
            yield name, source.line, record

    def _record(self, line: bytes, source: ByteReader) -> Record:
        is_last = not line.endswith(b"\n")
        if line.strip() == b"{":
            line += source.read()
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            if is_last:
                raise TruncatedError("the last line is cut off") from None
            raise LineError(f"is no JSON text ({error})") from None
        return self.record(value)

    def record(self, value: object) -> Record:
        """The record of one JSON value; LineError for one that has no form that is known."""
        if isinstance(value, list):
            self.forms["batch array"] += 1
            return self.decoder.batch(value)
        if not isinstance(value, dict):
            raise LineError("a line holds an array or an object")
        if "events" in value:
            self.forms["batch object"] += 1
            return self._batch(value)
        if isinstance(value.get("event"), dict):
            self.forms["Dynamo recorder"] += 1
            return _dynamo(value, self.decoder)
        for marker in MARKERS:
            if isinstance(value.get(marker), dict):
                self.forms["recorder's note"] += 1
                return _marker(marker, value[marker])
        if "type" in value or "event_type" in value:
            self.forms["single event"] += 1
            return Batch(events=[self.decoder.event(value)])
        raise LineError("is no batch, no event, and no line of a recorder: none of `events`, `event`, `type`")

    def _batch(self, value: dict[str, Any]) -> Batch:
        batch = self.decoder.batch(value)
        seq = value.get("seq", value.get("sequence"))
        if seq is not None and (type(seq) is not int or seq < 0):
            raise LineError("`seq` is a whole number of 0 or more", path="$.seq")
        batch.seq = seq
        return batch


def _marker(marker: str, found: dict[str, Any]) -> Record:
    if marker == "restart":
        return Restart()
    if marker == "malformed":
        seq = found.get("seq")
        return Malformed(seq if type(seq) is int else None, str(found.get("error", "")))
    numbers = found.get("seq")
    if not isinstance(numbers, list) or len(numbers) != 2 or set(map(type, numbers)) != {int}:
        raise LineError("a gap names its first and last number", path="$.gap.seq")
    return Gap(numbers[0], numbers[1], before=bool(found.get("before")))


def _dynamo(value: dict[str, Any], decoder: EventDecoder) -> Batch:
    """A line of Dynamo's recorder: one event of a worker, without tokens and block size."""
    outer = value["event"]
    inner = outer.get("event")
    if not isinstance(inner, dict):
        raise LineError("`event` needs an `event`, as Dynamo's recorder writes it", path="$.event")
    time = value.get("timestamp")
    source = Source(rank=_number(inner.get("dp_rank")), worker=_number(outer.get("worker_id")))
    medium = medium_of_tier(outer.get("storage_tier"))
    event = _dynamo_event(inner.get("data"), medium, decoder)
    ts = time / 1000 if isinstance(time, int | float) else None
    return Batch(events=[event], source=source, seq=_number(inner.get("event_id")), ts=ts)


def _dynamo_event(data: object, medium: str, decoder: EventDecoder) -> Event:
    path = "$.event.event.data"
    if data == "cleared":
        return Cleared()
    if isinstance(data, dict) and isinstance(data.get("removed"), dict):
        hashes = data["removed"].get("block_hashes")
        if not isinstance(hashes, list):
            raise LineError("`removed` needs `block_hashes`, an array", path=path)
        return Removed(hashes=tuple(decoder.hash(item, path) for item in hashes), medium=medium)
    if isinstance(data, dict) and isinstance(data.get("stored"), dict):
        stored = data["stored"]
        blocks = stored.get("blocks")
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise LineError("`stored` needs `blocks`, an array of objects", path=path)
        parent = stored.get("parent_hash")
        contents = [block.get("tokens_hash") for block in blocks]
        decoder.empty_stores += not blocks
        return Stored(
            hashes=tuple(decoder.hash(block.get("block_hash"), path) for block in blocks),
            parent=None if parent is None else decoder.hash(parent, path),
            contents=tuple(contents) if set(map(type, contents)) == {int} else None,
            medium=medium,
        )
    raise LineError("`data` is `cleared`, or an object with `stored` or `removed`", path=path)


def _number(value: object) -> int | None:
    if value is not None and type(value) is not int:
        raise LineError("numbers of an event, a worker and a rank are integers", path="$.event")
    return value
