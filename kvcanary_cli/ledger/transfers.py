"""Remote deliveries: addressed to slots at their start, landing there later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.arrivals import (
    Declared,
    all_known,
    judge_declared,
    judge_early_reads,
    judge_extent,
    judge_target,
)
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import IntArray
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.rules import transfers as rules
from kvcanary_cli.ledger.rules.writes import Written
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import NONE, LedgerState
from kvcanary_cli.ledger.writes_jit import record_writes
from kvcanary_cli.trace import events as ev


@dataclass(slots=True)
class Delivery:
    """A remote delivery under way.

    Attributes:
        rid: the request that it is for. slots, epochs, was_held: [n] the slots that it is addressed to, as they
            were at its start.
        step, line: of its start. is_cancelled: called off, which a late writer may not know.
        gaps: gaps before its start; epochs from before a gap say nothing.
    """

    rid: str | None
    table: SlotTable
    slots: IntArray
    epochs: IntArray
    was_held: np.ndarray
    step: int
    line: int
    gaps: int
    is_cancelled: bool = False


class Transfers:
    """Follows deliveries from their start to their end."""

    def __init__(self, state: LedgerState, rows: Rows) -> None:
        self._state = state
        self._rows = rows
        self._deliveries: dict[str, Delivery] = {}
        self._waiting: dict[str, set[str]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether any request has a delivery under way."""
        return bool(self._waiting)

    def xfer(self, step: int, line: int, event: ev.Xfer) -> None:
        """A delivery starts, lands or is called off."""
        if event.op == "start":
            self._start((step, line), event)
            return
        delivery = self._deliveries.get(event.id)
        self._stop_waiting(event.id)
        if event.op == "cancel":
            if delivery is not None:
                delivery.is_cancelled = True
            return
        self._deliveries.pop(event.id, None)
        self._done((step, line), event, delivery)

    def judge_reads(self, where: Where, row: int, prefix: int) -> None:
        """A forward of this row: does it read slots that wait for a delivery?"""
        rid = self._rows.request(row)
        ids = self._waiting.get(rid or "")
        if not ids:
            return
        page = self._state.page
        read = page.slots_of(row, 0, prefix)
        for name in sorted(ids):
            delivery = self._deliveries[name]
            columns = np.flatnonzero(np.isin(read, delivery.slots))
            if columns.size:
                facts: dict[str, object] = {"id": name, "how": "xfer", "started": delivery.step}
                rules.read_in_transfer(self._state, where, read[columns], rid, row, columns, facts)

    def lose_history(self) -> None:
        """A gap: reads before it can't be judged any more."""
        self._waiting.clear()
        self._state.unwritten_reads.clear()

    def _stop_waiting(self, name: str) -> None:
        delivery = self._deliveries.get(name)
        ids = self._waiting.get(delivery.rid or "") if delivery is not None else None
        if delivery is not None and ids is not None:
            ids.discard(name)
            if not ids:
                del self._waiting[delivery.rid or ""]

    def _start(self, where: Where, event: ev.Xfer) -> None:
        state, table = self._state, self._state.tables[event.group]
        slots = event.slots if event.slots is not None else NONE
        for slot in slots.tolist():
            table.refresh(slot)
        self._stop_waiting(event.id)  # an id that is used again means the later delivery
        self._deliveries[event.id] = Delivery(
            rid=event.rid,
            table=table,
            slots=slots,
            epochs=table.slots[slots, c.EPOCH].astype(np.int64),
            was_held=(table.slots[slots, c.NUM] > 0) | (table.slots[slots, c.MAPPED_BY] > 0),
            step=where[0],
            line=where[1],
            gaps=int(table.counters[c.GAPS]),
        )
        if event.rid is not None:
            state.names.act_for(f"xfer:{event.id}", event.rid)
            if slots.size and table is state.full:
                self._waiting.setdefault(event.rid, set()).add(event.id)
        judge_declared(state, where, table, slots, event.id, Declared.by(event))

    def _done(self, where: Where, event: ev.Xfer, delivery: Delivery | None) -> None:
        state, table = self._state, self._state.tables[event.group]
        rid = event.rid if event.rid is not None or delivery is None else delivery.rid
        slots = event.slots if event.slots is not None or delivery is None else delivery.slots
        if slots is None:
            return
        judge_extent(state, where, table, event, slots, rid, what="xfer", name=event.id)
        judge_declared(state, where, table, slots, event.id, Declared.by(event))
        landed = slots if event.count is None else slots[: event.count]
        columns = event.at + np.arange(landed.size)
        name = state.names.number(rid) if rid is not None else c.UNKNOWN
        found = state.judge(table, landed, name)
        is_old = self._judge_epochs(where, event.id, rid, table, landed, delivery)
        row = state.page.rid_row.get(rid) if rid is not None else None
        entries = self._row_entries(row, columns)
        writes = Written(table, landed, entries, columns, row, rid, "xfer")
        judge_target(state, where, writes, np.where(is_old, 0, found))
        judge_early_reads(state, where, table, landed, "xfer")
        tokens = self._tokens(event, rid, slots.size)[: landed.size]
        record_writes(
            state.book(table), found, entries == landed, landed, tokens, name, *where,
            c.XFER, state.names.number(event.id), event.at, event.stamps,
        )  # fmt: skip
        if row is not None:
            self._rows.lengthen(row, event.at, slots.size)
        elif rid is not None:
            self._rows.early.setdefault(rid, []).append((event.at, slots.size, NONE, NONE))

    def _judge_epochs(
        self,
        where: Where,
        name: str,
        rid: str | None,
        table: SlotTable,
        slots: IntArray,
        delivery: Delivery | None,
    ) -> np.ndarray:
        """Which slots are not any more what the delivery was addressed to."""
        is_old = np.zeros(slots.size, np.bool_)
        if delivery is None or delivery.gaps != table.counters[c.GAPS]:
            return is_old
        addressed = {slot: i for i, slot in enumerate(delivery.slots.tolist())}
        epochs = np.zeros(slots.size, np.int64)
        mine = {rid, f"xfer:{name}"} - {None}
        for i, slot in enumerate(slots.tolist()):
            at = addressed.get(slot)
            if at is None or table.is_open(slot):
                continue
            epochs[i] = delivery.epochs[at]
            holders = self._state.holder_names(table, (slot,))
            is_same = int(table.slots[slot, c.EPOCH]) == epochs[i]
            was_early = not delivery.was_held[at] and bool(mine & set(holders))
            is_old[i] = not holders or not (is_same or was_early)
        if is_old.any():
            xfer = name, rid, delivery.step
            rules.xfer_to_old_epoch(self._state, where, table, slots[is_old], epochs[is_old], xfer)
        return is_old

    def _row_entries(self, row: int | None, columns: IntArray) -> IntArray:
        entries = np.full(columns.size, -1, np.int64)
        if row is not None:
            page = self._state.page
            cells = row * page.width + columns
            inside = cells < page.entries.size
            entries[inside] = page.entries[cells[inside]]
        return entries

    def _tokens(self, event: ev.Xfer, rid: str | None, count: int) -> IntArray:
        """Tokens of the `count` slots of a delivery, empty where any is unknown."""
        if event.tokens is None:
            return all_known(self._state.known_tokens(rid, event.at, count))
        given = np.array(event.tokens, np.int64)
        return given[max(given.size - count, 0) :]  # those before `at` may come first
