"""What a replay knows between two events: rows, requests, cache content, host copies, transfers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvcanary_cli.replay.cache import CacheEntries
from kvcanary_cli.runtime.calls import HostCopy, IntArray
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.layout import Layout
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.trace.tokens import fnv1a64


@dataclass(slots=True)
class Transfer:
    """A remote delivery under way: where it is addressed to."""

    rid: str | None
    slots: IntArray
    group: str


@dataclass(slots=True)
class RunState:
    """Host-side memory of one replay; the runtime reads `table`, `swa_map` and `expected`."""

    layout: Layout
    table: PageTable
    expected: ExpectedTokens
    swa_map: IntArray
    cache: CacheEntries
    host: dict[str, HostCopy] = field(default_factory=dict)
    transfers: dict[str, Transfer] = field(default_factory=dict)
    pending_maps: dict[str, list[tuple[int, IntArray]]] = field(default_factory=dict)
    known_slots: dict[str, np.ndarray] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    _name_hashes: dict[str | None, int] = field(default_factory=dict)

    def name_hash(self, rid: str | None) -> int:
        """FNV-1a of a request's name; of the empty name for a row without request."""
        if rid not in self._name_hashes:
            self._name_hashes[rid] = fnv1a64(rid or "")
        return self._name_hashes[rid]

    @property
    def has_gap(self) -> bool:
        """Whether part of the memory is unknown since a gap."""
        return bool(self.known_slots)

    def lose_history(self) -> None:
        """A gap: everything in memory is unknown until it is written or mapped again."""
        self.table.lose_history()
        self.expected.clear_rows()
        self.cache.clear()
        for group in self.layout.groups:
            self.known_slots[group.kind] = np.zeros(group.num_slots, np.bool_)

    def mark_known(self, group: str, slots: IntArray) -> None:
        """Bytes and stamps of these slots were written since the last gap."""
        known = self.known_slots.get(group)
        if known is not None:
            known[slots[(slots >= 0) & (slots < known.size)]] = True

    def end_request(self, rid: str) -> None:
        """A request ended for good: the next one of this name is another one.

        What it was known to hold lasts as long as its row: forwards of it may still be under way.
        """
        self.pending_maps.pop(rid, None)
        self.ended.add(rid)
        if rid not in self.table.rid_row:
            self.begin_request(rid)

    def begin_request(self, rid: str) -> None:
        """The name is free, or used again: forget the request that had it, if that one ended."""
        if rid in self.ended:
            self.ended.discard(rid)
            self.expected.forget(rid)
            self._name_hashes.pop(rid, None)


def new_state(layout: Layout, *, track_changes: bool) -> RunState:
    """Fresh memory of a run; `track_changes` when a device keeps copies of table and expected tokens."""
    swa_map = np.zeros(layout.num_slots, np.int64)
    return RunState(
        layout=layout,
        table=PageTable(layout.num_rows, layout.row_width, track_changes=track_changes),
        expected=ExpectedTokens(layout.num_rows, layout.row_width, track_changes=track_changes),
        swa_map=swa_map,
        cache=CacheEntries(layout.num_slots),
    )
