"""Rules about page-table rows: who uses them, what they name, and how long their requests are."""

from __future__ import annotations

import numpy as np

from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import Breach, IntArray, Mark
from kvcanary_cli.ledger.rules.holders import as_fact
from kvcanary_cli.ledger.state import NONE, LedgerState, listed, span


def bind_occupied(
    state: LedgerState, where: Where, row: int, rid: str, occupant: str | None, old_row: int | None
) -> None:
    """A row that a request uses is bound again, or a request that has a row gets another one.

    Proven by the two binds with no unbind between them. Source: trace format, `bind`.
    """
    state.log.add(
        "bind-occupied",
        where,
        state.full,
        NONE,
        actor=rid,
        victims=(occupant,) if occupant is not None else (),
        row=row,
        facts={"occupant": occupant, "old_row": old_row},
    )


def row_changed_by_other(
    state: LedgerState, where: Where, row: int, at: int, slots: IntArray, by: str, rid: str
) -> None:
    """Somebody else than the row's request writes the row: proven by the map's `by`.

    Source: trace format, `map`; taxonomy K10, C5.
    """
    state.log.add(
        "row-changed-by-other",
        where,
        state.full,
        slots[slots > 0],
        actor=by,
        victims=(rid,),
        row=row,
        positions=(at, at + slots.size - 1),
        facts={"columns": [at, at + slots.size - 1], "request": rid},
    )


def spill(
    state: LedgerState, where: Where, row: int, at: int, slots: IntArray, actor: str | None, *, how: str
) -> None:
    """Columns past a row's width are written, which is the next row's memory: proven by the column numbers.

    Source: trace format, `map`; taxonomy C5.
    """
    width = state.page.width
    behind = row + 1
    victim = state.page.row_rid[behind] if behind < state.page.num_rows else None
    state.log.add(
        "spill",
        where,
        state.full,
        slots,
        actor=actor,
        victims=(victim,) if victim is not None else (),
        row=row,
        positions=(at, at + slots.size - 1),
        facts={"width": width, "how": how, "spilled_into": behind if behind < state.page.num_rows else None},
    )


def row_names_released(
    state: LedgerState,
    where: Where,
    row: int,
    rid: str | None,
    slots: IntArray,
    columns: IntArray,
    forced: bool,
) -> list[Breach]:
    """A forward reads slots through its row that its request gave up, or that were released from under it.

    Proven by the release (or the lack of a holder) and by the row, which still names the slots below the prefix.
    Source: trace format, "Ownership"; taxonomy K03, K04.
    """
    table = state.full

    def release(slot: int) -> Mark | None:
        own = table.given_up(slot)
        return own if own is not None and own.by == rid and not forced else table.released(slot)

    found = []
    for part in state.parted(table, slots, release):
        mark, columns_ = part.mark, columns[np.isin(slots, part.slots)]
        breach = state.log.add(
            "row-names-released",
            where,
            table,
            part.slots,
            actor=mark.by if mark is not None else None,
            victims=(rid,) if rid is not None else (),
            row=row,
            positions=span(columns_),
            facts={
                "released": as_fact(mark),
                "reader": rid,
                "now_held_by": [name for name in part.holders if name != rid],
            },
        )
        found += [breach] if breach is not None else []
    return found


def row_names_foreign(
    state: LedgerState, where: Where, row: int, rid: str | None, slots: IntArray, columns: IntArray
) -> list[Breach]:
    """A forward reads slots through its row that only others hold and that its request mapped itself.

    Proven by the map and by the holders at the time of the forward. Source: taxonomy K10, K12.
    """
    found = []
    for part in state.parted(state.full, slots):
        breach = state.log.add(
            "row-names-foreign",
            where,
            state.full,
            part.slots,
            actor=rid,
            victims=part.holders,
            row=row,
            positions=span(columns[np.isin(slots, part.slots)]),
            facts={"held_by": list(part.holders)},
        )
        found += [breach] if breach is not None else []
    return found


def row_twice(state: LedgerState, where: Where, row: int, rid: str | None, slots: IntArray) -> None:
    """One forward names a row in two lanes: proven by its list of rows.

    Source: trace format, "Odd but defined".
    """
    state.log.add("row-twice", where, state.full, slots, actor=rid, row=row)


def length_mismatch(
    state: LedgerState,
    where: Where,
    row: int,
    rid: str | None,
    slots: IntArray,
    prefix: int,
    before: tuple[int, int, int],
) -> None:
    """After a forward that named how many tokens it keeps, the next prefix is another length.

    Proven by `accepted` and the next `prefix`: a larger one counts rejected drafts in, a smaller one loses accepted
    tokens. `slots` are those between the two. Source: trace format, "A request's length"; taxonomy K16.
    """
    length, accepted, lens = before
    state.log.add(
        "length-mismatch",
        where,
        state.full,
        slots,
        actor=rid,
        row=row,
        positions=(min(length, prefix), max(length, prefix) - 1),
        facts={"length": length, "prefix": prefix, "accepted": accepted, "lens": lens},
    )


def length_jump(
    state: LedgerState,
    where: Where,
    row: int,
    rid: str | None,
    slots: IntArray,
    prefix: int,
    length: int,
    columns: tuple[int, int],
) -> None:
    """A prefix reaches over columns that were neither written, shared nor delivered.

    Proven by the row's length and by slots in between that hold nothing or that the request does not hold.
    Source: trace format, "A request's length"; taxonomy K13, K16, K19.
    """
    state.log.add(
        "length-jump",
        where,
        state.full,
        slots,
        actor=rid,
        row=row,
        positions=columns,
        facts={"length": length, "prefix": prefix},
    )


def position_drift(
    state: LedgerState,
    where: Where,
    row: int,
    rid: str | None,
    slots: IntArray,
    positions: IntArray,
    columns: IntArray,
) -> None:
    """Positions of a chained forward are not prefix, prefix + 1, …: proven by the forward's own lists.

    `delta` is the displacement of the first wrong token, `is_constant` whether all have it. Source: taxonomy K17.
    """
    delta = positions - columns
    wrong = delta != 0
    state.log.add(
        "position-drift",
        where,
        state.full,
        slots[wrong & (slots >= 0)],
        actor=rid,
        row=row,
        positions=span(columns[wrong]),
        facts={
            "delta": int(delta[wrong][0]),
            "is_constant": bool((delta[wrong] == delta[wrong][0]).all()),
            "given": listed(positions[wrong]),
        },
    )
