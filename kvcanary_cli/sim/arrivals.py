"""When requests reach a modelled server: at their time, or some time after the one that they wait for."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.requests import Request

KNOWN_ENDS = (
    65_536  # ended requests whose time is remembered, so that a run without end needs no memory without end
)


class Arrivals:
    """Hands out the requests of a trace when they are sent.

    A request without `after` is sent at `arrival_s`. One with `after` is sent `delay_s` after that request
    has ended, and not before `arrival_s`. A request that isn't in the trace, or ended 65,536 ends ago, holds
    nobody up: then `arrival_s` alone counts.

    Requests are read one ahead of the clock. What is kept: requests read and not yet sent, names of those
    sent and not yet ended, and the last 65,536 ends.

    Args:
        requests: in order of `arrival_s`; a request comes after the one that it waits for.

    Raises: InputError, while requests are read, for one that is out of order.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self._source = iter(requests)
        self._read = 0
        self._last_s = 0.0
        self._next: Request | None = None
        self._is_read = False
        self._ready: list[tuple[float, int, Request]] = []
        self._open: set[str] = set()
        self._held: dict[str, list[tuple[int, Request]]] = {}
        self._ends: OrderedDict[str, float] = OrderedDict()

    def next_s(self) -> float | None:
        """When the next request will be sent if none ends before; None: not before another one has ended."""
        ahead = self._peek()
        times = [self._ready[0][0]] if self._ready else []
        if ahead is not None:
            times.append(ahead.arrival_s)
        return min(times, default=None)

    def due(self, now_s: float) -> Iterator[tuple[float, Request]]:
        """Requests sent up to now and not handed out before, each with its time, in order of time."""
        while (ahead := self._peek()) is not None and ahead.arrival_s <= now_s:
            self._next = None
            self._place(ahead)
        while self._ready and self._ready[0][0] <= now_s:
            sent_s, _, request = heapq.heappop(self._ready)
            yield sent_s, request

    def end(self, rid: str, now_s: float) -> None:
        """A request that was handed out has ended, served or not; those that wait for it will be sent."""
        self._open.discard(rid)
        self._ends[rid] = now_s
        if len(self._ends) > KNOWN_ENDS:
            self._ends.popitem(last=False)
        for number, request in self._held.pop(rid, ()):
            self._send(number, request, now_s + request.delay_s)

    def _peek(self) -> Request | None:
        """The next request of the source, checked; None when all are read."""
        if self._next is None and not self._is_read:
            self._next = next(self._source, None)
            self._is_read = self._next is None
            if self._next is not None and self._next.arrival_s < self._last_s:
                raise InputError(
                    f"request {self._next.rid} arrives at {self._next.arrival_s} s, "
                    f"after one that arrives at {self._last_s} s",
                )
        return self._next

    def _place(self, request: Request) -> None:
        self._last_s = request.arrival_s
        self._read += 1
        self._open.add(request.rid)
        if request.after is None:
            self._send(self._read, request, request.arrival_s)
        elif request.after in self._open and request.after != request.rid:
            self._held.setdefault(request.after, []).append((self._read, request))
        else:
            ended_s = self._ends.get(request.after)
            self._send(self._read, request, 0.0 if ended_s is None else ended_s + request.delay_s)

    def _send(self, number: int, request: Request, at_s: float) -> None:
        heapq.heappush(self._ready, (max(at_s, request.arrival_s), number, request))
