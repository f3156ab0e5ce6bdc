"""The scheduler model: requests in, trace events out.

It batches as SGLang 0.5.23 does in its plain configuration: prompts before decodes, first come first
served, long prompts in chunks, and the newest decode retracted when the pool is full. Three things are
simpler. Room for outputs is reserved by a fixed share where SGLang adapts a ratio, a retracted request
waits at the place of its arrival, and a prompt in progress waits for pages instead of failing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

from kvcanary_cli.errors import InputError, PhaseError
from kvcanary_cli.sim.admission import Admission, Part, Queues
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.facts import OnStep
from kvcanary_cli.sim.forwards import Forwards
from kvcanary_cli.sim.lanes import Lane, reach
from kvcanary_cli.sim.pool import KvPool
from kvcanary_cli.sim.tokens import drafts_kept
from kvcanary_cli.trace.events import Bind, End, Event, Header, Sweep, Truth, Unbind
from kvcanary_cli.trace.requests import Request

Why = Literal["done", "cancel", "retract"]

TRUTH_TOKENS = 16_384  # a longer sequence is told in several events, so that no line gets too long


def simulate(
    requests: Iterable[Request], config: SimConfig, *, on_step: OnStep | None = None
) -> tuple[Header, Iterator[Event]]:
    """Serve `requests` (in order of arrival) and tell what happens to the KV pool as trace v1.

    Args:
        on_step: called with the facts of each forward, while events are read.

    Requests are read when their time comes, and events are made one forward at a time, so neither has to
    fit into memory. The same requests and settings give the same events.

    Raises: InputError, while events are read, for a request that can never be served with these settings
        or that is out of order.
    """
    if config.scheduler == "vllm":
        from kvcanary_cli.sim.vllm import VllmScheduler  # deferred: most runs need only one of the two

        return config.header(), VllmScheduler(requests, config, on_step=on_step).events()
    return config.header(), Scheduler(requests, config, on_step=on_step).events()


class Scheduler:
    """One run of the model."""

    def __init__(
        self, requests: Iterable[Request], config: SimConfig, *, on_step: OnStep | None = None
    ) -> None:
        self._config = config
        self._on_step = on_step
        self._arrivals = iter(requests)
        self._next: Request | None = None
        self._last_arrival_s = 0.0
        self._now_s = 0.0
        self._steps = 0
        self._out: list[Event] = []
        self._pool = KvPool(config, self._out)
        # rows are taken from the end of the list, so the highest one goes first
        self._queues = Queues(rows=list(range(1, config.max_running_requests + 1)))
        self._admission = Admission(config, self._pool, self._queues)
        self._forwards = Forwards(config)

    def events(self) -> Iterator[Event]:
        """All events of the run, in order."""
        self._next = self._fetch()
        while self._steps != self._config.max_steps and self._advance():
            yield from self._out
            self._out.clear()
        self._cancel_all()
        if self._config.sweep_interval:
            self._out.append(Sweep())
        yield from self._out

    def _advance(self) -> bool:
        """Run one forward, after a jump to the next arrival if nobody is there; False when all is done."""
        queues = self._queues
        if not (queues.waiting or queues.running or queues.chunked):
            if self._next is None:
                return False
            self._now_s = max(self._now_s, self._next.arrival_s)
        while self._next is not None and self._next.arrival_s <= self._now_s:
            queues.waiting.append(Lane(request=self._next, reach=reach(self._next, self._config.step_tokens)))
            self._next = self._fetch()
        if self._config.mixed_chunk:
            self._make_room()
        riding = list(queues.running) if self._config.mixed_chunk else []
        parts, new = self._admission.pick(riding=len(riding))
        if parts:
            self._prefill(parts, new, riding)
        elif queues.running:
            self._decode()
        else:
            raise PhaseError("the scheduler model is stuck: requests wait and none can run")
        return True

    def _prefill(self, parts: list[Part], new: list[Lane], riding: list[Lane]) -> None:
        for lane in new:
            self._bind(lane)
        for part in parts:
            self._pool.slide_window(part.lane)
            missing = self._pool.pages_for(part.lane.length + part.count) - len(part.lane.pages)
            if missing > 0:
                self._pool.take(part.lane, missing)
        self._out.append(self._forwards.prefill(parts, riding, at_s=self._clock()))
        self._spend(sum(part.count for part in parts), riding)
        for part in parts:
            self._end_part(part)
        self._end_step([1] * len(riding))

    def _end_part(self, part: Part) -> None:
        """Publish what a prefill wrote; a finished prompt has sampled its first token."""
        lane = part.lane
        lane.length += part.count
        if lane is self._queues.chunked:
            self._queues.chunked = None
        if lane.length < lane.goal:
            self._pool.publish(lane, lane.tokens, lane.length)
            self._queues.chunked = lane
            return
        lane.generated += 1
        if lane.is_finished:
            self._finish(lane, "done")
        else:
            self._pool.publish(lane, lane.tokens, lane.length)
            self._queues.running.append(lane)

    def _decode(self) -> None:
        if not self._config.mixed_chunk:
            self._make_room()
        lanes = self._queues.running
        if not lanes:
            return
        if self._config.draft_tokens:
            kept = [self._kept(lane) for lane in lanes]
            self._out.append(self._forwards.verify(lanes, kept, at_s=self._clock()))
        else:
            kept = [1] * len(lanes)
            self._out.append(self._forwards.decode(lanes, at_s=self._clock()))
        self._spend(0, lanes)
        self._end_step(kept)

    def _spend(self, prefill_tokens: int, decoding: list[Lane]) -> None:
        context = sum(lane.length for lane in decoding)
        self._now_s += self._config.costs.step_s(prefill_tokens, len(decoding), context)

    def _end_step(self, kept: list[int]) -> None:
        """What follows a forward: the first `len(kept)` running lanes have so many tokens more."""
        self._steps += 1
        lanes = self._queues.running
        finished = []
        for lane, count in zip(lanes, kept, strict=False):
            lane.length += count
            lane.generated += count
            if lane.is_finished:
                finished.append(lane)
        for lane in finished:
            lanes.remove(lane)
            self._finish(lane, "done")
        if self._config.sweep_interval and self._steps % self._config.sweep_interval == 0:
            self._out.append(Sweep())

    def _make_room(self) -> None:
        """Give each running lane the pages of its next step; while there are too few, retract the newest.

        The retracted lane needs at least the pages that it had, and the others have just taken some of
        them, so it can't come back before one of them ends.
        """
        lanes = self._queues.running
        if self._config.window:
            for lane in lanes:
                self._pool.slide_window(lane)
        # the hot loop of a decode step, so no calls: columns of the step minus columns of the pages
        size, step = self._config.page_size, self._config.step_tokens
        short = [lane.length + step - len(lane.pages) * size for lane in lanes]
        missing = [-(-columns // size) if columns > 0 else 0 for columns in short]
        while sum(missing) > self._pool.room:
            missing.pop()
            self._retract(lanes.pop())
        for lane, count in zip(lanes, missing, strict=True):
            if count:
                self._pool.take(lane, count)

    def _kept(self, lane: Lane) -> int:
        """Tokens of a verify that stay: the last sampled one, and the drafts that are accepted."""
        drafts = drafts_kept(
            lane.rid,
            lane.length,
            drafts=self._config.draft_tokens - 1,
            accept_percent=self._config.accept_percent,
            seed=self._config.seed,
        )
        return min(1 + drafts, lane.request.output_length - lane.generated)

    def _bind(self, lane: Lane) -> None:
        lane.row = self._queues.rows.pop()
        self._queues.waiting.remove(lane)
        self._out.append(Bind(row=lane.row, rid=lane.rid, t=self._clock()))
        if not lane.has_truth:
            lane.has_truth = True
            tokens = lane.tokens.tolist()
            bounds = [*range(0, len(tokens), TRUTH_TOKENS), len(tokens)]
            for at, end in pairwise(bounds):
                self._out.append(Truth(rid=lane.rid, at=at, tokens=tokens[at:end]))
        self._pool.share_prefix(lane)

    def _finish(self, lane: Lane, why: Why) -> None:
        # with window layers, output pages have lost their window slots and are no use to anybody
        if why == "done":
            written = lane.goal if self._config.window else lane.length
            self._pool.publish(lane, lane.tokens, written)
        self._leave(lane, why)

    def _retract(self, lane: Lane) -> None:
        self._leave(lane, "retract")
        self._queues.waiting.insert(0, lane)

    def _leave(self, lane: Lane, why: Why) -> None:
        self._pool.release(lane)
        self._out.append(Unbind(row=lane.row))
        self._out.append(End(rid=lane.rid, why=why, t=self._clock()))
        self._queues.rows.append(lane.row)
        lane.reset()

    def _cancel_all(self) -> None:
        queues = self._queues
        lanes = [*queues.running, *([queues.chunked] if queues.chunked else [])]
        for lane in lanes:
            self._finish(lane, "cancel")

    def _fetch(self) -> Request | None:
        """The next arrival, checked against what the model can serve."""
        request = next(self._arrivals, None)
        if request is None:
            return None
        columns = reach(request, self._config.step_tokens)
        if columns > self._config.row_width:
            raise InputError(
                f"request {request.rid} needs {columns:,} page-table columns, "
                f"a row has {self._config.row_width:,}",
            )
        pages = self._pool.pages_for(columns)
        if pages > self._pool.largest_request:
            raise InputError(
                f"request {request.rid} needs {pages:,} pages of {self._config.page_size:,} slots, "
                f"the pool has {self._pool.largest_request:,}",
            )
        if request.arrival_s < self._last_arrival_s:
            raise InputError(
                f"request {request.rid} arrives at {request.arrival_s} s, after one that arrives at "
                f"{self._last_arrival_s} s",
            )
        self._last_arrival_s = request.arrival_s
        return request

    def _clock(self) -> float:
        """Time of the run in seconds, to the microsecond, which keeps the events short."""
        return round(self._now_s, 6)
