"""Tokens that requests are known to have, by request and by table row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

UNKNOWN = -1


class ExpectedTokens:
    """`truth` of each request and the pool that the token check reads.

    Attributes:
        pool: [num_rows, width] int32, what each bound row is expected to hold; allocated at the first truth.
        row_lens: [num_rows] int64, columns of each row below this one may hold an expected token.
        changed: (row, start, stop) written since a device last fetched them; None when no device asks.
        on_change: called with (row, start, stop) at each change; None when nobody asks.
    """

    def __init__(self, num_rows: int, width: int, *, track_changes: bool = False) -> None:
        self._shape = (num_rows, width)
        self._most = 2 * width + 1024
        self._truth: dict[str, npt.NDArray[np.int32]] = {}
        self._length: dict[str, int] = {}
        self.pool: npt.NDArray[np.int32] | None = None
        self.row_lens = np.zeros(num_rows, np.int64)
        self.changed: list[tuple[int, int, int]] | None = [] if track_changes else None
        self.on_change: Callable[[int, int, int], None] | None = None

    @property
    def is_used(self) -> bool:
        """Whether any truth was ever given."""
        return self.pool is not None

    def set(self, rid: str, at: int, tokens: npt.NDArray[np.int64], row: int | None) -> None:
        """The tokens of `rid` from position `at` on; `row` is the request's row if it has one."""
        if self.pool is None:
            self.pool = np.full(self._shape, UNKNOWN, np.int32)
        # no row reaches further: a token at position 2 billion is not worth 8 GB
        tokens = tokens[: max(0, self._most - at)]
        if not tokens.size:
            return
        stop = at + tokens.size
        held = self._truth.get(rid)
        length = self._length.get(rid, 0)
        if held is None or stop > held.size:
            grown = np.full(max(stop, 2 * length, 64), UNKNOWN, np.int32)
            if held is not None:
                grown[:length] = held[:length]
            self._truth[rid] = held = grown
        held[at:stop] = tokens
        self._length[rid] = max(length, stop)
        if row is not None:
            self._copy(rid, row, min(at, length), stop)

    def place(self, rid: str, row: int) -> None:
        """`rid` now uses `row`: its known tokens go there."""
        self.row_lens[row] = 0
        if rid in self._truth:
            self._copy(rid, row, 0, self._length[rid])

    def clear_row(self, row: int) -> None:
        """The row has no request: nothing is expected of it."""
        self.row_lens[row] = 0

    def clear_rows(self) -> None:
        """Whose the rows are is not known: nothing is expected of any until a `bind` or `truth` tells."""
        self.row_lens[:] = 0

    def forget(self, rid: str) -> None:
        """A new request takes this name."""
        self._truth.pop(rid, None)
        self._length.pop(rid, None)

    def length(self, rid: str | None) -> int:
        """Positions of `rid` below this one may have known tokens."""
        return self._length.get(rid, 0) if rid is not None else 0

    def tokens(self, rid: str | None, start: int, stop: int) -> npt.NDArray[np.int32]:
        """[stop - start] int32, UNKNOWN where nothing is known."""
        out = np.full(max(stop - start, 0), UNKNOWN, np.int32)
        held = self._truth.get(rid) if rid is not None else None
        if held is not None:
            known = held[start : min(stop, self._length[rid])] if rid is not None else held[:0]
            out[: known.size] = known
        return out

    def _copy(self, rid: str, row: int, start: int, stop: int) -> None:
        if self.pool is None:
            return
        stop = min(stop, self._shape[1])
        if stop > start:
            self.pool[row, start:stop] = self._truth[rid][start:stop]
            self.row_lens[row] = max(self.row_lens[row], stop)
            if self.changed is not None:
                self.changed.append((row, start, stop))
            if self.on_change is not None:
                self.on_change(row, start, stop)
