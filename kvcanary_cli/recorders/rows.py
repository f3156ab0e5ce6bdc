"""What the recorder knows of one row of the page table while a request has it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kvcanary_cli.recorders.staged import IntArray

_FIRST_ROOM = 256


class Row:
    """A row, its request, its entries, and how many of the request's tokens are written already.

    Attributes:
        number: row of the page table.
        rid: the request's name in the trace; json_name: the same as JSON.
        length: columns that are known.
    """

    __slots__ = ("_entries", "_num_prompt", "_num_told", "json_name", "length", "number", "req", "rid")

    def __init__(self, number: int, req: Any, num_told: int) -> None:
        self.number = number
        self.rid = self.name_of(req)
        self.json_name = json.dumps(self.rid)
        self.length = 0
        self.req = req
        self._num_told = num_told
        self._num_prompt = len(req.origin_input_ids)
        self._entries = np.zeros(_FIRST_ROOM, np.int64)

    @staticmethod
    def name_of(req: Any) -> str:
        """The name in a trace; a few names mean other holders there."""
        rid = str(req.rid)
        return f"rid:{rid}" if not rid or rid == "cache" or rid.startswith("xfer:") else rid

    @classmethod
    def json_name_of(cls, req: Any) -> str:
        """The name as JSON."""
        return json.dumps(cls.name_of(req))

    def slots(self, first: int, end: int) -> IntArray:
        """Entries of columns [first, end); 0 where nothing is known."""
        if end > len(self._entries):
            self._grow(end)
        return self._entries[first:end].copy()

    def put(self, first: int, slots: IntArray) -> None:
        """Entries from column `first` on."""
        end = first + len(slots)
        if end > len(self._entries):
            self._grow(end)
        self._entries[first:end] = slots
        self.length = max(self.length, end)

    def put_one(self, column: int, slot: int) -> None:
        """One entry."""
        if column >= len(self._entries):
            self._grow(column + 1)
        self._entries[column] = slot
        self.length = max(self.length, column + 1)

    def entry(self, column: int) -> int:
        """One entry; 0 where nothing is known."""
        return int(self._entries[column]) if column < len(self._entries) else 0

    def has_new_tokens(self) -> bool:
        """Whether the request has tokens that `new_tokens` did not give yet."""
        return self._num_prompt + len(self.req.output_ids) > self._num_told

    def new_tokens(self) -> tuple[int, IntArray]:
        """The position of the first new token, and all of them; each is given once."""
        at = self._num_told
        tokens = np.array(self.req.output_ids[at - self._num_prompt :], np.int64)
        self._num_told += len(tokens)
        return at, tokens

    def _grow(self, need: int) -> None:
        larger = np.zeros(max(need, 2 * len(self._entries)), np.int64)
        larger[: len(self._entries)] = self._entries
        self._entries = larger


def changed_runs(before: IntArray, now: IntArray) -> list[tuple[int, int]]:
    """Begin and end of each run of elements that differ."""
    differs = np.flatnonzero(before != now)
    if not len(differs):
        return []
    breaks = np.flatnonzero(np.diff(differs) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(differs, breaks)]
