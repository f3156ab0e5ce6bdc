"""What admission may still spend in one forward: two token budgets, and the pool's room less what is promised.

The numbers are SGLang 0.5.23's. Prompts are charged in whole pages, each with one page more for rounding, and with
all the output that may still come. Of what running requests may still write, only a share is held back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.pool import KvPool

CLIP_OUTPUT = 4096  # no request is expected to write more than this, whatever it asked for
FIRST_SHARE, LEAST_SHARE, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_STEPS = 20  # decode steps for which a retraction makes room

Verdict = Literal["go on", "no budget", "no memory"]


class OutputShare:
    """The share of outstanding output that is held back: it sinks while all goes well.

    Attributes:
        now: the share, from 0 to 1.
    """

    def __init__(self, conservativeness: float) -> None:
        self._first = min(FIRST_SHARE * conservativeness, 1.0)
        self._least = self._first * LEAST_SHARE
        self._step = (self._first - self._least) / DECAY_STEPS
        self.now = self._first

    def sink(self) -> None:
        """A decode step went well."""
        self.now = max(self.now - self._step, self._least)

    def reset(self) -> None:
        """The server had nothing to do."""
        self.now = self._first

    def estimate(self, lanes: Iterable[Lane]) -> None:
        """Set it after a retraction to what those that stay have used of what they asked for, and a bit more."""
        used = asked = 0
        for lane in lanes:
            used += lane.generated + RETRACT_STEPS
            asked += lane.asked
        self.now = min(1.0, used / (asked + 1))


def expected(lane: Lane) -> int:
    """Output tokens for which room is kept when the request is admitted."""
    return min(lane.outstanding, CLIP_OUTPUT)


@dataclass(slots=True)
class Budget:
    """One pass of admission.

    Attributes:
        prompt: what is left of `max_prefill_tokens`. May fall below 0: it stops admission and cuts nothing.
        chunk: what is left of `chunk_tokens`; None: prompts are not cut.
        promised: tokens of the pool that are spoken for, now or later.
        taken: those of them that this forward allocates.
    """

    pool: KvPool
    share: float
    prompt: int
    chunk: int | None
    promised: float
    taken: int

    @classmethod
    def open(
        cls, config: SimConfig, pool: KvPool, running: Iterable[Lane], *, share: float, riding: int
    ) -> Budget:
        """The budgets of a forward; `riding` decode lanes take a token each from all of them."""
        held = sum(expected(lane) for lane in running) * share
        chunk = None if config.chunk_tokens is None else config.chunk_tokens - riding
        return cls(pool, share, config.max_prefill_tokens - riding, chunk, riding + held, riding)

    @property
    def room(self) -> float:
        """Tokens of the pool that nobody needs, as far as one can tell."""
        return self.pool.room * self.pool.page_size - self.promised

    def charge(self, count: int, output: int) -> None:
        """A prompt joins with `count` tokens, and `output` may follow it."""
        size = self.pool.page_size
        paged = -(-count // size) * size
        self.taken += paged + size
        self.promised += paged + size + output
        self.prompt -= paged
        if self.chunk is not None:
            self.chunk -= paged

    def release(self, lane: Lane) -> None:
        """A running request gives its place up."""
        self.promised -= expected(lane) * self.share

    @property
    def verdict(self) -> Verdict:
        """Whether one more prompt may be looked at."""
        if self.room <= 0 or self.pool.room * self.pool.page_size <= self.taken:
            return "no memory"
        if self.prompt <= 0 or (self.chunk is not None and self.chunk <= 0):
            return "no budget"
        return "go on"
