"""KV memory of the model: who gets which pages.

Every change of ownership goes through here, in the order in which an engine does it: a row is pointed to
the cache's slots before the duplicates are released, and slots are released before a row is given up.
With window layers, each page has a page of the window pool until it leaves the window or is freed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.pages import PageList
from kvcanary_cli.sim.prefix import PrefixTree
from kvcanary_cli.sim.record import Recorder


class KvPool:
    """Page lists, prefix tree and window map of one run; `record` is told of every change.

    Attributes:
        hit_tokens: prompt tokens of admitted requests that were found in the cache.
        evicted_slots: slots that the cache has given up.
    """

    def __init__(self, config: SimConfig, record: Recorder) -> None:
        self.page_size = config.page_size
        self.hit_tokens = 0
        self.evicted_slots = 0
        self._config = config
        self._record = record
        self._free = PageList(slots=config.pool_slots, page_size=config.page_size)
        self._tree = PrefixTree(config.page_size) if config.prefix_cache else None
        self._window_free: PageList | None = None
        if config.window:
            self._window_free = PageList(slots=config.window_slots, page_size=config.page_size)
        self._window_page = np.zeros(self._free.num_pages + 1, dtype=np.int64)

    @property
    def largest_request(self) -> int:
        """Pages that a request can have when it is alone."""
        if self._window_free is None:
            return self._free.num_pages
        return min(self._free.num_pages, self._window_free.num_pages)

    @property
    def room(self) -> int:
        """Pages that can be had without taking any from a request."""
        free = len(self._free)
        if self._window_free is not None:
            free = min(free, len(self._window_free))
        return free + (self._tree.evictable if self._tree else 0)

    @property
    def used_slots(self) -> int:
        """Slots that are not free."""
        return (self._free.num_pages - len(self._free)) * self.page_size

    @property
    def cached_slots(self) -> int:
        """Slots that the prefix cache holds."""
        return self._tree.cached * self.page_size if self._tree else 0

    @property
    def request_slots(self) -> int:
        """Slots that requests hold, shared ones counted once."""
        return self.used_slots - (self._tree.evictable * self.page_size if self._tree else 0)

    @property
    def used_window_slots(self) -> int:
        """Window slots that are not free."""
        window = self._window_free
        return (window.num_pages - len(window)) * self.page_size if window else 0

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_size)

    def cached_tokens(self, lane: Lane) -> int:
        """How many tokens of a waiting lane would be found now."""
        if self._tree is None:
            return 0
        return len(self._tree.match(lane.tokens, (lane.goal - 1) // self.page_size)[0]) * self.page_size

    def find_prefix(self, lane: Lane, tokens: np.ndarray) -> None:
        """Lock the longest cached prefix for a lane without pages and note it there; no event yet.

        At least one token is left to compute, because a forward has to sample from something.
        """
        if self._tree is not None:
            lane.pages, lane.node = self._tree.match(tokens, (lane.goal - 1) // self.page_size)
            self._tree.lock(lane.node)
            lane.shared = lane.window_done = len(lane.pages)
            lane.length = lane.shared * self.page_size

    def forget_prefix(self, lane: Lane) -> None:
        """Undo `find_prefix` for a lane that is not admitted after all."""
        self._unlock(lane)
        lane.reset()

    def share_prefix(self, lane: Lane) -> None:
        """The admitted lane becomes a holder of the prefix that was found."""
        if lane.shared:
            self.hit_tokens += lane.length
            self._record.share(lane, 0, lane.shared)

    def make_free(self, count: int) -> None:
        """Evict until so many pages are free, or nothing is left to evict."""
        while self._is_short(count) and self._evict_leaf():
            pass

    def take(self, lane: Lane, count: int) -> None:
        """Allocate `count` further pages to a lane; the caller has seen that there is room."""
        self.make_free(count)
        if self._is_short(count):
            raise PhaseError(f"{count} pages were taken from a pool with room for {self.room}")
        pages = self._free.take(count)
        window_pages = None
        if self._window_free is not None:
            window_pages = self._window_free.take(count)
            self._window_page[pages] = window_pages
        self._record.alloc(lane, pages, window_pages)
        lane.pages += pages

    def publish(self, lane: Lane, tokens: np.ndarray, written: int) -> None:
        """Offer the whole pages among the lane's first `written` tokens to the prefix cache.

        What the cache has for these tokens already replaces the lane's own pages.
        """
        count = written // self.page_size
        if self._tree is None or count <= lane.shared:
            return
        found, node = self._tree.insert(tokens, lane.pages[:count])
        if len(found) > lane.shared:
            self._adopt(lane, found)
        if count > len(found):
            self._record.publish(lane, len(found), count)
        self._tree.lock(node)
        self._unlock(lane)
        lane.node, lane.shared = node, count
        lane.window_done = max(lane.window_done, count)

    def release(self, lane: Lane) -> None:
        """The lane gives up every page it holds; what the cache holds too stays there."""
        own = lane.pages[lane.shared :]
        if own:
            self._record.free(lane, own)
            self._recycle(own)
        if lane.shared:
            self._record.free(lane, lane.pages[: lane.shared])
        self._unlock(lane)

    def slide_window(self, lane: Lane) -> None:
        """Unmap the window slots that the lane's next forward can't reach any more.

        Pages that the cache holds keep theirs: a later request may continue right behind them.
        """
        if self._window_free is None:
            return
        done = max(0, lane.length - self._config.window) // self.page_size
        if done > lane.window_done:
            self._unmap_window(lane.pages[lane.window_done : done])
            lane.window_done = done

    def _adopt(self, lane: Lane, found: list[int]) -> None:
        """Point the row to the cache's pages, then give up the duplicates."""
        first, last = lane.shared, len(found)
        own = lane.pages[first:last]
        lane.pages[first:last] = found[first:]
        self._record.share(lane, first, last)
        self._record.free(lane, own)
        self._recycle(own)

    def _is_short(self, count: int) -> bool:
        window = self._window_free
        return len(self._free) < count or (window is not None and len(window) < count)

    def _evict_leaf(self) -> bool:
        pages = self._tree.evict_leaf() if self._tree is not None else []
        if not pages:
            return False
        self._record.evict(pages)
        self._recycle(pages)
        self.evicted_slots += len(pages) * self.page_size
        return True

    def _recycle(self, pages: Sequence[int]) -> None:
        """Nobody holds these pages any more."""
        self._free.give_back(pages)
        self._unmap_window(pages)

    def _unmap_window(self, pages: Sequence[int]) -> None:
        if self._window_free is None:
            return
        mapped = [page for page in pages if self._window_page[page]]
        if mapped:
            window_pages = self._window_page[mapped].tolist()
            self._window_page[mapped] = 0
            self._record.unmap_window(mapped)
            self._window_free.give_back(window_pages)

    def _unlock(self, lane: Lane) -> None:
        if self._tree is not None and lane.node is not None:
            self._tree.unlock(lane.node)
            lane.node = None
