"""The vLLM model: requests in, trace events out.

It batches as vLLM's V1 scheduler does with chunked prefill and first come, first served: running requests go first
inside one token budget, then waiting ones whose whole prompt finds room. When blocks run out, the newest running
request is preempted: it waits in front, loses its blocks, and computes again what nobody has kept in the cache.
Three things are simpler. Blocks can be found in the cache once they are computed, not from the moment they are
planned; two blocks of the same content become one; and a request that ends is gone at once, where vLLM may have
planned one more step for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

import numpy as np

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.sim.arrivals import Arrivals
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.facts import OnStep, StepFacts
from kvcanary_cli.sim.lanes import check_fits, reach
from kvcanary_cli.sim.tokens import request_tokens
from kvcanary_cli.sim.vllm_memory import BlockMemory, Served
from kvcanary_cli.trace.events import Bind, End, Event, Forward, Sweep, Truth, Unbind
from kvcanary_cli.trace.requests import Request

TRUTH_TOKENS = 16_384  # a longer sequence is told in several events, so that no line gets too long


class VllmScheduler:
    """One run of the model.

    Args:
        requests: in order of arrival.
        on_step: gets the facts of each forward as it is launched.
        events: False to make none, which decides the same and costs less.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        config: SimConfig,
        *,
        on_step: OnStep | None = None,
        events: bool = True,
    ) -> None:
        self._config = config
        self._on_step = on_step
        self._arrivals = Arrivals(requests)
        self._now_s = 0.0
        self._out: list[Event] = []
        self._tells = events
        self._memory = BlockMemory(config, self._out if events else None)
        self._waiting: deque[Served] = deque()
        self._running: list[Served] = []
        # rows are taken from the end of the list, so the highest one goes first
        self._rows = list(range(1, config.max_num_seqs + 1))
        self._steps = self._preempted = self._finished = self._hit_tokens = 0

    def events(self) -> Iterator[Event]:
        """All events of the run, in order."""
        while self._steps != self._config.max_steps and self._advance():
            yield from self._out
            self._out.clear()
        for lane in list(self._running):
            self._leave(lane, "cancel")
        if self._config.sweep_interval and self._tells:
            self._out.append(Sweep())
        yield from self._out

    def _advance(self) -> bool:
        """Run one forward, after a jump to the next arrival if nobody is there; False when all is done."""
        if not (self._waiting or self._running):
            next_s = self._arrivals.next_s()
            if next_s is None:
                return False
            self._now_s = max(self._now_s, next_s)
        for _, request in self._arrivals.due(self._now_s):
            self._waiting.append(self._served(request))
        lanes = self._schedule()
        if not lanes:
            # the only running request gave up its own blocks; now it finds an empty pool
            lanes = self._schedule()
        if not lanes:
            raise PhaseError("the scheduler model is stuck: requests wait and none can run")
        self._forward(lanes)
        return True

    def _schedule(self) -> list[Served]:
        """The lanes of the next forward, each with its `count` set and its blocks taken."""
        before = self._preempted
        lanes, budget = self._schedule_running(self._config.max_num_batched_tokens)
        if self._preempted == before:
            self._schedule_waiting(lanes, budget)
        return lanes

    def _schedule_running(self, budget: int) -> tuple[list[Served], int]:
        """Running requests inside the budget, and what is left of it; the newest make room for the others."""
        size, running, lanes = self._config.page_size, self._running, []
        at = 0
        while at < len(running) and budget > 0:
            lane = running[at]
            count = min(lane.goal - lane.written, budget)
            missing = -(-(lane.written + count) // size) - len(lane.blocks)
            if missing > 0 and not self._make_room(lane, missing):
                break
            lane.count = count
            budget -= count
            lanes.append(lane)
            at += 1
        return lanes, budget

    def _make_room(self, lane: Served, missing: int) -> bool:
        """Give a running lane so many blocks; False if it had to give up its own for want of them."""
        while missing > self._memory.pool.room:
            newest = self._running[-1]
            self._preempted += 1
            self._leave(newest, "retract")
            self._waiting.appendleft(newest)
            if newest is lane:
                return False
        self._memory.take(lane, missing)
        return True

    def _schedule_waiting(self, lanes: list[Served], budget: int) -> None:
        """Waiting requests in their order, as long as budget, rows and blocks for the whole prompt last."""
        memory = self._memory
        while self._waiting and self._rows and budget > 0:
            lane = self._waiting[0]
            self._prepare(lane)
            found = memory.find(lane)
            whole = memory.blocks_for(lane.goal) - len(found) + memory.pool.unused(found)
            if whole > memory.pool.room:
                break
            self._waiting.popleft()
            self._running.append(lane)
            self._bind(lane)
            memory.share(lane, found)
            self._hit_tokens += lane.written
            lane.count = min(lane.goal - lane.written, budget)
            memory.take(lane, memory.blocks_for(lane.written + lane.count) - len(found))
            budget -= lane.count
            lanes.append(lane)

    def _forward(self, lanes: list[Served]) -> None:
        """Launch the batch, let its time pass, and see who has sampled a token."""
        decodes = [lane for lane in lanes if lane.generated and lane.written == lane.goal - 1]
        decoding = len(decodes)
        counts = [lane.count for lane in lanes]
        prefix = [lane.written for lane in lanes]
        context = sum(lane.written for lane in decodes)
        prefill = sum(counts) - decoding
        mode: Literal["extend", "decode", "mixed"] = (
            "decode" if not prefill else "mixed" if decoding else "extend"
        )
        if self._tells:
            self._out.append(self._event(lanes, mode, counts, prefix))
        seconds = self._config.costs.step_s(prefill, decoding, context)
        if self._on_step is not None:
            self._on_step(self._facts(seconds, mode, lanes, decoding, sum(counts), context, sum(prefix)))
        self._now_s += seconds
        self._steps += 1
        for lane in lanes:
            self._end_step(lane)
        if self._tells and self._config.sweep_interval and self._steps % self._config.sweep_interval == 0:
            self._out.append(Sweep())

    def _event(
        self,
        lanes: list[Served],
        mode: Literal["extend", "decode", "mixed"],
        counts: list[int],
        prefix: list[int],
    ) -> Forward:
        forward = Forward(mode=mode, rows=[lane.row for lane in lanes], prefix=prefix, t=self._clock())
        if mode != "decode":
            forward.lens = counts
        if not self._config.map_pages:
            forward.slots = self._slots(lanes)
        if self._config.expect_tokens:
            pieces = [lane.tokens[lane.written : lane.written + lane.count] for lane in lanes]
            forward.expect = np.concatenate(pieces).tolist()
        return forward

    def _end_step(self, lane: Served) -> None:
        lane.written += lane.count
        lane.count = 0
        if lane.written // self._config.page_size > lane.shared:
            self._memory.publish(lane)
        if lane.written < lane.goal:
            return
        lane.generated += 1
        lane.goal += 1
        if lane.generated >= lane.request.output_length:
            self._finished += 1
            self._leave(lane, "done")
            self._arrivals.end(lane.rid, self._now_s)

    def _slots(self, lanes: list[Served]) -> np.ndarray:
        """Where the lanes' tokens are written."""
        size, pages = self._config.page_size, self._memory.slots
        ones: list[int] = []
        pieces: list[np.ndarray] = []
        for lane in lanes:
            if lane.count == 1:
                ones.append(lane.blocks[lane.written // size] * size + lane.written % size)
                continue
            pieces += [
                np.array(ones, np.int64),
                pages.of_columns(lane.blocks, lane.written, lane.written + lane.count),
            ]
            ones = []
        return np.concatenate([*pieces, np.array(ones, np.int64)])

    def _facts(
        self,
        seconds: float,
        mode: Literal["extend", "decode", "mixed"],
        lanes: list[Served],
        decoding: int,
        tokens: int,
        context: int,
        entries: int,
    ) -> StepFacts:
        memory, size = self._memory, self._config.page_size
        sampling = [lane for lane in lanes if lane.written + lane.count == lane.goal]
        return StepFacts(
            step=self._steps,
            time_s=self._now_s,
            seconds=seconds,
            mode=mode,
            lanes=len(lanes),
            width=len(lanes),
            decode_lanes=decoding,
            tokens=tokens,
            prefill_tokens=tokens - decoding,
            context_tokens=context,
            verify_entries=entries,
            window_entries=0,
            running=len(self._running),
            waiting=len(self._waiting),
            used_slots=(memory.used + memory.pool.idle) * size,
            cached_slots=memory.pool.cached * size,
            used_window_slots=0,
            hit_tokens=self._hit_tokens,
            evicted_slots=memory.evicted * size,
            retracted=self._preempted,
            finished=self._finished,
            request_slots=memory.used * size,
            sampled_tokens=sum([lane.request.output_length > 0 for lane in sampling]),
            prompted_tokens=sum(lane.request.input_length for lane in sampling if not lane.generated),
        )

    def _served(self, request: Request) -> Served:
        """An arrival, checked against what the model can serve."""
        columns = reach(request, 1)
        check_fits(request, columns, self._config, largest=self._memory.pool.num_blocks)
        return Served(request=request, goal=request.input_length)

    def _prepare(self, lane: Served) -> None:
        """Make the tokens and keys of a lane that is looked at for the first time."""
        if not len(lane.tokens):
            lane.tokens = request_tokens(lane.request, seed=self._config.seed)
            self._memory.make_keys(lane)

    def _bind(self, lane: Served) -> None:
        lane.row = self._rows.pop()
        if not self._tells:
            return
        self._out.append(Bind(row=lane.row, rid=lane.rid, t=self._clock()))
        if lane.has_truth:
            return
        lane.has_truth = True
        tokens = lane.tokens.tolist()
        for at, end in pairwise([*range(0, len(tokens), TRUTH_TOKENS), len(tokens)]):
            self._out.append(Truth(rid=lane.rid, at=at, tokens=tokens[at:end]))

    def _leave(self, lane: Served, why: Literal["done", "cancel", "retract"]) -> None:
        self._memory.release(lane)
        if self._tells:
            self._out.append(Unbind(row=lane.row))
            self._out.append(End(rid=lane.rid, why=why, t=self._clock()))
        self._running.remove(lane)
        self._rows.append(lane.row)
        lane.reset()

    def _clock(self) -> float:
        """Time of the run in seconds, to the microsecond, which keeps the events short."""
        return round(self._now_s, 6)
