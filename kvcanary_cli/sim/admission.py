"""Which prompts join the next forward: first come first served, inside two budgets and the pool."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.pool import KvPool


@dataclass(frozen=True, slots=True)
class Part:
    """`count` further prompt tokens of a lane in one forward."""

    lane: Lane
    count: int


@dataclass(slots=True)
class Queues:
    """Where every request of the run is.

    Attributes:
        waiting: in order of arrival, so a retracted lane stands before all that never ran.
        chunked: the one lane whose prompt is partly done.
        running: lanes that decode, in order of admission.
        rows: free page-table rows; the next one is taken from the end, as in SGLang.
    """

    rows: list[int]
    waiting: list[Lane] = field(default_factory=list)
    chunked: Lane | None = None
    running: list[Lane] = field(default_factory=list)


class Admission:
    """Picks the prefill parts of a forward; the caller has set up decode lanes that ride along."""

    def __init__(self, config: SimConfig, pool: KvPool, queues: Queues) -> None:
        self._config = config
        self._pool = pool
        self._queues = queues

    def pick(self, *, riding: int) -> tuple[list[Part], list[Lane]]:
        """The parts of the next forward, and which of their lanes are new.

        New lanes have their cached prefix locked, but neither row nor pages. `riding` decode lanes take
        their tokens from both budgets.
        """
        chunk_left = (self._config.chunk_tokens or sys.maxsize) - riding
        input_left = self._config.max_prefill_tokens - riding
        parts: list[Part] = []
        new: list[Lane] = []
        if self._queues.chunked is None and not (self._queues.waiting and self._queues.rows):
            return parts, new
        committed = sum(self._reserve(lane) for lane in self._queues.running)
        lane = self._queues.chunked
        if lane is not None:
            count = self._continue(lane, chunk_left)
            committed += self._reserve(lane)
            if count:
                parts.append(Part(lane, count))
            if lane.length + count < lane.goal:
                return parts, new
            chunk_left, input_left = chunk_left - count, input_left - count
        queue = iter(self._queues.waiting)
        while len(new) < len(self._queues.rows) and (lane := next(queue, None)) is not None:
            count = self._try(lane, committed, chunk_left, input_left, is_first=not parts)
            if not count:
                break
            parts.append(Part(lane, count))
            new.append(lane)
            committed += self._reserve(lane)
            chunk_left, input_left = chunk_left - count, input_left - count
            if lane.length + count < lane.goal:
                break
        return parts, new

    def _continue(self, lane: Lane, chunk_left: int) -> int:
        """Tokens of the half-done prompt that fit now; 0 while the pool is full."""
        columns = (len(lane.pages) + self._pool.room) * self._pool.page_size
        return self._cut(lane, min(chunk_left, columns - lane.length))

    def _try(self, lane: Lane, committed: int, chunk_left: int, input_left: int, *, is_first: bool) -> int:
        """Tokens of a waiting lane that fit now, with its prefix locked; 0, and no lock, if none do."""
        self._pool.find_prefix(lane, lane.start(seed=self._config.seed))
        count = self._cut(lane, chunk_left)
        is_too_long = not is_first and lane.goal - lane.length >= input_left
        if not count or is_too_long or committed + self._reserve(lane) > self._pool.room:
            self._pool.forget_prefix(lane)
            return 0
        return count

    def _cut(self, lane: Lane, limit: int) -> int:
        """Uncached prompt tokens, cut to whole pages if they pass `limit`."""
        rest = lane.goal - lane.length
        return rest if rest <= limit else max(0, limit) // self._pool.page_size * self._pool.page_size

    def _reserve(self, lane: Lane) -> int:
        """Pages the lane still needs: for its prompt, and for the part of its output that is reserved."""
        done = max(lane.goal, lane.length)
        reserved = done + (lane.reach - done) * self._config.reserve_percent // 100
        return max(0, self._pool.pages_for(reserved) - len(lane.pages))
