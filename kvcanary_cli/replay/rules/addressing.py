"""The right data at the wrong place: page table, window map, padding, pool limits (K10 to K15, C5, C6)."""

from __future__ import annotations

from kvcanary_cli.kernels.consts import BIT_OUT_OF_RANGE
from kvcanary_cli.ledger.records import Breach
from kvcanary_cli.replay.cases import Case
from kvcanary_cli.replay.incidents import Opinion, Strength
from kvcanary_cli.replay.rules.base import Context, fits, names, rejected, span

MISPLACED = ("write-outside-row", "write-foreign", "write-unheld")


def table_changed_midflight(case: Case, context: Context) -> Opinion | None:
    """K10: for one forward a row held what belongs to another request or batch."""
    breach = case.breach("row-changed-by-other", "bind-occupied")
    if breach is None:
        return None
    if breach.rule == "bind-occupied":
        text = f"ledger: row {breach.row} went to {breach.actor} while {breach.facts.get('occupant')} used it"
        return fits("K10", Strength.STRONG, ("bind-occupied", text), root=breach, writer=breach.actor)
    text = f"ledger: the row of {names(breach.victims)} was written by {breach.actor}"
    return fits("K10", Strength.CERTAIN, ("row-changed-by-other", text), root=breach, writer=breach.actor)


def leftover_tail(case: Case, context: Context) -> Opinion | None:
    """K11: columns of the row's former request, past the present length, are used."""
    breach = case.breach("write-beyond-length", "leftover")
    if breach is None:
        return None
    text = f"ledger: {breach.actor} uses {span(breach)}, which its row keeps from its former request"
    return fits("K11", Strength.CERTAIN, (breach.rule, text), root=breach, writer=breach.actor)


def boundary_arithmetic(case: Case, context: Context) -> Opinion | None:
    """K13: a write is one slot or one page beside the row's entry, at a page edge."""
    found = _misplaced(case)
    if found is None:
        return None
    breach, delta = found
    text = f"{breach.actor} writes {span(breach)}, {delta:+d} slots from its row's entry"
    if abs(delta) not in {1, context.page_size}:
        return rejected("K13", "not-one-off", f"the write is {delta:+d} slots from the row's entry")
    if not _touches_edge(breach, context.page_size):
        return fits("K13", Strength.WEAK, ("one-off", text), root=breach, rank=45, writer=breach.actor)
    reason = ("one-off-at-edge", f"{text}, at a page edge")
    return fits("K13", Strength.STRONG, reason, root=breach, rank=10, writer=breach.actor)


def address_mixup(case: Case, context: Context) -> Opinion | None:
    """K12: a write went to an address that no ownership event explains."""
    found = _misplaced(case)
    if found is None:
        return _foreign_row(case)
    breach, delta = found
    if case.before(breach, "alloc-held", "free-unheld", "row-names-released") is not None:
        return None
    text = f"{breach.actor} writes {span(breach)}, {delta:+d} slots from its row's entry; nothing that was recorded"
    text += " explains that address"
    return fits("K12", Strength.STRONG, ("outside-row", text), root=breach, rank=20, writer=breach.actor)


def window_mismatch(case: Case, context: Context) -> Opinion | None:
    """K14: window map and window disagree; the full group of the same positions is clean."""
    breach = case.breach("window-unmapped", "window-reused")
    if breach is None:
        return None
    what = (
        "is mapped to 0 inside the window"
        if breach.rule == "window-unmapped"
        else "is mapped by two full slots"
    )
    return fits("K14", Strength.CERTAIN, (breach.rule, f"ledger: {span(breach)} {what}"), root=breach)


def pad_lane_write(case: Case, context: Context) -> Opinion | None:
    """K15: padded or idle lanes write real slots."""
    breach = case.breach("pad-write")
    if breach is None:
        return None
    text = f"ledger: padded lanes write {span(breach)}, held by {names(breach.victims)}"
    return fits("K15", Strength.CERTAIN, ("pad-write", text), root=breach)


def row_width(case: Case, context: Context) -> Opinion | None:
    """C5: a row is written past its width, into its neighbour's first columns."""
    breach = case.breach("spill")
    if breach is None:
        return None
    text = f"ledger: row {breach.row} has {breach.facts.get('width')} columns and is written past the last"
    return fits("C5", Strength.CERTAIN, ("spill", text), root=breach, writer=breach.actor)


def address_range(case: Case, context: Context) -> Opinion | None:
    """C6: a slot number that the pool does not have."""
    breach = case.breach("slot-out-of-range")
    if breach is None and not case.bits() & BIT_OUT_OF_RANGE:
        return None
    where = span(breach) if breach is not None else f"slot {case.damaged[0].slot}"
    text = f"{where} is outside the pool of {context.num_slots} slots"
    return fits("C6", Strength.CERTAIN, ("slot-out-of-range", text), root=breach)


def _foreign_row(case: Case) -> Opinion | None:
    """A row that its own request pointed at slots of others."""
    breach = case.breach("row-names-foreign")
    if breach is None:
        return None
    text = f"ledger: the row of {breach.actor} names {span(breach)}, held by {names(breach.victims)} alone"
    return fits("K12", Strength.STRONG, ("row-names-foreign", text), root=breach, rank=20)


def _misplaced(case: Case) -> tuple[Breach, int] | None:
    """The first write that did not go where the row says, and its distance in slots."""
    for breach in case.breaches:
        if breach.rule in MISPLACED:
            entry = breach.facts.get("row_entry")
            first = entry[0] if isinstance(entry, list) and entry else entry
            if isinstance(first, int) and first > 0 and first != int(breach.slots[0]):
                return breach, int(breach.slots[0]) - first
    return None


def _touches_edge(breach: Breach, page_size: int) -> bool:
    """Whether the written positions begin or end at a page edge."""
    if breach.positions is None:
        return False
    first, last = breach.positions
    return first % page_size == 0 or (last + 1) % page_size == 0
