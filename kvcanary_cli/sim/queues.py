"""Where the requests of a run are, and in which order the waiting ones are looked at."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import Any

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.pool import KvPool
from kvcanary_cli.sim.prefix import PrefixTree

MATCHED_AT_MOST = 128  # with more waiting, SGLang serves first come first served instead of by cached prefix
SAME_START = 32  # tokens that a prompt shares with another waiting one, so that it had better come after it


class Waiting:
    """Requests without a row, the next one last: that end of a list is cheap to take from."""

    def __init__(self, config: SimConfig) -> None:
        self._config = config
        self._entries = 0
        self._lanes: list[Lane] = []

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, lane: Lane) -> None:
        """A request arrives, or comes back: behind all that are not worse off by the policy."""
        self._entries += 1
        lane.queued = self._entries
        insort(self._lanes, lane, key=self._rank)

    def in_order(self, pool: KvPool) -> Iterable[Lane]:
        """The waiting requests as they are looked at now; none may be added meanwhile."""
        if self._config.policy == "lpm" and self._config.prefix_cache and len(self) <= MATCHED_AT_MOST:
            return self._by_prefix(pool)
        return reversed(self._lanes)

    def remove(self, lanes: Sequence[Lane]) -> None:
        """These have been admitted."""
        count = len(lanes)
        if self._lanes[-1 : -count - 1 : -1] == list(lanes):
            del self._lanes[-count:]
        else:
            gone = set(map(id, lanes))
            self._lanes = [lane for lane in self._lanes if id(lane) not in gone]

    def _rank(self, lane: Lane) -> tuple[int, int, int]:
        """Greater is served earlier."""
        return (
            -lane.request.priority if self._config.priorities else 0,
            lane.asked if self._config.policy == "lof" else 0,
            -lane.queued,
        )

    def _by_prefix(self, pool: KvPool) -> list[Lane]:
        """Longest cached prefix first; of several that only share a start with each other, the first one alone.

        The others find that start in the cache when they are looked at again.
        """
        seen = PrefixTree(1)
        ranks: dict[int, int] = {}
        for lane in reversed(self._lanes):
            tokens = lane.start(seed=self._config.seed)[: lane.goal]
            ranks[id(lane)] = -pool.cached_tokens(lane)
            if -ranks[id(lane)] <= SAME_START:
                if len(seen.match(tokens, len(tokens))[0]) >= SAME_START:
                    ranks[id(lane)] = 1
                else:
                    seen.insert(tokens, [0] * len(tokens))
        return sorted(self._lanes, key=lambda lane: (ranks[id(lane)], lane.queued))


class Queues:
    """Where every request of the run is.

    Attributes:
        waiting: requests without a row.
        chunked: the one lane whose prompt is partly done.
        running: lanes that decode, in the order in which they stand in the batch.
        rows: free page-table rows; the next one is taken from the end, as in SGLang.
        is_full: whether admission rests until a running request leaves, because memory or rows had run out.
    """

    def __init__(self, config: SimConfig) -> None:
        self.waiting = Waiting(config)
        self.chunked: Lane | None = None
        self.running: list[Lane] = []
        # the highest row goes first
        self.rows = list(range(1, config.max_running_requests + 1))
        self.is_full = False


def retraction_order(lanes: Sequence[Lane], *, priorities: bool) -> list[Lane]:
    """Running lanes, those to keep first: most output, then the shorter prompt; priority before both if it counts."""

    def key(lane: Lane) -> tuple[Any, ...]:
        request = lane.request
        return (-request.priority if priorities else 0, lane.generated, -request.input_length)

    return sorted(lanes, key=key, reverse=True)
