"""The SGLang model: requests in, trace events out.

It batches as SGLang 0.5.23 does: prompts before decodes, long prompts in chunks, admission inside two token budgets
and the pool's room, running requests retracted when the pool is full. What is simpler: no forward overlaps with the
work of the host, so a request leaves as soon as its last token is there; a request that is alone is served if
the pool holds it, where SGLang may wait for ever; and a prompt in progress waits for pages instead of failing.

A request without output (an embedding, a call that failed) is a prompt and no more: it ends with the forward that
completes it, and its prompt is cached like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.sim.admission import Admission
from kvcanary_cli.sim.arrivals import Arrivals
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.facts import Mode, OnStep, StepFacts
from kvcanary_cli.sim.forwards import Part, padded
from kvcanary_cli.sim.lanes import Lane, check_fits, reach
from kvcanary_cli.sim.pool import KvPool
from kvcanary_cli.sim.queues import Queues, retraction_order
from kvcanary_cli.sim.record import Recorder, Silent, Why
from kvcanary_cli.sim.reserve import RETRACT_STEPS, OutputShare
from kvcanary_cli.sim.tokens import drafts_kept
from kvcanary_cli.trace.events import Event
from kvcanary_cli.trace.requests import Request


class SglangScheduler:
    """One run of the model.

    Args:
        requests: in order of arrival.
        on_step: gets the facts of each forward as it is launched.
        events: False makes no events; all decisions are the same.
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
        self._steps = self._finished = self._retracted = 0
        self._record = Recorder(config) if events else Silent(config)
        self._pool = KvPool(config, self._record)
        self._queues = Queues(config)
        self._share = OutputShare(config.conservativeness)
        self._admission = Admission(config, self._pool, self._queues, self._give_up)
        self._graph_lanes = sorted(config.graph_lanes)

    def events(self) -> Iterator[Event]:
        """All events of the run, in order."""
        while self._steps != self._config.max_steps and self._advance():
            yield from self._record.drain()
        queues = self._queues
        for lane in [*queues.running, *([queues.chunked] if queues.chunked else [])]:
            self._leave(lane, "cancel")
        if self._config.sweep_interval:
            self._record.sweep()
        yield from self._record.drain()

    def _advance(self) -> bool:
        """Run one forward, after a jump to the next arrival if nobody is there; False when all is done."""
        queues = self._queues
        if not (queues.waiting or queues.running or queues.chunked):
            next_s = self._arrivals.next_s()
            if next_s is None:
                return False
            self._now_s = max(self._now_s, next_s)
            self._share.reset()
        self._record.now_s = self._now_s
        for _, request in self._arrivals.due(self._now_s):
            queues.waiting.add(self._lane(request))
        riding = len(queues.running) if self._config.mixed_chunk else 0
        picked = self._admission.pick(share=self._share.now, riding=riding)
        for lane in picked.preempted:
            queues.waiting.add(lane)
        if picked.parts:
            self._prefill(picked.parts, picked.new)
        elif queues.running:
            self._decode()
        else:
            raise PhaseError("the scheduler model is stuck: requests wait and none can run")
        return True

    def _prefill(self, parts: list[Part], new: list[Lane]) -> None:
        """A forward with prompts, and with the decode lanes too if they may ride along and find room."""
        pool, running = self._pool, self._queues.running
        for lane in new:
            lane.row = self._queues.rows.pop()
            self._record.bind(lane)
            pool.share_prefix(lane)
        for part in parts:
            pool.slide_window(part.lane)
        missing = [pool.pages_for(part.lane.length + part.count) - len(part.lane.pages) for part in parts]
        pool.make_free(sum(missing))
        for part, count in zip(parts, missing, strict=True):
            if count > 0:
                pool.take(part.lane, count)
        riding: list[Lane] = []
        if self._config.mixed_chunk and self._take_for_decode(running):
            riding = running
        self._launch("mixed" if riding else "extend", parts, riding, [1] * len(riding))
        self._record.prefill(parts, riding)
        self._spend(parts, riding)
        self._queues.running = []
        for part in parts:
            self._end_part(part)
        if riding:
            # prompts stand before the decodes that rode with them, behind those that did not
            self._end_decode(riding, [1] * len(riding))
        else:
            self._queues.running = running + self._queues.running
        self._end_step()

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
            self._finish(lane)
        else:
            self._pool.publish(lane, lane.tokens, lane.length)
            self._queues.running.append(lane)

    def _decode(self) -> None:
        """A forward of all running lanes, as many as the pool holds."""
        if self._take_for_decode(self._queues.running):
            self._share.sink()
        else:
            self._retract_until_it_fits()
        lanes = self._queues.running
        if not lanes:
            return  # all room is with the half-done prompt, which goes on next
        if self._config.draft_tokens:
            kept = [self._kept(lane) for lane in lanes]
            self._launch("verify", [], lanes, kept)
            self._record.verify(lanes, kept)
        else:
            kept = [1] * len(lanes)
            self._launch("decode", [], lanes, kept)
            self._record.decode(lanes)
        self._spend([], lanes)
        self._queues.running = []
        self._end_decode(lanes, kept)
        self._end_step()

    def _take_for_decode(self, lanes: list[Lane]) -> bool:
        """Give each lane the pages of its next step, or none of them any if the pool has too few."""
        if self._config.window:
            for lane in lanes:
                self._pool.slide_window(lane)
        # the hot loop of a decode step, so no calls: columns of the step minus columns of the pages
        size, step = self._config.page_size, self._config.step_tokens
        short = [
            (lane, columns) for lane in lanes if (columns := lane.length + step - len(lane.pages) * size) > 0
        ]
        if not short:
            return True
        missing = [-(-columns // size) for _, columns in short]
        if sum(missing) > self._pool.room:
            return False
        for (lane, _), count in zip(short, missing, strict=True):
            self._pool.take(lane, count)
        return True

    def _retract_until_it_fits(self) -> None:
        """Put running lanes back to the queue until the others find room for their next step."""
        queues = self._queues
        order = retraction_order(queues.running, priorities=self._config.retraction == "priority")
        is_first = True
        while is_first or not self._take_for_decode(order):
            is_first = False
            if len(order) == 1:
                raise PhaseError(
                    "the scheduler model is stuck: the only request has no room for its next token"
                )
            lane = order.pop()
            self._give_up(lane)
            self._pool.make_free(self._pool.pages_for(len(order) * RETRACT_STEPS))
            queues.waiting.add(lane)
        queues.running = order
        queues.is_full = False
        self._share.estimate(order)

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

    def _spend(self, parts: list[Part], decoding: list[Lane]) -> None:
        """The clock goes on by the forward's cost."""
        context = sum([lane.length for lane in decoding])
        prompts = sum([part.count for part in parts])
        self._now_s += self._config.costs.step_s(prompts, len(decoding), context)
        self._record.now_s = self._now_s

    def _end_decode(self, lanes: list[Lane], kept: list[int]) -> None:
        """Each lane has so many tokens more; those that aren't finished go on running."""
        running = self._queues.running
        for lane, count in zip(lanes, kept, strict=True):
            lane.length += count
            lane.generated += count
            if lane.generated >= lane.request.output_length:
                self._finish(lane)
            else:
                running.append(lane)

    def _end_step(self) -> None:
        self._steps += 1
        if self._config.sweep_interval and self._steps % self._config.sweep_interval == 0:
            self._record.sweep()

    def _finish(self, lane: Lane) -> None:
        # with window layers, output pages have lost their window slots and are no use to anybody
        written = lane.goal if self._config.window else lane.length
        self._pool.publish(lane, lane.tokens, written)
        self._leave(lane, "done")
        self._finished += 1
        self._queues.is_full = False
        self._arrivals.end(lane.rid, self._now_s)

    def _give_up(self, lane: Lane) -> None:
        """Take row and pages from a running lane, which will be served from the start again."""
        self._retracted += 1
        self._leave(lane, "retract")

    def _leave(self, lane: Lane, why: Why) -> None:
        self._pool.release(lane)
        self._record.leave(lane, why)
        self._queues.rows.append(lane.row)
        lane.reset()

    def _launch(self, mode: Mode, parts: list[Part], decoding: list[Lane], kept: list[int]) -> None:
        """Tell the observer about the forward that starts now."""
        if self._on_step is None:
            return
        config, pool, queues = self._config, self._pool, self._queues
        prompts = sum([part.count for part in parts])
        lengths = [part.lane.length for part in parts]
        contexts = [lane.length for lane in decoding]
        context, width = sum(contexts), len(decoding)
        if not parts:
            width = padded(self._graph_lanes, width)
        sampling = [part.lane for part in parts if part.lane.length + part.count == part.lane.goal]
        riders = 0 if mode == "mixed" else len(queues.running) if parts else 0
        self._on_step(
            StepFacts(
                step=self._steps,
                time_s=self._now_s,
                seconds=config.costs.step_s(prompts, len(decoding), context),
                mode=mode,
                lanes=len(parts) + len(decoding),
                width=len(parts) + width,
                decode_lanes=len(decoding),
                tokens=prompts + len(decoding) * (config.step_tokens if mode == "verify" else 1),
                prefill_tokens=prompts,
                context_tokens=context,
                verify_entries=sum(lengths) + context,
                window_entries=sum([min(length, config.window) for length in lengths + contexts]),
                running=len(parts) + len(decoding) + riders + self._is_parked(parts),
                waiting=len(queues.waiting),
                used_slots=pool.used_slots,
                cached_slots=pool.cached_slots,
                used_window_slots=pool.used_window_slots,
                hit_tokens=pool.hit_tokens,
                evicted_slots=pool.evicted_slots,
                retracted=self._retracted,
                finished=self._finished,
                request_slots=pool.request_slots,
                sampled_tokens=sum([lane.request.output_length > 0 for lane in sampling]) + sum(kept),
                prompted_tokens=sum([lane.request.input_length for lane in sampling if not lane.generated]),
            )
        )

    def _is_parked(self, parts: list[Part]) -> bool:
        """Whether a half-done prompt is not in this forward."""
        chunked = self._queues.chunked
        return chunked is not None and all(part.lane is not chunked for part in parts)

    def _lane(self, request: Request) -> Lane:
        """An arrival, checked against what the model can serve."""
        columns = reach(request, self._config.step_tokens)
        check_fits(request, columns, self._config, largest=self._pool.largest_request)
        return Lane(
            request=request,
            reach=columns,
            asked=max(self._config.max_new_tokens or 0, request.output_length),
        )
