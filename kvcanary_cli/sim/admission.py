"""Which prompts join the next forward, by the rules of SGLang 0.5.23."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.forwards import Part
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.pool import KvPool
from kvcanary_cli.sim.queues import Queues
from kvcanary_cli.sim.reserve import CLIP_OUTPUT, Budget, expected


@dataclass(slots=True)
class Picked:
    """The prompts of a forward.

    Attributes:
        parts: the half-done prompt first, then new ones.
        new: lanes of the new ones: their cached prefix is locked, they have neither row nor pages of their own.
        preempted: running lanes that gave their place up.
    """

    parts: list[Part] = field(default_factory=list)
    new: list[Lane] = field(default_factory=list)
    preempted: list[Lane] = field(default_factory=list)


class Admission:
    """Picks the prompts of one forward after the other.

    Args:
        give_up: takes a running lane's row and pages from it.
    """

    def __init__(
        self, config: SimConfig, pool: KvPool, queues: Queues, give_up: Callable[[Lane], None]
    ) -> None:
        self._config = config
        self._pool = pool
        self._queues = queues
        self._give_up = give_up
        self._may_preempt = config.priorities and config.preempt_above is not None

    def pick(self, *, share: float, riding: int) -> Picked:
        """The prompts of the next forward.

        Args:
            share: of the running requests' outstanding output that is held back.
            riding: decode lanes that take their tokens from the budgets.
        """
        queues, picked = self._queues, Picked()
        if self._may_preempt or self._config.window or not queues.running:
            queues.is_full = False
        if queues.chunked is None:
            if queues.is_full or not queues.waiting:
                return picked
            if not queues.rows and not self._may_preempt:
                queues.is_full = True
                return picked
        budget = Budget.open(self._config, self._pool, queues.running, share=share, riding=riding)
        if queues.chunked is not None:
            self._continue(queues.chunked, budget, picked)
        self._add_waiting(budget, picked)
        if picked.new:
            queues.waiting.remove(picked.new)
        return picked

    def _continue(self, lane: Lane, budget: Budget, picked: Picked) -> None:
        """The half-done prompt goes on, whatever other requests were promised: it has to end to free its pages.

        Where SGLang would run out of memory it gets what there is, and nothing while there is nothing.
        """
        rest = lane.goal - lane.length
        limit = sys.maxsize if budget.chunk is None else budget.chunk
        if 0 < int(budget.room) < limit:
            limit = int(budget.room)
        there = (len(lane.pages) + self._pool.room) * self._pool.page_size - lane.length
        count = max(0, min(rest, limit, there))
        if count:
            picked.parts.append(Part(lane, count))
            budget.charge(count, expected(lane) if count == rest else 0)

    def _add_waiting(self, budget: Budget, picked: Picked) -> None:
        queues = self._queues
        held = len(picked.parts)
        for lane in queues.waiting.in_order(self._pool):
            if budget.verdict == "no budget":
                return
            lane.start(seed=self._config.seed)
            if len(picked.parts) - held >= len(queues.rows):
                queues.is_full = True
            if queues.is_full and not (self._may_preempt and self._preempt(lane, budget, picked)):
                return
            if self._config.prefill_max_requests is not None and (
                len(picked.parts) >= self._config.prefill_max_requests
            ):
                return
            if not self._admit(lane, budget, picked):
                return
            verdict = budget.verdict
            if verdict == "no memory":
                queues.is_full = True
            if verdict != "go on":
                return

    def _admit(self, lane: Lane, budget: Budget, picked: Picked) -> bool:
        """Let a waiting lane join with as much of its prompt as the budgets have; False if it can't."""
        self._pool.find_prefix(lane, lane.tokens)
        rest = lane.goal - lane.length
        size = self._pool.page_size
        # a server that has nothing else to do would wait for ever for room that it can't have
        is_alone = not (picked.parts or self._queues.running or self._queues.chunked)
        if rest + expected(lane) + size >= budget.room and not is_alone:
            self._queues.is_full = bool(picked.parts or self._queues.running)
            self._pool.forget_prefix(lane)
            return False
        count = self._cut(rest, budget, is_first=not picked.parts)
        if not count:
            self._pool.forget_prefix(lane)
            return False
        picked.parts.append(Part(lane, count))
        picked.new.append(lane)
        budget.charge(count, min(lane.asked, CLIP_OUTPUT) if count == rest else 0)
        return True

    def _cut(self, rest: int, budget: Budget, *, is_first: bool) -> int:
        """Tokens of a prompt that join; 0: it has to wait.

        Only the chunk budget cuts, to whole pages. Without chunks, a prompt that would pass the prompt budget
        waits, unless it is the first one.
        """
        size = self._pool.page_size
        paged = -(-rest // size) * size
        if budget.chunk is None:
            return rest if is_first or paged < budget.prompt else 0
        return rest if paged <= budget.chunk else budget.chunk // size * size

    def _preempt(self, lane: Lane, budget: Budget, picked: Picked) -> bool:
        """Take as many running lanes out as a more urgent one needs room, the least urgent first."""
        assert self._config.preempt_above is not None  # checked before: nobody preempts without it
        order = sorted(self._queues.running, key=lambda one: (-one.request.priority, -one.queued))
        missing = lane.goal - lane.length + min(lane.asked, CLIP_OUTPUT) - budget.room
        chosen: list[Lane] = []
        for one in order:
            if one.request.priority - lane.request.priority <= self._config.preempt_above:
                break
            chosen.append(one)
            missing -= expected(one) * budget.share
            if missing <= 0:
                break
        if not chosen or missing > 0:
            return False
        for one in chosen:
            self._queues.running.remove(one)
            budget.release(one)
            self._give_up(one)
        picked.preempted += chosen
        return True
