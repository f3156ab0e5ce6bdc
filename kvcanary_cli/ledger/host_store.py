"""The host store: slots that are offloaded under a key, and reloaded from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.arrivals import (
    Declared,
    all_known,
    judge_declared,
    judge_early_reads,
    judge_extent,
    judge_target,
    nowhere,
)
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import CACHE, IntArray
from kvcanary_cli.ledger.rules import transfers as rules
from kvcanary_cli.ledger.rules.writes import Written
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import NONE, LedgerState, is_request
from kvcanary_cli.ledger.writes_jit import record_writes
from kvcanary_cli.trace import events as ev

_UNHELD, _UNWRITTEN, _FOREIGN = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Stored:
    """What the host keeps under a key: how the bytes were declared, and the tokens of its slots (-1 unknown)."""

    declared: Declared
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


class HostStore:
    """Follows copies to the host and back."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state
        self._stored: dict[str, Stored] = {}

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
        declared = Declared.by(event)
        judge_declared(state, where, table, slots, event.key, declared)
        is_known = (table.slots[slots, c.FLAGS] & c.HAS_TOKEN) != 0
        tokens = np.where(is_known, table.slots[slots, c.TOKEN], -1).astype(np.int64)
        self._stored[event.key] = Stored(declared, tokens)

    def reload(self, step: int, line: int, event: ev.Reload) -> None:
        """Bytes come back from the host store."""
        state, table, where = self._state, self._state.tables[event.group], (step, line)
        slots = event.slots if event.count is None else event.slots[: event.count]
        stored = self._stored.get(event.key)
        judge_extent(state, where, table, event, event.slots, None, what="reload", name=event.key)
        declared = Declared.by(event)
        before = stored.declared if stored is not None else None
        judge_declared(state, where, table, event.slots, event.key, declared, before)
        if not slots.size:
            return
        self._judge_overlay(where, table, slots, event.key)
        found = state.judge(table, slots, c.UNKNOWN)
        judge_target(state, where, Written(table, slots, *nowhere(slots.size), None, None, "reload"), found)
        tokens = stored.tokens[: slots.size] if stored is not None else NONE
        judge_early_reads(state, where, table, slots, "reload")
        record_writes(
            state.book(table), found, np.zeros(slots.size, np.bool_), slots, all_known(tokens), c.NOBODY, step, line,
            c.RELOAD, state.names.number(event.key), -1, event.stamps,
        )  # fmt: skip

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
