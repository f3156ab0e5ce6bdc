"""Rules about slots that are handed out and given up."""

from __future__ import annotations

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import CACHE, IntArray, Mark
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import LedgerState


def as_fact(mark: Mark | None) -> dict[str, object] | None:
    """A mark as facts keep it."""
    return mark.as_json() if mark is not None else None


def alloc_reserved(
    state: LedgerState, where: Where, table: SlotTable, slots: IntArray, actor: str, how: str
) -> None:
    """Page 0 is nobody's: proven by an alloc, share or publish that names a slot of it.

    Source: trace format, "Odd but defined".
    """
    state.log.add(
        "alloc-reserved",
        where,
        table,
        slots,
        actor=actor,
        facts={"how": how, "reserved_below": table.reserved},
    )


def alloc_held(state: LedgerState, where: Where, table: SlotTable, slots: IntArray, actor: str) -> None:
    """The allocator hands out a slot that has holders: proven by the alloc, with the holders' own events before it.

    `released_before` is the release that put the slot on the free list once too often (K02, K04 at the root); None
    speaks for the allocator itself. Source: trace format, "Ownership"; taxonomy K01.
    """
    for part in state.parted(table, slots, table.dubious):
        state.log.add(
            "alloc-held",
            where,
            table,
            part.slots,
            actor=actor,
            victims=part.holders,
            facts={
                "released_before": as_fact(part.mark),
                "holders": list(part.holders) or [actor],
                "listed_twice": not part.holders,
            },
        )


def alloc_partial_page(
    state: LedgerState, where: Where, table: SlotTable, slots: IntArray, actor: str
) -> None:
    """Part of a page is handed out and nobody holds the rest, by an allocator that lists whole pages.

    Proven by the alloc, once a forward ended inside a page whose rest was held (so the allocator lists pages).
    Source: trace format, "Odd but defined"; taxonomy K13.
    """
    state.log.add(
        "alloc-partial-page",
        where,
        table,
        slots,
        actor=actor,
        facts={"page_size": table.page_size, "pages": sorted({int(s) // table.page_size for s in slots})},
    )


def free_unheld(state: LedgerState, where: Where, table: SlotTable, slots: IntArray, actor: str) -> None:
    """Somebody gives up what it does not hold: proven by the free (or evict) and by who holds the slot then.

    State "free": nobody does, the slot was released before (K02). "held-by-others": their slot is on the free
    list now (K04). Source: trace format, "Ownership".
    """
    for part in state.parted(table, slots, table.released):
        state.log.add(
            "free-unheld",
            where,
            table,
            part.slots,
            actor=actor,
            victims=part.holders,
            facts={
                "state": "held-by-others" if part.holders else "free",
                "previous_release": as_fact(part.mark),
                "gave_up_before": gave_up(state, table, int(part.slots[0]), actor),
            },
        )


def free_twice_in_list(
    state: LedgerState, where: Where, table: SlotTable, slots: IntArray, actor: str
) -> None:
    """One release names a slot twice and its holder had it once: proven by the list.

    Source: trace format, "Slot lists"; taxonomy K02.
    """
    victims = [name for name in state.holder_names(table, slots.tolist()) if name != actor]
    state.log.add("free-twice-in-list", where, table, slots, actor=actor, victims=victims)


def tree_names_released(state: LedgerState, where: Where) -> None:
    """A cache entry stands on a slot that the cache does not hold any more, or that was handed out anew.

    Proven by the cache's release (or the alloc) and by no `evict` of the entry until the next forward or sweep.
    Source: taxonomy K03; trace format, "The cache's content is a set of entries".
    """
    table = state.full
    slots = np.array(sorted(state.ghosts), np.int64)
    state.ghosts.clear()
    for part in state.parted(table, slots, table.released):
        state.log.add(
            "tree-names-released",
            where,
            table,
            part.slots,
            actor=part.mark.by if part.mark is not None else None,
            victims=(CACHE,),
            facts={
                "released": as_fact(part.mark),
                "now_held_by": [name for name in part.holders if name != CACHE],
            },
        )


def gave_up(state: LedgerState, table: SlotTable, slot: int, name: str | None) -> bool:
    """Whether `name` held the slot once and gave it up, as far as the last release and the last epoch tell."""
    if name is None or not 0 <= slot < table.num_slots:
        return False
    number = state.names.number(name)
    row = table.slots[slot]
    wrote = row[c.BYTES_AT + c.WRITE_NAME] == number and row[c.BYTES_AT + c.WRITE_HOW] & c.HELD
    marks = row[[c.LEFT_BY, c.RELEASE_BY, c.PREVIOUS_HOLDER]]
    return bool(wrote) or bool((marks == number).any())


def flagged(slots: IntArray, found: IntArray, flag: int) -> IntArray:
    """Those of the named slots that have a flag."""
    return slots[(found[: slots.size] & flag) != 0]


def with_entry(table: SlotTable, slots: IntArray) -> list[int]:
    """Slots that the prefix cache has an entry on."""

    def has_entry(slot: int) -> bool:
        return any(holder.name == CACHE and holder.how == "publish" for holder in table.holders(slot))

    return [slot for slot in np.unique(slots).tolist() if has_entry(slot)]
