"""KV memory of the vLLM model: a request's blocks, and the trace events that say whose they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.pages import SlotMath
from kvcanary_cli.sim.vllm_blocks import BlockPool, block_keys
from kvcanary_cli.trace.events import Alloc, Event, Evict, Free, Map, Publish, Share
from kvcanary_cli.trace.requests import Request


@dataclass(slots=True, eq=False)
class Served:
    """A request on its way through the model.

    Attributes:
        tokens: [input_length + output_length] int64; nothing before its first admission.
        keys: of its whole blocks, as `block_keys` says.
        row: page-table row, 0 while waiting.
        blocks: of each `page_size` columns that the row has.
        written: tokens in those blocks.
        generated: output tokens sampled so far.
        goal: tokens to compute before the next one is sampled.
        count: tokens of the forward that is being put together.
        shared: leading blocks that the cache holds too.
    """

    request: Request
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    keys: list[int] = field(default_factory=list)
    row: int = 0
    blocks: list[int] = field(default_factory=list)
    written: int = 0
    generated: int = 0
    goal: int = 0
    count: int = 0
    shared: int = 0
    has_truth: bool = False

    @property
    def rid(self) -> str:
        """Name of the request."""
        return self.request.rid

    def reset(self) -> None:
        """Forget row, blocks and progress; what was generated stays known."""
        self.row = self.written = self.count = self.shared = 0
        self.blocks = []


class BlockMemory:
    """The block pool of one run; events are appended to `out`, or not made at all if that is None."""

    def __init__(self, config: SimConfig, out: list[Event] | None) -> None:
        self.page_size = config.page_size
        self.slots = SlotMath(config.page_size)
        self.pool = BlockPool(config.pool_slots // config.page_size - 1)
        self.evicted = 0
        self._config = config
        self._out = out

    @property
    def used(self) -> int:
        """Blocks that requests use."""
        return self.pool.num_blocks - self.pool.room

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.page_size)

    def make_keys(self, lane: Served) -> None:
        """Give a lane the keys of its whole blocks, if blocks can be shared at all."""
        if self._config.prefix_cache and not lane.keys:
            lane.keys = block_keys(lane.tokens, self.page_size)

    def find(self, lane: Served) -> list[int]:
        """Cached blocks of what a waiting lane has to compute; one token at least is left to sample from."""
        return self.pool.find(lane.keys[: (lane.goal - 1) // self.page_size])

    def share(self, lane: Served, found: list[int]) -> None:
        """The admitted lane becomes a user of the blocks that were found."""
        lane.blocks, lane.shared, lane.written = found, len(found), len(found) * self.page_size
        self.pool.use(found)
        if found and self._out is not None:
            self._out.append(Share(rid=lane.rid, at=0, slots=self.slots.of_pages(found)))

    def take(self, lane: Served, count: int) -> None:
        """Hand `count` further blocks to a lane; the caller has seen that there is room."""
        blocks, evicted = self.pool.take(count)
        self.evicted += len(evicted)
        if self._out is not None:
            self._tell_taken(self._out, lane, blocks, evicted)
        lane.blocks += blocks

    def _tell_taken(self, out: list[Event], lane: Served, blocks: list[int], evicted: list[int]) -> None:
        if evicted:
            out.append(Evict(slots=self.slots.of_pages(evicted)))
        slots = self.slots.of_pages(blocks)
        out.append(Alloc(to=lane.rid, slots=slots))
        if self._config.map_pages:
            at = len(lane.blocks) * self.page_size
            out.append(Map(row=lane.row, at=at, slots=slots[: self._config.row_width - at]))

    def publish(self, lane: Served) -> None:
        """Cache the lane's blocks that are full by now.

        A block whose content is cached already gives way to the cached one, where vLLM keeps both.
        """
        full = lane.written // self.page_size
        if not self._config.prefix_cache or full <= lane.shared:
            return
        first = lane.shared
        own = lane.blocks[first:full]
        found = [self.pool.cache(lane.keys[first + n], block) for n, block in enumerate(own)]
        lane.shared = full
        twins = [n for n, block in enumerate(own) if found[n] != block]
        if twins:
            self._adopt(lane, first, found, twins)
        if self._out is None:
            return
        new = [n for n, block in enumerate(own) if found[n] == block]
        for start, end in _runs(new):
            self._publish_run(self._out, lane, first + start, first + end)

    def release(self, lane: Served) -> None:
        """The lane gives up its blocks; what is cached in them can be found until they are handed out again."""
        if lane.blocks and self._out is not None:
            self._out.append(Free(by=lane.rid, slots=self.slots.of_pages(lane.blocks)))
        self.pool.release(lane.blocks)

    def _adopt(self, lane: Served, first: int, found: list[int], twins: list[int]) -> None:
        """Point the row to blocks that were cached before, then give up the lane's own."""
        for start, end in _runs(twins):
            given_up = lane.blocks[first + start : first + end]
            lane.blocks[first + start : first + end] = found[start:end]
            self.pool.use(found[start:end])
            if self._out is not None:
                at = (first + start) * self.page_size
                self._out.append(Share(rid=lane.rid, at=at, slots=self.slots.of_pages(found[start:end])))
                self._out.append(Free(by=lane.rid, slots=self.slots.of_pages(given_up)))
            self.pool.release(given_up)

    def _publish_run(self, out: list[Event], lane: Served, first: int, last: int) -> None:
        at, end = first * self.page_size, last * self.page_size
        out.append(
            Publish(
                rid=lane.rid,
                at=at,
                slots=self.slots.of_pages(lane.blocks[first:last]),
                tokens=lane.tokens[at:end].tolist() if self._config.publish_tokens else None,
                after=(lane.blocks[first - 1] + 1) * self.page_size - 1 if first else None,
            )
        )


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs, first and one after the last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
