"""The trace events of a run: what the model decides, said in trace v1.

`Recorder` takes pages and lanes, so that slots and token lists are made only where somebody wants them. Of the two
kinds, `Silent` makes nothing: a run that only its facts are wanted of decides the same and costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.forwards import Forwards, Part
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.pages import SlotMath
from kvcanary_cli.trace.events import (
    Alloc,
    Bind,
    End,
    Event,
    Evict,
    Free,
    Map,
    Publish,
    Share,
    SwaMap,
    Sweep,
    Truth,
    Unbind,
)

Why = Literal["done", "cancel", "retract"]

TRUTH_TOKENS = 16_384  # a longer sequence is told in several events, so that no line gets too long


class Recorder:
    """Collects events; `drain` hands them on.

    Attributes:
        now_s: time of the run, which the caller keeps up to date.
    """

    def __init__(self, config: SimConfig) -> None:
        self.now_s = 0.0
        self._config = config
        self._slots = SlotMath(config.page_size)
        self._forwards = Forwards(config)
        self._out: list[Event] = []

    def drain(self) -> list[Event]:
        """The events since the last call."""
        out, self._out = self._out, []
        return out

    def bind(self, lane: Lane) -> None:
        """A lane has got a row; what its tokens really are is told once."""
        self._out.append(Bind(row=lane.row, rid=lane.rid, t=self._clock()))
        if lane.has_truth:
            return
        lane.has_truth = True
        tokens = lane.tokens.tolist()
        for at, end in pairwise([*range(0, len(tokens), TRUTH_TOKENS), len(tokens)]):
            self._out.append(Truth(rid=lane.rid, at=at, tokens=tokens[at:end]))

    def leave(self, lane: Lane, why: Why) -> None:
        """A lane gives its row back."""
        self._out.append(Unbind(row=lane.row))
        self._out.append(End(rid=lane.rid, why=why, t=self._clock()))

    def share(self, lane: Lane, first: int, last: int) -> None:
        """The lane's pages from `first` to `last - 1` are the cache's."""
        slots = self._slots.of_pages(lane.pages[first:last])
        self._out.append(Share(rid=lane.rid, at=first * self._slots.page_size, slots=slots))

    def alloc(self, lane: Lane, pages: Sequence[int], window_pages: Sequence[int] | None) -> None:
        """Pages are handed to a lane, which will append them to its own."""
        slots = self._slots.of_pages(pages)
        self._out.append(Alloc(to=lane.rid, slots=slots))
        if window_pages is not None:
            self._out.append(SwaMap(full=slots, swa=self._slots.of_pages(window_pages)))
        if self._config.map_pages:
            at = len(lane.pages) * self._slots.page_size
            self._out.append(Map(row=lane.row, at=at, slots=slots[: self._config.row_width - at]))

    def free(self, lane: Lane, pages: Sequence[int]) -> None:
        """The lane gives pages up."""
        self._out.append(Free(by=lane.rid, slots=self._slots.of_pages(pages)))

    def evict(self, pages: Sequence[int]) -> None:
        """The cache gives pages up."""
        self._out.append(Evict(slots=self._slots.of_pages(pages)))

    def unmap_window(self, pages: Sequence[int]) -> None:
        """These pages have no window slots any more."""
        slots = self._slots.of_pages(pages)
        self._out.append(SwaMap(full=slots, swa=np.zeros_like(slots)))

    def publish(self, lane: Lane, first: int, last: int) -> None:
        """The cache takes over the lane's pages from `first` to `last - 1`."""
        size = self._slots.page_size
        at, end = first * size, last * size
        event = Publish(rid=lane.rid, at=at, slots=self._slots.of_pages(lane.pages[first:last]))
        if self._config.publish_tokens:
            event.tokens = lane.tokens[at:end].tolist()
        if first:
            event.after = (lane.pages[first - 1] + 1) * size - 1
        self._out.append(event)

    def prefill(self, parts: Sequence[Part], riding: Sequence[Lane]) -> None:
        """A forward with prompts."""
        self._out.append(self._forwards.prefill(parts, riding, at_s=self._clock()))

    def decode(self, lanes: Sequence[Lane]) -> None:
        """A forward with one token of each lane."""
        self._out.append(self._forwards.decode(lanes, at_s=self._clock()))

    def verify(self, lanes: Sequence[Lane], kept: Sequence[int]) -> None:
        """A forward with the drafts of each lane."""
        self._out.append(self._forwards.verify(lanes, kept, at_s=self._clock()))

    def sweep(self) -> None:
        """Everything in the cache is checked."""
        self._out.append(Sweep())

    def _clock(self) -> float:
        """Time of the run in seconds, to the microsecond, which keeps the events short."""
        return round(self.now_s, 6)


class Silent(Recorder):
    """Takes everything and makes nothing."""

    def bind(self, lane: Lane) -> None: ...

    def leave(self, lane: Lane, why: Why) -> None: ...

    def share(self, lane: Lane, first: int, last: int) -> None: ...

    def alloc(self, lane: Lane, pages: Sequence[int], window_pages: Sequence[int] | None) -> None: ...

    def free(self, lane: Lane, pages: Sequence[int]) -> None: ...

    def evict(self, pages: Sequence[int]) -> None: ...

    def unmap_window(self, pages: Sequence[int]) -> None: ...

    def publish(self, lane: Lane, first: int, last: int) -> None: ...

    def prefill(self, parts: Sequence[Part], riding: Sequence[Lane]) -> None: ...

    def decode(self, lanes: Sequence[Lane]) -> None: ...

    def verify(self, lanes: Sequence[Lane], kept: Sequence[int]) -> None: ...

    def sweep(self) -> None: ...
