"""Page-table rows as the ledger follows them: their requests, lengths, leftovers, and what about them is in doubt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import Breach, End, IntArray
from kvcanary_cli.ledger.rows_jit import count_foreign, judge_reads, write_back_checked
from kvcanary_cli.ledger.rules import rows as rules
from kvcanary_cli.ledger.state import NONE, LedgerState
from kvcanary_cli.trace import events as ev


@dataclass(slots=True)
class Doubts:
    """What has to be looked at when a row's next forward comes.

    Attributes:
        released: slots given up while the row was in use, and whether somebody else gave them up.
        mapped: first column and slots that were mapped although the request did not hold all of them.
        shared: first position, slots, and which of their tokens could not be judged at the share.
        window: full slots by column whose window slot is missing.
        standing: cells and slots of breaches that last as long as the row names the slots.
    """

    released: list[tuple[IntArray, bool]] = field(default_factory=list)
    mapped: list[tuple[int, IntArray]] = field(default_factory=list)
    shared: list[tuple[int, IntArray, np.ndarray]] = field(default_factory=list)
    window: dict[int, int] = field(default_factory=dict)
    standing: list[tuple[IntArray, IntArray, list[Breach]]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.released or self.mapped or self.shared or self.window or self.standing)


class Rows:
    """State of all rows.

    Attributes:
        state: [num_rows, ROW_COLUMNS] int64, see `columns.py`.
        leftovers: [num_rows * width] int32, what stood in each column before the row's last bind; 0 once mapped.
        doubts: by row, for rows that have any.
        early: what a request was given before it had a row: first position, how many, the slots of a share, and
            which of their tokens could not be judged.
    """

    def __init__(self, state: LedgerState) -> None:
        page = state.page
        self._ledger = state
        self.state = np.zeros((page.num_rows, c.ROW_COLUMNS), np.int64)
        self.state[:, c.ROW_LENGTH] = -1
        self.leftovers = np.zeros(page.num_rows * page.width, np.int32)
        self.doubts: dict[int, Doubts] = {}
        self.early: dict[str, list[tuple[int, int, IntArray, np.ndarray]]] = {}
        self._gone: set[str] = set()

    def of(self, row: int) -> Doubts:
        """The doubts about a row."""
        return self.doubts.setdefault(row, Doubts())

    def occupant(self, row: int | None) -> str | None:
        """The request of a row; None when it has none, or when a gap hides which one."""
        number = int(self.state[row, c.ROW_NAME]) if row is not None else c.NOBODY
        return self._ledger.names.name(number) if number > 0 else None

    def request(self, row: int) -> str | None:
        """The request that a row's forward acts for: its own, else the one that had it before."""
        number = int(self.state[row, c.ROW_NAME])
        if number == c.NOBODY:
            number = int(self.state[row, c.ROW_FORMER])
        return self._ledger.names.name(number) if number > 0 else None

    def bind(self, step: int, line: int, event: ev.Bind) -> None:
        """A request takes a row."""
        page, row, rid = self._ledger.page, event.row, event.rid
        old_row = page.rid_row.get(rid)
        known_row = old_row if self.occupant(old_row) == rid else None
        self._judge_bind((step, line), row, rid, self.occupant(row), known_row)
        if old_row is not None and old_row != row:
            self._vacate(old_row)
        self._vacate(row)
        self._occupy(row, rid)
        for at, count, slots, unjudged in self.early.pop(rid, ()):
            self.lengthen(row, at, count)
            if slots.size:
                self.remap(row, at, slots)
                self.of(row).shared.append((at, slots, unjudged))

    def unbind(self, step: int, line: int, event: ev.Unbind) -> None:
        """A row has no request any more."""
        self._vacate(event.row)

    def move(self, step: int, line: int, event: ev.Move) -> None:
        """A request's columns go to another row."""
        page, rid, row = self._ledger.page, event.rid, event.row
        old_row, occupant = page.rid_row.get(rid), self.occupant(row)
        if occupant is not None and occupant != rid:
            self._judge_bind((step, line), row, rid, occupant, None)
        if old_row is None:
            self._vacate(row)
            self._occupy(row, rid)
            return
        kept = self.state[old_row].copy()
        doubts = self.doubts.pop(old_row, None)
        self._vacate(old_row)
        self._vacate(row)
        self._occupy(row, rid)
        for column in (c.ROW_LENGTH, c.ROW_EXTENT, c.ROW_STRICT, c.ROW_ACCEPTED, c.ROW_LENS):
            self.state[row, column] = kept[column]
        start = row * page.width
        self.leftovers[start : start + int(kept[c.ROW_EXTENT])] = 0
        if doubts is not None:
            doubts.standing.clear()
            self.doubts[row] = doubts

    def end(self, step: int, line: int, event: ev.End) -> None:
        """A request ends."""
        self._ledger.ended[event.rid] = End(step=step, line=line, why=event.why)
        self._gone.add(event.rid)

    def map(self, step: int, line: int, event: ev.Map) -> None:
        """A row is written from a column on."""
        ledger, row, at, slots = self._ledger, event.row, event.at, event.slots
        rid = self.occupant(row)
        by = event.by if event.by is not None else rid
        is_other = rid is not None and by != rid
        if is_other and by is not None and rid is not None:
            rules.row_changed_by_other(ledger, (step, line), row, at, slots, by, rid)
        self.judge_spill((step, line), row, at, slots, by, how="map")
        foreign = self.remap(row, at, slots)
        if foreign and not is_other and rid is not None:
            self.of(row).mapped.append((at, slots))

    def remap(self, row: int, at: int, slots: IntArray) -> int:
        """Columns are about to be mapped; returns how many slots the row's request does not hold."""
        ledger, state = self._ledger, self.state
        if at < state[row, c.ROW_CHECKED_TO]:
            self._write_back(row, at)
        stop = at + slots.size
        if state[row, c.ROW_EXTENT] < stop:
            state[row, c.ROW_EXTENT] = min(stop, ledger.page.width)
        name = int(state[row, c.ROW_NAME])
        cell = row * ledger.page.width + at
        return int(count_foreign(ledger.book(ledger.full), self.leftovers, cell, slots, name))

    def judge_spill(
        self, where: Where, row: int, at: int, slots: IntArray, by: str | None, *, how: str
    ) -> None:
        """Columns past the row's last one belong to the next row."""
        width = self._ledger.page.width
        if at + slots.size > width:
            first = max(at, width)
            rules.spill(self._ledger, where, row, first, slots[first - at :], by, how=how)

    def lengthen(self, row: int, at: int, count: int) -> None:
        """A share or a delivery gave the row's request positions `[at, at + count)`."""
        length = self.state[row, c.ROW_LENGTH]
        if length >= 0:
            self.state[row, c.ROW_LENGTH] = max(length, at + count)
            if at + count > length:
                self.state[row, c.ROW_STRICT] = 0

    def suspect_released(self, row: int, slots: IntArray, *, forced: bool = False) -> None:
        """Slots were given up: the row must not name them at its next forward."""
        if self.state[row, c.ROW_NAME] != c.UNKNOWN:
            self.of(row).released.append((slots, forced))

    def judge_reads(self, where: Where, row: int, prefix: int) -> None:
        """A forward of this row reads `[0, prefix)`: look at what is in doubt."""
        doubts = self.doubts[row]
        name, rid = int(self.state[row, c.ROW_NAME]), self.request(row)
        self._judge_standing(doubts)
        for slots, forced in doubts.released:
            columns = np.full(slots.size, -1, np.int64)
            is_bad, columns = self._still_named(row, prefix, slots, columns, name, forced=forced)
            if is_bad.any():
                named = slots[is_bad], columns[is_bad]
                self._stand(
                    doubts,
                    row,
                    *named,
                    rules.row_names_released(self._ledger, where, row, rid, *named, forced),
                )
        for at, slots in doubts.mapped:
            is_bad, columns = self._still_named(row, prefix, slots, np.arange(at, at + slots.size), name)
            if is_bad.any():
                self._judge_mapped(where, doubts, row, slots[is_bad], columns[is_bad])
        doubts.released.clear()
        doubts.mapped.clear()

    def lose_history(self) -> None:
        """A gap: requests, lengths and leftovers of all rows are unknown."""
        self.state[:] = 0
        self.state[:, c.ROW_NAME] = c.UNKNOWN
        self.state[:, c.ROW_LENGTH] = -1
        self.leftovers[:] = 0
        self._ledger.names.row_of[:] = 0
        self.doubts.clear()
        self.early.clear()

    def _judge_mapped(
        self, where: Where, doubts: Doubts, row: int, slots: IntArray, columns: IntArray
    ) -> None:
        ledger, rid = self._ledger, self.request(row)
        is_free = np.array([not ledger.full.holder_names(slot) for slot in slots.tolist()])
        breaches = []
        if is_free.any():
            breaches += rules.row_names_released(
                ledger, where, row, rid, slots[is_free], columns[is_free], forced=True
            )
        if not is_free.all():
            breaches += rules.row_names_foreign(ledger, where, row, rid, slots[~is_free], columns[~is_free])
        self._stand(doubts, row, slots, columns, breaches)

    def _still_named(
        self, row: int, prefix: int, slots: IntArray, columns: IntArray, name: int, *, forced: bool = False
    ) -> tuple[np.ndarray, IntArray]:
        ledger, page = self._ledger, self._ledger.page
        found = np.zeros(slots.size, np.int64)
        start = row * page.width
        judge_reads(
            ledger.book(ledger.full), found, page.entries, start, prefix, slots, columns, name, forced
        )
        return found != 0, columns

    def _stand(
        self, doubts: Doubts, row: int, slots: IntArray, columns: IntArray, breaches: list[Breach]
    ) -> None:
        if breaches:
            doubts.standing.append((row * self._ledger.page.width + columns, slots, breaches))

    def _judge_standing(self, doubts: Doubts) -> None:
        entries = self._ledger.page.entries
        for cells, slots, breaches in doubts.standing:
            if (entries[cells] == slots).any():
                for breach in breaches:
                    self._ledger.log.repeat(breach)
        doubts.standing = [kept for kept in doubts.standing if (entries[kept[0]] == kept[1]).any()]

    def _judge_bind(
        self, where: Where, row: int, rid: str, occupant: str | None, old_row: int | None
    ) -> None:
        ledger = self._ledger
        records = ledger.header.records
        if records is not None and "unbind" not in records:
            # a producer that could not see rows given up: an ended request has left its row
            occupant = None if occupant in self._gone or "end" not in records else occupant
            old_row = None if rid in self._gone or "end" not in records else old_row
        if occupant is not None or old_row is not None:
            rules.bind_occupied(ledger, where, row, rid, occupant, old_row)

    def _occupy(self, row: int, rid: str) -> None:
        former = self.state[row, c.ROW_FORMER]
        self.state[row] = 0
        self.state[row, c.ROW_FORMER] = former
        number = self._ledger.names.number(rid)
        self.state[row, c.ROW_NAME] = number
        self._ledger.names.row_of[number] = row
        self._gone.discard(rid)

    def _vacate(self, row: int) -> None:
        """The row's request is gone; what it mapped becomes leftovers."""
        state, page = self.state, self._ledger.page
        name = int(state[row, c.ROW_NAME])
        if name > 0:
            self._ledger.names.row_of[name] = 0
        if state[row, c.ROW_CHECKED_TO]:
            self._write_back(row, 0)
        start, extent = row * page.width, int(state[row, c.ROW_EXTENT])
        self.leftovers[start : start + extent] = page.entries[start : start + extent]
        former = name if name != c.NOBODY else int(state[row, c.ROW_FORMER])
        state[row] = 0
        state[row, c.ROW_FORMER] = max(former, 0)
        state[row, c.ROW_LENGTH] = -1
        self.doubts.pop(row, None)

    def _write_back(self, row: int, first: int) -> None:
        ledger = self._ledger
        window = ledger.window if ledger.window is not None else ledger.full
        write_back_checked(
            ledger.book(ledger.full),
            ledger.book(window),
            ledger.swa_map if ledger.window is not None else NONE,
            self.window_size,
            ledger.page.entries,
            row * ledger.page.width,
            first,
            self.state,
            row,
        )

    @property
    def window_size(self) -> int:
        """Positions that window layers read."""
        group = self._ledger.header.group("swa")
        return group.window if group is not None else 0
