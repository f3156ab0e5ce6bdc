"""The audit of a stream: batches in their order, what is resident after each, and every rule that an event breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcanary_cli.kvevents.cache import RankCache
from kvcanary_cli.kvevents.decode import CLEARED, REMOVED, STORED
from kvcanary_cli.kvevents.events import Batch, Cleared, Gap, Malformed, Removed, Restart, Source, Stored
from kvcanary_cli.kvevents.findings import Finding, Log, Place
from kvcanary_cli.kvevents.lines import EventFile
from kvcanary_cli.kvevents.removals import check_orphans, check_removed
from kvcanary_cli.kvevents.rules import Where
from kvcanary_cli.kvevents.sequence import Order, Seen, Sequence
from kvcanary_cli.kvevents.stores import StoreCheck

NAMES: dict[type, str] = {Stored: STORED, Removed: REMOVED, Cleared: CLEARED}
MOST_GAPS = 1_000
"""Gaps listed; the number of lost batches is of all."""


@dataclass(kw_only=True, slots=True)
class LostBatches:
    """Numbers that are missing between two batches."""

    first: int
    last: int
    place: Place


@dataclass(kw_only=True, slots=True)
class AuditResult:
    """What an audit saw.

    Attributes:
        started_at: number of the first batch, where it is not 0: what came before is not in the file.
        lost: batches that are missing, without those before the file.
        malformed: frames that the recorder could not decode.
    """

    file: EventFile
    log: Log = field(default_factory=Log)
    caches: dict[Source, RankCache] = field(default_factory=dict)
    batches: int = 0
    events: Counter[str] = field(default_factory=Counter)
    stored_blocks: int = 0
    removed_blocks: int = 0
    stored_again: int = 0
    gaps: list[LostBatches] = field(default_factory=list)
    num_gaps: int = 0
    lost: int = 0
    started_at: int | None = None
    numbered: int = 0
    restarts: int = 0
    repeated: int = 0
    malformed: int = 0
    first_ts: float | None = None
    last_ts: float | None = None
    checked: Counter[str] = field(default_factory=Counter)
    interrupted: bool = False


class Auditor:
    """Takes the records of a file one by one."""

    def __init__(self, file: EventFile, *, pool_tokens: int | None = None) -> None:
        self.result = AuditResult(file=file)
        self._sequence = Sequence()
        self._is_new_uncertain = False
        self._stores = StoreCheck(self.result.log, self.result.checked, pool_tokens)

    def run(
        self,
        *,
        on_progress: Callable[[int, int, int], None] = lambda batches, events, findings: None,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> AuditResult:
        """Audit the whole file; `on_progress` gets batches, events and findings so far."""
        result, told = self.result, 0
        for file, line, record in result.file:
            self.take(file, line, record)
            for finding in result.log.findings[told:]:
                on_finding(finding)
            told = len(result.log.findings)
            on_progress(result.batches, result.events.total(), result.log.total)
            if should_stop():
                result.interrupted = True
                break
        return result

    def take(self, file: str, line: int, record: Batch | Gap | Restart | Malformed) -> None:
        """One record."""
        place = Place(file=file, line=line, seq=record.seq if isinstance(record, Batch | Malformed) else None)
        if isinstance(record, Gap):
            self._sequence.note(record)
            self._lose(record.first, record.last, place, is_before=record.before)
        elif isinstance(record, Restart):
            self._sequence.restart()
        elif isinstance(record, Malformed):
            self.result.malformed += 1
            self._doubt()
            if record.seq is not None:
                self._sequence.note(Gap(record.seq, record.seq))
        else:
            self._batch(record, place)

    def _batch(self, batch: Batch, place: Place) -> None:
        result = self.result
        seen = self._sequence.see(batch.source, batch.seq, batch.ts)
        result.numbered += seen.order is not Order.UNNUMBERED
        if seen.order is Order.REPEAT:
            result.repeated += 1
            return
        self._order(seen, batch, place)
        result.batches += 1
        if batch.ts is not None:
            result.first_ts = batch.ts if result.first_ts is None else result.first_ts
            result.last_ts = batch.ts
        cache = self._cache(batch.source)
        where = Where(source=batch.source, place=place, is_certain=seen.order is not Order.UNNUMBERED)
        for event in batch.events:
            result.events[NAMES[type(event)]] += 1
            if isinstance(event, Stored):
                result.stored_blocks += len(event.hashes)
                result.stored_again += self._stores.check(cache, event, where)
            elif isinstance(event, Removed):
                result.removed_blocks += len(event.hashes)
                check_removed(cache, event, where, result.log, result.checked)
            elif isinstance(event, Cleared):
                cache.clear(place.line)
        check_orphans(cache, where, result.log)

    def _order(self, seen: Seen, batch: Batch, place: Place) -> None:
        """What a number says of the batches before."""
        if seen.order is Order.START and seen.missing is None:
            self._cache(batch.source).is_uncertain = False
        elif seen.order is Order.RESTART:
            self.result.restarts += 1
            self._restart(batch.source)
        elif seen.order is Order.BACKWARDS:
            self._doubt()
            self.result.log.add(
                Finding(
                    code="S10",
                    source=batch.source,
                    group=None,
                    medium=None,
                    hash=None,
                    blocks=0,
                    place=place,
                    text=f"number {batch.seq:,} after a larger one, and no later time says that the engine restarted",
                    is_certain=True,
                )
            )
        if seen.missing is not None:
            self._lose(*seen.missing, place, is_before=seen.order is Order.START)

    def _lose(self, first: int, last: int, place: Place, *, is_before: bool) -> None:
        """Batches are missing; a source with numbers of its own says at its first whether it misses any."""
        self._doubt()
        if is_before:
            self.result.started_at = last + 1
            return
        self.result.num_gaps += 1
        self.result.lost += last - first + 1
        if len(self.result.gaps) < MOST_GAPS:
            self.result.gaps.append(LostBatches(first=first, last=last, place=place))

    def _doubt(self) -> None:
        """What is resident is not known any more, in no cache: whose events were lost is not known either."""
        self._is_new_uncertain = True
        for cache in self.result.caches.values():
            cache.is_uncertain = True

    def _restart(self, source: Source) -> None:
        """A process that begins anew has an empty cache; sources with numbers of their own go on."""
        if self._sequence.is_shared is False:
            self._cache(source).restart()
            return
        self._is_new_uncertain = False
        for each in [source, *self.result.caches]:
            self._cache(each).restart()

    def _cache(self, source: Source) -> RankCache:
        cache = self.result.caches.get(source)
        if cache is None:
            cache = self.result.caches[source] = RankCache()
            cache.is_uncertain = self._is_new_uncertain
        return cache
