"""The `forward` event of a batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.facts import Mode
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.pages import SlotMath
from kvcanary_cli.sim.tokens import draft_token
from kvcanary_cli.trace.events import Forward


@dataclass(frozen=True, slots=True)
class Part:
    """`count` further prompt tokens of a lane in one forward."""

    lane: Lane
    count: int


def padded(graph_lanes: Sequence[int], lanes: int) -> int:
    """Lanes of the smallest captured graph that holds so many, given in rising order; without one the same number."""
    at = bisect_left(graph_lanes, lanes)
    return graph_lanes[at] if at < len(graph_lanes) else lanes


class Forwards:
    """Builds forward events for one run."""

    def __init__(self, config: SimConfig) -> None:
        self._config = config
        self._slots = SlotMath(config.page_size)
        self._graph_lanes = sorted(config.graph_lanes)

    def prefill(self, parts: Sequence[Part], riding: Sequence[Lane], *, at_s: float) -> Forward:
        """Prompt tokens of `parts`, then one token of each decode lane that rides along."""
        lanes = [part.lane for part in parts]
        counts = [part.count for part in parts]
        forward = self._base("mixed" if riding else "extend", [*lanes, *riding], at_s)
        forward.lens = [*counts, *(1 for _ in riding)]
        if not self._config.map_pages:
            ranges = zip(lanes, counts, strict=True)
            pieces = [self._columns(lane, count) for lane, count in ranges]
            forward.slots = np.concatenate([*pieces, self._next_slots(riding)])
        if self._config.expect_tokens:
            forward.expect = _true_tokens(zip([*lanes, *riding], forward.lens, strict=True))
        return forward

    def decode(self, lanes: Sequence[Lane], *, at_s: float) -> Forward:
        """One token of each lane, padded to the next captured graph."""
        forward = self._base("decode", lanes, at_s)
        self._pad(forward)
        if not self._config.map_pages:
            forward.slots = self._next_slots(lanes)
        if self._config.expect_tokens:
            forward.expect = _true_tokens((lane, 1) for lane in lanes)
        return forward

    def verify(self, lanes: Sequence[Lane], kept: Sequence[int], *, at_s: float) -> Forward:
        """The last sampled token and the drafts of each lane, of which the first `kept` stay; padded as a decode."""
        count = self._config.draft_tokens
        forward = self._base("verify", lanes, at_s)
        self._pad(forward)
        forward.lens = [count] * len(lanes)
        drafts = (self._drafts(lane, keep) for lane, keep in zip(lanes, kept, strict=True))
        forward.tokens = list(chain.from_iterable(drafts))
        forward.accepted = list(kept)
        if not self._config.map_pages:
            forward.slots = np.concatenate([self._columns(lane, count) for lane in lanes])
        if self._config.expect_tokens:
            forward.expect = forward.tokens
        return forward

    def _base(self, mode: Mode, lanes: Sequence[Lane], at_s: float) -> Forward:
        rows = [lane.row for lane in lanes]
        return Forward(mode=mode, rows=rows, prefix=[lane.length for lane in lanes], t=at_s)

    def _pad(self, forward: Forward) -> None:
        width = padded(self._graph_lanes, len(forward.rows))
        if width > len(forward.rows):
            forward.width = width

    def _columns(self, lane: Lane, count: int) -> np.ndarray:
        return self._slots.of_columns(lane.pages, lane.length, lane.length + count)

    def _next_slots(self, lanes: Sequence[Lane]) -> np.ndarray:
        size = self._config.page_size
        slots = [lane.pages[lane.length // size] * size + lane.length % size for lane in lanes]
        return np.array(slots, dtype=np.int64)

    def _drafts(self, lane: Lane, keep: int) -> list[int]:
        """Input tokens of one lane of a verify: true ones as far as they are kept, then wrong guesses."""
        known = lane.tokens[lane.length : lane.length + self._config.draft_tokens].tolist()
        guesses = [
            draft_token(
                lane.rid,
                lane.length + index,
                true_token=known[index] if index < len(known) else -1,
                seed=self._config.seed,
            )
            for index in range(keep, self._config.draft_tokens)
        ]
        return known[:keep] + guesses


def _true_tokens(parts: Iterable[tuple[Lane, int]]) -> list[int]:
    tokens: list[int] = []
    for lane, count in parts:
        tokens += lane.tokens[lane.length : lane.length + count].tolist()
    return tokens
