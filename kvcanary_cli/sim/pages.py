"""The free list of a paged pool: which page is handed out next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import numpy as np


class PageList:
    """Free pages in the order in which they will be handed out; page 0 is never among them.

    SGLang 0.5.23 recycles whole pages at once (freed pages go to the front), but single slots last
    (page size 1: freed slots go to the back); `page_size` selects between the two.
    """

    def __init__(self, *, slots: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = slots // page_size - 1
        self._free: deque[int] = deque(range(1, self.num_pages + 1))

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """The next `count` pages; the caller has seen that there are as many."""
        pages = list(islice(self._free, count))
        for _ in pages:
            self._free.popleft()
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        """These pages are free again."""
        if self.page_size == 1:
            self._free.extend(pages)
        else:
            self._free.extendleft(reversed(pages))


class SlotMath:
    """Slots of pages: `slot = page * page_size + offset`."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._offsets = np.arange(page_size, dtype=np.int64)

    def of_pages(self, pages: Sequence[int]) -> np.ndarray:
        """Every slot of these pages, page by page, int64."""
        first = np.array(pages, dtype=np.int64)
        if self.page_size == 1:
            return first
        return (first[:, None] * self.page_size + self._offsets).ravel()

    def of_columns(self, pages: Sequence[int], first: int, last: int) -> np.ndarray:
        """Slots of positions `first` to `last - 1` of a request that has `pages`, int64."""
        size = self.page_size
        from_page = first // size
        slots = self.of_pages(pages[from_page : -(-last // size)])
        return slots[first - from_page * size : last - from_page * size]
