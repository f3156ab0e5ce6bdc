"""A verify plan of the entries that have to be looked at again, in memory that grows with need."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvcanary_cli.kernels.memory_cpu import NO_WORDS
from kvcanary_cli.runtime.calls import ForwardCall, IntArray
from kvcanary_cli.runtime.changes import count_dirty, plan_dirty

_FIRST_ENTRIES = 1024


class DirtyPlan:
    """Plan entries of dirty cells.

    Attributes:
        slots, tokens, positions, before: [capacity] int64, as in a verify plan.
        cells: [capacity] int64 flat table cell of each entry.
        num: [1] int32 entries that count.
    """

    def __init__(self) -> None:
        self.num = np.zeros(1, np.int32)
        self._reserve(_FIRST_ENTRIES)

    @property
    def count(self) -> int:
        """Entries that count."""
        return int(self.num[0])

    def fill(
        self,
        dirty: npt.NDArray[np.uint64],
        entries: npt.NDArray[np.int32],
        lut: IntArray,
        call: ForwardCall,
        starts: IntArray,
        width: int,
        pool: npt.NDArray[np.int32],
        offset: int,
    ) -> None:
        """Plan the dirty cells of `[starts, prefix)` of each lane."""
        need = int(count_dirty(dirty, width, call.rows, starts, call.prefix))
        if need > self.slots.size:
            self._reserve(2 * need)
        valid_lens = call.valid_lens if call.valid_lens is not None and pool.size else NO_WORDS
        self.num[0] = plan_dirty(
            dirty, entries, lut, call.rows, starts, call.prefix, width, pool, valid_lens, offset,
            self.slots, self.tokens, self.positions, self.before, self.cells,
        )  # fmt: skip

    def _reserve(self, capacity: int) -> None:
        self.slots = np.zeros(capacity, np.int64)
        self.tokens = np.zeros(capacity, np.int64)
        self.positions = np.zeros(capacity, np.int64)
        self.before = np.zeros(capacity, np.int64)
        self.cells = np.zeros(capacity, np.int64)
