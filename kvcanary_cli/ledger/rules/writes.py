"""Rules about writes: was the slot in the writer's hands, in its row, and written once?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import IntArray
from kvcanary_cli.ledger.rules.holders import as_fact
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import LedgerState, listed, span


@dataclass(frozen=True, slots=True)
class Written:
    """Writes of one writer that share a flag.

    Attributes:
        table: whose slots.
        slots: [n] as written, in the order of the event.
        entries: [n] what the writer's row names at these positions; -1 where it has no row.
        columns: [n] positions, -1 where the event has none.
        row: the writer's row, None without one.
        name: the writer.
        how: `forward`, `xfer`, `reload`, `kv`.
    """

    table: SlotTable
    slots: IntArray
    entries: IntArray
    columns: IntArray
    row: int | None
    name: str | None
    how: str

    @property
    def positions(self) -> tuple[int, int] | None:
        """First and last position."""
        return span(self.columns)

    def facts(self, **more: object) -> dict[str, object]:
        """How it was written, and what the row says to it; `delta` where all slots are displaced alike."""
        delta = self.slots - self.entries
        is_constant = self.entries.size and (self.entries >= 0).all() and (delta == delta[0]).all()
        return {
            "how": self.how,
            "written": listed(self.slots),
            "row_entry": listed(self.entries),
            "delta": int(delta[0]) if is_constant else None,
            **more,
        }

    def only(self, mask: np.ndarray) -> Written:
        """Some of these writes."""
        slots, entries, columns = self.slots[mask], self.entries[mask], self.columns[mask]
        return Written(self.table, slots, entries, columns, self.row, self.name, self.how)


def write_unheld(state: LedgerState, where: Where, writes: Written) -> None:
    """A slot is written that nobody holds: proven by the write and by the release (or no alloc) before it.

    `held_before`: the writer had it in an earlier epoch. Source: trace format, "Ownership"; taxonomy K06, K11, K12.
    """
    first = int(writes.slots[0])
    released = writes.table.released(first)
    _add(
        state,
        "write-unheld",
        where,
        writes,
        facts=writes.facts(
            released=as_fact(released), held_before=_held_before(writes.table, first, writes.name)
        ),
    )


def write_foreign(state: LedgerState, where: Where, writes: Written) -> None:
    """A slot is written that only others hold: proven by the write and by the holders at that time.

    Source: trace format, "Ownership"; taxonomy K06, K07, K11, K12, K13.
    """
    for part in state.parted(writes.table, writes.slots):
        chosen = writes.only(np.isin(writes.slots, part.slots))
        facts = chosen.facts(held_by=list(part.holders))
        _add(state, "write-foreign", where, chosen, victims=part.holders, facts=facts)


def write_shared(state: LedgerState, where: Where, writes: Written) -> None:
    """A slot is written in place that the writer holds together with others: copy-on-write is missing.

    Proven by the write and by two holders of the present epoch. Source: taxonomy K05.
    """
    for part in state.parted(writes.table, writes.slots):
        chosen = writes.only(np.isin(writes.slots, part.slots))
        facts = chosen.facts(holders=list(part.holders))
        _add(state, "write-shared", where, chosen, victims=part.holders, facts=facts)


def write_outside_row(state: LedgerState, where: Where, writes: Written) -> None:
    """A token is written to another slot than the one its row names at that position.

    Proven by the forward's `slots` and the page table. Source: trace format, "Forwards"; taxonomy K12, K13.
    """
    victims = state.holder_names(writes.table, writes.slots.tolist())
    _add(state, "write-outside-row", where, writes, victims=victims, facts=writes.facts())


def leftover(state: LedgerState, where: Where, writes: Written, former: str | None) -> None:
    """A token is written to what the row's former request left in that column.

    Proven by the row's content before its bind, no map of the column since, and the writer not being a holder.
    Source: trace format, `bind` ("leftovers"); taxonomy K11.
    """
    victims = state.holder_names(writes.table, writes.slots.tolist())
    _add(state, "leftover", where, writes, victims=victims, facts=writes.facts(left_by=former))


def two_writers(
    state: LedgerState, where: Where, slot: int, writers: list[str | None], at: list[int]
) -> None:
    """Two entries of one forward write one slot: proven by the forward's slots; the result depends on the order.

    Source: trace format, "Forwards"; taxonomy law 6.
    """
    state.log.add(
        "two-writers",
        where,
        state.full,
        [slot],
        actor=writers[-1],
        victims=[name for name in writers if name is not None],
        positions=(min(at), max(at)),
        facts={"writers": list(dict.fromkeys(writers)), "positions": at},
    )


def slot_out_of_range(state: LedgerState, where: Where, writes: Written) -> None:
    """A forward names a slot that the pool does not have: proven by its number.

    Source: trace format, "Errors"; taxonomy C6.
    """
    _add(state, "slot-out-of-range", where, writes, facts=writes.facts(limit=writes.table.num_slots))


def pad_write(state: LedgerState, where: Where, slots: IntArray) -> None:
    """The padded part of a forward writes a slot other than 0: proven by its padded lanes or `pad_writes`.

    Source: trace format, `pad_writes`; taxonomy K15.
    """
    for part in state.parted(state.full, slots):
        state.log.add(
            "pad-write",
            where,
            state.full,
            part.slots,
            victims=part.holders,
            facts={"held_by": list(part.holders)},
        )


def write_after_free(state: LedgerState, where: Where, writes: Written) -> None:
    """Bytes are written by somebody who gave the slot up: an action that was launched before the release.

    Proven by the release and the later write (a `kv` by name, or a forward of a row whose request has left).
    Source: taxonomy K06.
    """
    for part in state.parted(writes.table, writes.slots):
        chosen = writes.only(np.isin(writes.slots, part.slots))
        mark = writes.table.given_up(int(part.slots[0]))
        if mark is None or mark.by != writes.name:
            mark = writes.table.released(int(part.slots[0]))
        facts = chosen.facts(released=as_fact(mark), now_held_by=list(part.holders))
        _add(state, "write-after-free", where, chosen, victims=part.holders, facts=facts)


def kv_foreign(state: LedgerState, where: Where, writes: Written) -> None:
    """Bytes are written by somebody who never held the slot: proven by the `kv` event's `by`.

    Source: trace format, "Bytes"; taxonomy K12.
    """
    for part in state.parted(writes.table, writes.slots):
        facts: dict[str, object] = {"held_by": list(part.holders), "how": "kv"}
        _add(
            state,
            "kv-foreign",
            where,
            writes.only(np.isin(writes.slots, part.slots)),
            victims=part.holders,
            facts=facts,
        )


def _add(
    state: LedgerState,
    rule: str,
    where: Where,
    writes: Written,
    *,
    facts: dict[str, object],
    victims: tuple[str, ...] = (),
) -> None:
    state.log.add(
        rule,
        where,
        writes.table,
        writes.slots,
        actor=writes.name,
        victims=victims,
        row=writes.row,
        positions=writes.positions,
        facts=facts,
    )


def _held_before(table: SlotTable, slot: int, name: str | None) -> bool:
    previous, given_up = table.previous(slot), table.given_up(slot)
    by = {given_up.by if given_up is not None else None, previous.holder if previous is not None else None}
    return name is not None and name in by
