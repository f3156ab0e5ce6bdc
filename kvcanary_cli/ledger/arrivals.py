"""What deliveries and the host store have in common: how much arrives, how it is meant, and where it lands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import IntArray
from kvcanary_cli.ledger.rules import transfers as rules
from kvcanary_cli.ledger.rules import writes as write_rules
from kvcanary_cli.ledger.rules.writes import Written
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import NONE, LedgerState
from kvcanary_cli.trace import events as ev


@dataclass(frozen=True, slots=True)
class Declared:
    """How an event says that the other side means its bytes; None where it says nothing."""

    dtype: str | None
    item_bytes: int | None
    scale: str | int | None
    page_size: int | None

    @classmethod
    def by(cls, event: ev.Offload | ev.Reload | ev.Xfer) -> Declared:
        """What an event declares."""
        return cls(event.dtype, event.item_bytes, event.scale, event.page_size)


def judge_extent(
    state: LedgerState,
    where: Where,
    table: SlotTable,
    event: ev.Reload | ev.Xfer,
    slots: IntArray,
    rid: str | None,
    *,
    what: str,
    name: str,
) -> None:
    """Did all slots and all byte sources arrive? `what`: xfer or reload, `name`: its id or key."""
    if event.count is not None and event.count < slots.size:
        rules.partial(state, where, table, slots, event.count, rid, what=what, name=name)
    if event.sources is None:
        return
    missing = [source.name for source in sources_of(state, table) if source.name not in event.sources]
    if missing:
        rules.missing_sources(state, where, table, slots, missing, rid, what=what, name=name)


def judge_declared(
    state: LedgerState,
    where: Where,
    table: SlotTable,
    slots: IntArray,
    name: str,
    declared: Declared,
    stored: Declared | None = None,
) -> None:
    """Compare what an event declares with the header's sources, and a reload with its offload (`stored`)."""
    differs: dict[str, tuple[object, object]] = {}
    sources = sources_of(state, table)
    for field in ("dtype", "item_bytes", "scale"):
        theirs, before = getattr(declared, field), getattr(stored, field, None)
        ours = [value for value in (getattr(source, field) for source in sources) if value is not None]
        if theirs is None:
            continue
        if ours and theirs not in ours:
            differs[field] = (theirs, ours[0] if len(set(ours)) == 1 else ours)
        elif before is not None and before != theirs:
            differs[field] = (theirs, before)
    if differs:
        rules.dtype_mismatch(state, where, table, slots, name, differs)
    if declared.page_size is None:
        return
    expected = table.page_size
    if stored is not None and stored.page_size is not None and stored.page_size != declared.page_size:
        expected = stored.page_size
    if declared.page_size != expected:
        rules.geometry_mismatch(state, where, table, slots, name, expected, declared.page_size)


def judge_target(state: LedgerState, where: Where, writes: Written, found: IntArray) -> None:
    """Report destinations that nobody holds, or only others; `found` as the ledger judged them."""
    unheld, foreign = (found & c.NOT_HELD) != 0, (found & c.NOT_THEIRS) != 0
    if unheld.any():
        write_rules.write_unheld(state, where, writes.only(unheld))
    if foreign.any():
        write_rules.write_foreign(state, where, writes.only(foreign))


def judge_early_reads(state: LedgerState, where: Where, table: SlotTable, slots: IntArray, how: str) -> None:
    """Slots that a forward read too early are filled now."""
    reads = state.unwritten_reads
    if not reads or table is not state.full:
        return
    readers: dict[tuple[str, int], list[int]] = {}
    for slot in slots.tolist():
        rid, step, epoch = reads.pop(slot, ("", 0, -1))
        if epoch == int(table.slots[slot, c.EPOCH]):
            readers.setdefault((rid, step), []).append(slot)
    for (rid, step), part in readers.items():
        row = state.page.rid_row.get(rid)
        facts: dict[str, object] = {"how": how, "read_step": step}
        rules.read_in_transfer(state, where, np.array(part, np.int64), rid, row, NONE, facts)


def sources_of(state: LedgerState, table: SlotTable) -> list[ev.Source]:
    """Byte sources of one group."""
    sources = state.header.sources
    if state.window is None:
        return list(sources)
    return [source for source in sources if source.group == table.kind]


def all_known(tokens: IntArray) -> IntArray:
    """Tokens, or nothing where one of them is unknown (-1)."""
    return tokens if tokens.size and (tokens >= 0).all() else NONE


def nowhere(count: int) -> tuple[IntArray, IntArray]:
    """Row entries and positions of writes that have none."""
    return np.full(count, -1, np.int64), np.full(count, -1, np.int64)
