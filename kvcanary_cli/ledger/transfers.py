"""Events that move bytes into and out of the pool: offload, reload, xfer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import CACHE, IntArray
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.rules import transfers as rules
from kvcanary_cli.ledger.rules import writes as write_rules
from kvcanary_cli.ledger.rules.writes import Written
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import NONE, LedgerState, is_request
from kvcanary_cli.ledger.writes_jit import record_writes
from kvcanary_cli.trace import events as ev

_DECLARED = ("dtype", "item_bytes", "scale")
_UNHELD, _UNWRITTEN, _FOREIGN = 1, 2, 4


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


@dataclass(frozen=True, slots=True)
class Stored:
    """What the host store keeps under a key: declarations of the offload, and the tokens of its slots (-1 unknown)."""

    declared: dict[str, object]
    page_size: int | None
    tokens: IntArray


@njit(cache=True)
def _judge_sources(slots, cells, named, found):
    """Slots that are copied to the host: held, written, and by one of their holders? Returns how many are flagged."""
    bad = 0
    for i in range(named.size):
        slot = named[i]
        flags = slots[slot, c.FLAGS]
        found[i] = 0
        if flags & c.IS_OPEN:
            continue
        if slots[slot, c.NUM] == 0 and slots[slot, c.MAPPED_BY] == 0:
            found[i] = _UNHELD
        elif not flags & c.IS_WRITTEN:
            found[i] = _UNWRITTEN
        elif not slots[slot, c.BYTES_AT + c.WRITE_HOW] & c.HELD:
            found[i] = _FOREIGN
        cell = slots[slot, c.FIRST]
        while cell:
            is_old = cells[cell, c.CELL_EPOCH] != slots[slot, c.EPOCH]
            if is_old and cells[cell, c.CELL_NAME] == c.CACHE_NAME:
                found[i] = _FOREIGN
            cell = cells[cell, c.CELL_NEXT]
        bad += found[i] != 0
    return bad


class Transfers:
    """Follows deliveries and the host store."""

    def __init__(self, state: LedgerState, rows: Rows) -> None:
        self._state = state
        self._rows = rows
        self._deliveries: dict[str, Delivery] = {}
        self._waiting: dict[str, set[str]] = {}
        self._stored: dict[str, Stored] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether any request has a delivery under way."""
        return bool(self._waiting)

    def offload(self, step: int, line: int, event: ev.Offload) -> None:
        """Bytes and stamps go to the host store."""
        state, table, slots, where = self._state, self._state.tables[event.group], event.slots, (step, line)
        for slot in slots.tolist():
            table.refresh(slot)
        found = np.zeros(slots.size, np.int64)
        if _judge_sources(table.slots, table.cells, slots, found):
            for flag, is_held in ((_UNHELD, False), (_UNWRITTEN, True)):
                part = slots[found == flag]
                if part.size:
                    rules.offload_unwritten(state, where, table, part, event.key, is_held=is_held)
            foreign = slots[found == _FOREIGN]
            if foreign.size:
                rules.offload_foreign(state, where, table, foreign, event.key)
        declared = _declared(event)
        self._judge_declared(where, table, slots, event.key, declared, event.page_size, None)
        is_known = (table.slots[slots, c.FLAGS] & c.HAS_TOKEN) != 0
        tokens = np.where(is_known, table.slots[slots, c.TOKEN], -1).astype(np.int64)
        self._stored[event.key] = Stored(declared, event.page_size, tokens)

    def reload(self, step: int, line: int, event: ev.Reload) -> None:
        """Bytes come back from the host store."""
        state, table, where = self._state, self._state.tables[event.group], (step, line)
        slots = event.slots if event.count is None else event.slots[: event.count]
        stored = self._stored.get(event.key)
        self._judge_extent(where, table, event, event.slots, None, what="reload", name=event.key)
        declared = _declared(event)
        self._judge_declared(where, table, event.slots, event.key, declared, event.page_size, stored)
        if not slots.size:
            return
        self._judge_overlay(where, table, slots, event.key)
        found = state.judge(table, slots, c.UNKNOWN)
        self._judge_target(where, Written(table, slots, *_nowhere(slots.size), None, None, "reload"), found)
        tokens = stored.tokens[: slots.size] if stored is not None else NONE
        self._land(where, table, slots, "reload")
        record_writes(
            state.book(table), found, np.zeros(slots.size, np.bool_), slots, _all_known(tokens), c.NOBODY, step, line,
            c.RELOAD, state.names.number(event.key), -1, event.stamps,
        )  # fmt: skip

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
        declared = _declared(event)
        self._judge_declared(where, table, slots, event.id, declared, event.page_size, None)

    def _done(self, where: Where, event: ev.Xfer, delivery: Delivery | None) -> None:
        state, table = self._state, self._state.tables[event.group]
        rid = event.rid if event.rid is not None or delivery is None else delivery.rid
        slots = event.slots if event.slots is not None or delivery is None else delivery.slots
        if slots is None:
            return
        self._judge_extent(where, table, event, slots, rid, what="xfer", name=event.id)
        declared = _declared(event)
        self._judge_declared(where, table, slots, event.id, declared, event.page_size, None)
        landed = slots if event.count is None else slots[: event.count]
        columns = event.at + np.arange(landed.size)
        name = state.names.number(rid) if rid is not None else c.UNKNOWN
        found = state.judge(table, landed, name)
        is_old = self._judge_epochs(where, event.id, rid, table, landed, delivery)
        row = state.page.rid_row.get(rid) if rid is not None else None
        entries = self._row_entries(row, columns)
        writes = Written(table, landed, entries, columns, row, rid, "xfer")
        self._judge_target(where, writes, np.where(is_old, 0, found))
        self._land(where, table, landed, "xfer")
        record_writes(
            state.book(table), found, entries == landed, landed, self._tokens(event, rid, landed.size), name, *where,
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

    def _judge_target(self, where: Where, writes: Written, found: IntArray) -> None:
        unheld, foreign = (found & c.NOT_HELD) != 0, (found & c.NOT_THEIRS) != 0
        if unheld.any():
            write_rules.write_unheld(self._state, where, writes.only(unheld))
        if foreign.any():
            write_rules.write_foreign(self._state, where, writes.only(foreign))

    def _judge_extent(
        self,
        where: Where,
        table: SlotTable,
        event: ev.Reload | ev.Xfer,
        slots: IntArray,
        rid: str | None,
        *,
        what: str,
        name: str,
    ) -> None:
        if event.count is not None and event.count < slots.size:
            rules.partial(self._state, where, table, slots, event.count, rid, what=what, name=name)
        if event.sources is None:
            return
        missing = [source.name for source in self._sources(table) if source.name not in event.sources]
        if missing:
            rules.missing_sources(self._state, where, table, slots, missing, rid, what=what, name=name)

    def _judge_declared(
        self,
        where: Where,
        table: SlotTable,
        slots: IntArray,
        name: str,
        declared: dict[str, object],
        page_size: int | None,
        stored: Stored | None,
    ) -> None:
        """Compare what an event declares with the header's sources, and a reload with its offload."""
        differs: dict[str, tuple[object, object]] = {}
        sources = self._sources(table)
        for field in _DECLARED:
            theirs = declared[field]
            ours = [value for value in (getattr(source, field) for source in sources) if value is not None]
            before = stored.declared[field] if stored is not None else None
            if theirs is None:
                continue
            if ours and theirs not in ours:
                differs[field] = (theirs, ours[0] if len(set(ours)) == 1 else ours)
            elif before is not None and before != theirs:
                differs[field] = (theirs, before)
        if differs:
            rules.dtype_mismatch(self._state, where, table, slots, name, differs)
        if page_size is None:
            return
        ours_size = table.page_size
        if stored is not None and stored.page_size is not None and stored.page_size != page_size:
            ours_size = stored.page_size
        if page_size != ours_size:
            rules.geometry_mismatch(self._state, where, table, slots, name, ours_size, page_size)

    def _judge_overlay(self, where: Where, table: SlotTable, slots: IntArray, key: str) -> None:
        state = self._state
        written = slots[(table.slots[slots, c.FLAGS] & c.IS_WRITTEN) != 0]
        over = []
        for slot in written.tolist():
            holders = table.holders(slot)
            is_published = any(holder.name == CACHE and holder.how == "publish" for holder in holders)
            if is_published and any(is_request(holder.name) for holder in holders):
                over.append(slot)
        if over:
            rules.reload_over_published(state, where, table, np.array(over, np.int64), key)

    def _land(self, where: Where, table: SlotTable, slots: IntArray, how: str) -> None:
        """Slots that a forward read too early are filled now."""
        reads = self._state.unwritten_reads
        if not reads or table is not self._state.full:
            return
        readers: dict[tuple[str, int], list[int]] = {}
        for slot in slots.tolist():
            rid, step, epoch = reads.pop(slot, ("", 0, -1))
            if epoch == int(table.slots[slot, c.EPOCH]):
                readers.setdefault((rid, step), []).append(slot)
        for (rid, step), part in readers.items():
            row = self._state.page.rid_row.get(rid)
            facts: dict[str, object] = {"how": how, "read_step": step}
            rules.read_in_transfer(self._state, where, np.array(part, np.int64), rid, row, NONE, facts)

    def _row_entries(self, row: int | None, columns: IntArray) -> IntArray:
        entries = np.full(columns.size, -1, np.int64)
        if row is not None:
            page = self._state.page
            cells = row * page.width + columns
            inside = cells < page.entries.size
            entries[inside] = page.entries[cells[inside]]
        return entries

    def _tokens(self, event: ev.Xfer, rid: str | None, count: int) -> IntArray:
        """Tokens of the slots that land, empty where any is unknown."""
        if event.tokens is None:
            return _all_known(self._state.known_tokens(rid, event.at, count))
        given = np.array(event.tokens, np.int64)
        slots = event.slots.size if event.slots is not None else count
        before = event.at if given.size >= event.at + slots else 0
        return given[before : before + count]

    def _sources(self, table: SlotTable) -> list[ev.Source]:
        sources = self._state.header.sources
        if self._state.window is None:
            return list(sources)
        return [source for source in sources if source.group == table.kind]


def _declared(event: ev.Offload | ev.Reload | ev.Xfer) -> dict[str, object]:
    return {field: getattr(event, field) for field in _DECLARED}


def _all_known(tokens: IntArray) -> IntArray:
    return tokens if tokens.size and (tokens >= 0).all() else NONE


def _nowhere(count: int) -> tuple[IntArray, IntArray]:
    return np.full(count, -1, np.int64), np.full(count, -1, np.int64)
