"""What the ledger tells about one slot."""

from __future__ import annotations

from dataclasses import replace

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
