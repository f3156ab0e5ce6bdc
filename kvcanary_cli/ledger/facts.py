"""What the ledger tells about one slot, and about all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.records import CACHE, Holder, Mark, SlotFacts
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import LedgerState


def slot_facts(state: LedgerState, rows: Rows, group: str, slot: int, last_sweep: int) -> SlotFacts:
    """A snapshot of a slot; one outside of the pool is nobody's and was never written."""
    table = state.tables[group]
    if not 0 <= slot < table.num_slots:
        return _outside(table, slot)
    table.refresh(slot)
    flags = int(table.slots[slot, c.FLAGS])
    holders = _holders(state, table, slot)
    of_full = state.mapped_by(slot) if table is state.window else slot
    entries = _holders(state, state.full, of_full) if of_full >= 0 else ()
    published = any(holder.name == CACHE and holder.how == "publish" for holder in entries)
    return SlotFacts(
        slot=slot,
        group=table.kind,
        epoch=int(table.slots[slot, c.EPOCH]),
        known=not flags & c.IS_OPEN,
        holders=holders,
        allocated=table.allocated(slot),
        released=_with_end(state, table.released(slot)),
        given_up=_with_end(state, table.given_up(slot)),
        previous=table.previous(slot),
        byte_writer=table.writer(slot, c.BYTES_AT),
        stamp_writer=table.writer(slot, c.STAMP_AT),
        is_written=bool(flags & c.IS_WRITTEN),
        published=published,
        token=int(table.slots[slot, c.TOKEN]) if flags & c.HAS_TOKEN else None,
        last_checked_step=_last_checked(state, rows, table, slot, entries, last_sweep),
    )


def _outside(table: SlotTable, slot: int) -> SlotFacts:
    return SlotFacts(
        slot=slot,
        group=table.kind,
        epoch=0,
        known=True,
        holders=(),
        allocated=None,
        released=None,
        given_up=None,
        previous=None,
        byte_writer=None,
        stamp_writer=None,
        is_written=False,
        published=False,
        token=None,
        last_checked_step=None,
    )


def _holders(state: LedgerState, table: SlotTable, slot: int) -> tuple[Holder, ...]:
    """Holders of a slot; of a window slot those of the full slot that maps to it too."""
    own = table.holders(slot)
    full = state.mapped_by(slot) if table is state.window else -1
    if full < 0:
        return own
    epoch = int(table.slots[slot, c.EPOCH])
    return own + tuple(replace(holder, how="map", epoch=epoch) for holder in state.full.holders(full))


def _with_end(state: LedgerState, mark: Mark | None) -> Mark | None:
    """A free that its request ended with, before another forward ran, is the request's end."""
    if mark is None or mark.why != "free" or mark.by is None:
        return mark
    end = state.ended.get(mark.by)
    if end is None or end.step != mark.step or end.line < mark.line:
        return mark
    return replace(mark, why="end")


def _last_checked(
    state: LedgerState, rows: Rows, table: SlotTable, slot: int, holders: tuple[Holder, ...], last_sweep: int
) -> int | None:
    """The last step in which a row of a holder, or the cache, was verified over this slot."""
    steps = [int(table.slots[slot, c.CHECKED]) - 1]
    full = state.mapped_by(slot) if table is state.window else slot
    column = int(state.full.slots[full, c.STAMP_AT + c.WRITE_POSITION]) - 1 if full >= 0 else -1
    for holder in holders:
        if holder.name == CACHE and holder.how == "publish" and holder.since_step <= last_sweep:
            steps.append(last_sweep)
        row = state.page.rid_row.get(holder.name)
        if row is None or column < 0 or column >= rows.state[row, c.ROW_CHECKED_TO]:
            continue
        if table is state.window and column < rows.state[row, c.ROW_CHECKED_TO] - rows.window_size:
            continue
        cell = row * state.page.width + column
        if cell < state.page.entries.size and state.page.entries[cell] == full:
            steps.append(int(rows.state[row, c.ROW_CHECKED_STEP]) - 1)
    last = max(steps)
    return last if last >= 0 else None


def overview(
    state: LedgerState, rows: Rows, group: str, last_sweep: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """[num_slots] whether each slot was ever written, and whether a row or the cache was verified over it."""
    table = state.tables[group]
    used: npt.NDArray[np.bool_] = table.slots[:, c.BYTES_AT + c.WRITE_LINE] != 0
    checked: npt.NDArray[np.bool_] = table.slots[:, c.CHECKED] > 0
    mark_swept(table.slots, table.cells, last_sweep, checked)
    for row in state.page.rid_row.values():
        reach = int(rows.state[row, c.ROW_CHECKED_TO])
        named = state.page.slots_of(row, 0, min(reach, state.page.width))
        if table is state.window:
            named = state.swa_map[named[-rows.window_size :].clip(0, state.swa_map.size - 1)]
        checked[named[(named > 0) & (named < checked.size)]] = True
    return used, checked


@njit(cache=True)
def mark_swept(slots, cells, last_sweep, checked):
    """Mark slots that the cache published no later than the last sweep."""
    for slot in range(slots.shape[0]):
        cell = slots[slot, c.FIRST]
        while cell != 0:
            is_cache = cells[cell, c.CELL_NAME] == c.CACHE_NAME and cells[cell, c.CELL_HOW] == c.BY_PUBLISH
            if is_cache and cells[cell, c.CELL_STEP] <= last_sweep:
                checked[slot] = True
            cell = cells[cell, c.CELL_NEXT]
