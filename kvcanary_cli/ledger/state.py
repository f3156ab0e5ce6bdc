"""What all parts of the ledger share: slots, names, breaches, and the replay's tables that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import BreachLog
from kvcanary_cli.ledger.names import Names
from kvcanary_cli.ledger.records import CACHE, End, IntArray, Mark
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.writes_jit import judge_writes
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.trace.header import Header

Truth = Callable[[str, int, int], Any]
Book = tuple[Any, Any, Any, Any]

MarkOf = Callable[[int], Mark | None]

MOST_LISTED = 256  # numbers that a fact lists at most
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Part:
    """Slots that the same holders have and that share a mark."""

    holders: tuple[str, ...]
    mark: Mark | None
    slots: IntArray


def no_mark(slot: int) -> Mark | None:
    """Parts by holders alone."""
    return None


@dataclass(slots=True)
class LedgerState:
    """One ledger's memory.

    Attributes:
        header: of the trace.
        page: the replay's page table; swa_map: its window map, [num_slots] int64. Both are only read.
        truth: known tokens of a request at positions `[start, stop)`, -1 where unknown.
        names, log: see there.
        full: slots that rows name; window: those of the window pool that a map leads to, None without a map.
        tables: both by the group's name; a lone group answers to either name.
        ended: how each request ended last.
        unwritten_reads: slots that a request read before anything was written there: request, step, epoch.
        ghosts: slots that the cache gave up or lost while it kept its entry.
        lists_pages: whether the trace's allocator lists every slot of a page; None: not seen yet.
    """

    header: Header
    page: PageTable
    swa_map: IntArray
    truth: Truth
    names: Names
    log: BreachLog
    full: SlotTable
    window: SlotTable | None
    tables: dict[str, SlotTable]
    ended: dict[str, End] = field(default_factory=dict)
    unwritten_reads: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    ghosts: set[int] = field(default_factory=set)
    lists_pages: bool | None = None

    def book(self, table: SlotTable) -> Book:
        """The arrays that compiled loops take for one group."""
        return table.slots, table.cells, table.counters, self.names.acts_for

    def known_tokens(self, rid: str | None, at: int, count: int) -> IntArray:
        """[count] int64 tokens that slots of `rid` at positions `at`… should hold, -1 where unknown."""
        if rid is None:
            return np.full(count, -1, np.int64)
        start = at + self.header.token_position_offset
        return np.asarray(self.truth(rid, start, start + count), np.int64)

    def judge(self, table: SlotTable, named: IntArray, name: int) -> npt.NDArray[np.int64]:
        """Flags of slots that `name` is about to write; mapped window slots are judged by their full slots."""
        found = np.zeros(named.size, np.int64)
        if table is not self.window:
            judge_writes(self.book(table), found, named, name)
            return found
        owners = table.slots[named, c.MAPPED_BY].astype(np.int64)
        for is_mapped, of, slots in ((owners > 0, self.full, owners), (owners == 0, table, named)):
            part = np.zeros(int(is_mapped.sum()), np.int64)
            judge_writes(self.book(of), part, slots[is_mapped], name)
            found[is_mapped] = part
        return found

    def holder_names(self, table: SlotTable, slots: Iterable[int]) -> tuple[str, ...]:
        """Names of all that hold any of these slots, each once."""
        names: dict[str, None] = {}
        for slot in slots:
            names.update(dict.fromkeys(table.holder_names(slot)))
            if table is self.window:
                names.update(dict.fromkeys(self.full.holder_names(self.mapped_by(slot))))
        return tuple(names)

    def mapped_by(self, slot: int) -> int:
        """The full slot that maps to a window slot; -1: none does."""
        if self.window is None or not 0 <= slot < self.window.num_slots:
            return -1
        return int(self.window.slots[slot, c.MAPPED_BY]) or -1

    def parted(self, table: SlotTable, slots: IntArray, mark_of: MarkOf = no_mark) -> list[Part]:
        """Slots parted by who holds them and by their mark, in order of appearance."""
        parts: dict[tuple[tuple[str, ...], Mark | None], list[int]] = {}
        for slot in slots.tolist():
            key = self.holder_names(table, (slot,)), mark_of(slot)
            parts.setdefault(key, []).append(slot)
        return [Part(*key, np.array(part, np.int64)) for key, part in parts.items()]

    def rows_of(self, names: Iterable[str]) -> list[int]:
        """Rows of those among these holders that are requests with a row."""
        return [self.page.rid_row[name] for name in names if name in self.page.rid_row]


def new_state(
    header: Header, page: PageTable, swa_map: IntArray, truth: Truth, log: BreachLog
) -> LedgerState:
    """Fresh memory for a trace with this header."""
    names = log.names
    kinds = [group.kind for group in header.groups]
    size = header.pool.page_size
    tables = {str(kind): SlotTable(kind, header.num_slots(kind), size, names) for kind in kinds}
    full = tables.get("full", tables[kinds[0]])
    has_map = len(kinds) == 2
    return LedgerState(
        header=header,
        page=page,
        swa_map=swa_map,
        truth=truth,
        names=names,
        log=log,
        full=full,
        window=tables["swa"] if has_map else None,
        tables={"full": full, "swa": tables.get("swa", full)},
    )


def listed(values: Iterable[int]) -> list[int]:
    """The first numbers of a list, as a fact keeps them."""
    return [int(value) for value in list(values)[:MOST_LISTED]]


def span(positions: IntArray) -> tuple[int, int] | None:
    """First and last of some positions; unknown ones (-1) left out."""
    known = positions[positions >= 0]
    return (int(known.min()), int(known.max())) if known.size else None


def is_request(name: str) -> bool:
    """Whether a holder is a request: neither the cache nor a transfer."""
    return name != CACHE and not name.startswith("xfer:")
