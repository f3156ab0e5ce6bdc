"""The numbers of batches: which were lost, and where a publisher began anew."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kvcanary_cli.kvevents.events import Gap, Source


class Order(Enum):
    """What the number of a batch says beside that of the batch before."""

    UNNUMBERED = "unnumbered"
    START = "start"
    NEXT = "next"
    GAP = "gap"
    RESTART = "restart"
    REPEAT = "repeat"
    BACKWARDS = "backwards"


class Seen(NamedTuple):
    """One batch in its order.

    Attributes:
        missing: first and last number between this batch and the one before; with START and RESTART those
            before the first batch.
    """

    order: Order
    missing: tuple[int, int] | None = None


@dataclass(slots=True)
class _Counter:
    last: int
    ts: float | None


class Sequence:
    """Follows the numbers of a file, in which several sources may share one counter or have their own.

    Attributes:
        is_shared: whether they share one; None while there is one source only.
    """

    def __init__(self) -> None:
        self._counters: dict[Source | None, _Counter] = {}
        self.is_shared: bool | None = None
        self._first: Source | None = None
        self._is_restarting = False

    def restart(self) -> None:
        """The recorder saw the publisher begin anew."""
        self._is_restarting = True

    def note(self, gap: Gap) -> None:
        """The recorder tells of a gap; the batch after it is then in order."""
        for counter in self._counters.values():
            counter.last = max(counter.last, gap.last) if not self._is_restarting else gap.last
        if not self._counters:
            self._counters[None] = _Counter(gap.last, None)
        self._is_restarting = False

    def see(self, source: Source, seq: int | None, ts: float | None) -> Seen:
        """The order of a batch."""
        if seq is None:
            return Seen(Order.UNNUMBERED)
        key = self._key(source, seq)
        counter = self._counters.get(key) or self._counters.pop(None, None)
        if counter is None or self._is_restarting:
            order = Order.RESTART if self._is_restarting else Order.START
            self._is_restarting = False
            self._counters[key] = _Counter(seq, ts)
            return Seen(order, (0, seq - 1) if seq else None)
        self._counters[key] = counter
        seen = _compare(counter, seq, ts)
        if seen.order is Order.BACKWARDS:
            counter.last = max(counter.last, seq)
        elif seen.order is not Order.REPEAT:
            counter.last, counter.ts = seq, ts
        return seen

    def _key(self, source: Source, seq: int) -> Source | None:
        """Whose counter a number belongs to: decided when the second source turns up."""
        if self._first is None:
            self._first = source
        elif self.is_shared is None and source != self._first:
            before = self._counters.get(self._first)
            self.is_shared = before is not None and seq > 0 and seq == before.last + 1
        return self._first if self.is_shared else source


def _compare(counter: _Counter, seq: int, ts: float | None) -> Seen:
    if seq == counter.last + 1:
        return Seen(Order.NEXT)
    if seq > counter.last:
        return Seen(Order.GAP, (counter.last + 1, seq - 1))
    if seq == counter.last and ts == counter.ts:
        return Seen(Order.REPEAT)
    is_later = ts is not None and counter.ts is not None and ts > counter.ts
    if is_later or (seq == 0 and (ts is None or counter.ts is None)):
        return Seen(Order.RESTART, (0, seq - 1) if seq else None)
    return Seen(Order.BACKWARDS)
