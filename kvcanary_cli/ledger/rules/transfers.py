"""Rules about offloads, reloads and remote deliveries: the right slots, all of them, meant in the same way?"""

from __future__ import annotations

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import CACHE, IntArray
from kvcanary_cli.ledger.rules.holders import as_fact
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import LedgerState, is_request, listed, span


def xfer_to_old_epoch(
    state: LedgerState,
    where: Where,
    table: SlotTable,
    slots: IntArray,
    epochs: IntArray,
    xfer: tuple[str, str | None, int],
) -> None:
    """A delivery lands in slots that were released, or changed hands, after it was addressed to them.

    Proven by the epochs at `xfer start` and now. Source: trace format, `xfer`; taxonomy K07.
    """
    name, rid, started = xfer
    for part in state.parted(table, slots, table.released):
        first = int(part.slots[0])
        state.log.add(
            "xfer-to-old-epoch",
            where,
            table,
            part.slots,
            actor=rid if rid is not None else f"xfer:{name}",
            victims=[other for other in part.holders if other != f"xfer:{name}"],
            facts={
                "id": name,
                "addressed_epoch": int(epochs[slots == first][0]),
                "epoch_now": int(table.slots[first, c.EPOCH]),
                "released": as_fact(part.mark),
                "started": started,
                "now_held_by": list(part.holders),
            },
        )


def partial(
    state: LedgerState,
    where: Where,
    table: SlotTable,
    slots: IntArray,
    count: int,
    actor: str | None,
    *,
    what: str,
    name: str,
) -> None:
    """Only the first `count` of the slots arrived: proven by `count` of the `xfer done` or `reload`.

    `slots` are those that stayed empty. Source: trace format, `reload`; taxonomy K22.
    """
    state.log.add(
        f"{what}-partial",
        where,
        table,
        slots[count:],
        actor=actor,
        victims=state.holder_names(table, slots[count:].tolist()),
        facts={"id": name, "count": count, "of": int(slots.size)},
    )


def missing_sources(
    state: LedgerState,
    where: Where,
    table: SlotTable,
    slots: IntArray,
    missing: list[str],
    actor: str | None,
    *,
    what: str,
    name: str,
) -> None:
    """A delivery brings fewer byte sources than the pool has: proven by `sources` and the header.

    Source: trace format, `reload`; taxonomy K23.
    """
    state.log.add(
        f"{what}-missing-sources",
        where,
        table,
        slots,
        actor=actor,
        victims=state.holder_names(table, slots.tolist()),
        facts={"id": name, "missing": missing},
    )


def dtype_mismatch(
    state: LedgerState,
    where: Where,
    table: SlotTable,
    slots: IntArray,
    name: str,
    differs: dict[str, tuple[object, object]],
) -> None:
    """One side means the bytes otherwise: element type, element size or version of the scales.

    Proven by the declarations of the event and of the header's sources (or of the offload, for a reload); `differs`
    has for each field what was declared and what stands against it, `field` is the first of them.
    Source: taxonomy K24.
    """
    field, (declared, ours) = next(iter(differs.items()))
    facts: dict[str, object] = {
        "id": name,
        "field": field,
        "declared": declared,
        "pool": ours,
        "differs": {other: list(pair) for other, pair in differs.items()},
    }
    state.log.add("dtype-mismatch", where, table, slots, actor=None, facts=facts)


def geometry_mismatch(
    state: LedgerState, where: Where, table: SlotTable, slots: IntArray, name: str, ours: int, theirs: int
) -> None:
    """The two sides have pages of different size: proven by their declarations.

    Source: taxonomy K25.
    """
    facts: dict[str, object] = {"id": name, "page_size": theirs, "expected": ours}
    state.log.add("geometry-mismatch", where, table, slots, actor=None, facts=facts)


def reload_over_published(
    state: LedgerState, where: Where, table: SlotTable, slots: IntArray, key: str
) -> None:
    """A stored chunk is loaded over slots that were valid, published and in use.

    Proven by the reload's slots: written before, with an entry of the cache, and held by a request.
    Source: taxonomy K26.
    """
    holders = state.holder_names(table, slots.tolist())
    state.log.add(
        "reload-over-published",
        where,
        table,
        slots,
        victims=holders,
        facts={"key": key, "readers": [name for name in holders if is_request(name)]},
    )


def offload_unwritten(
    state: LedgerState, where: Where, table: SlotTable, slots: IntArray, key: str, *, is_held: bool
) -> None:
    """A copy is stored of slots into which nobody wrote since their allocation, or which nobody holds.

    Proven by the offload and the alloc or release before it. Source: taxonomy K08.
    """
    first = int(slots[0])
    state.log.add(
        "offload-unwritten",
        where,
        table,
        slots,
        victims=(CACHE,) if CACHE in state.holder_names(table, slots.tolist()) else (),
        facts={
            "key": key,
            "state": "unwritten" if is_held else "free",
            "allocated": as_fact(table.allocated(first)),
            "released": as_fact(table.released(first)),
        },
    )


def offload_foreign(state: LedgerState, where: Where, table: SlotTable, slots: IntArray, key: str) -> None:
    """A copy is stored of slots that somebody wrote who did not hold them, or that were handed out anew.

    Proven by the last write, whose writer was no holder, or by a cache entry older than the slot's epoch.
    Source: taxonomy K08.
    """
    first = int(slots[0])
    writer = table.writer(first, c.BYTES_AT)
    state.log.add(
        "offload-foreign",
        where,
        table,
        slots,
        actor=writer.name if writer is not None else None,
        victims=state.holder_names(table, slots.tolist()),
        facts={
            "key": key,
            "written_by": writer.name if writer is not None else None,
            "written_step": writer.step if writer is not None else None,
            "epoch": int(table.slots[first, c.EPOCH]),
        },
    )


def read_in_transfer(
    state: LedgerState,
    where: Where,
    slots: IntArray,
    reader: str | None,
    row: int | None,
    positions: IntArray,
    facts: dict[str, object],
) -> None:
    """A forward reads slots into which a transfer of its own request has not landed yet.

    Proven by the start of the transfer and the forward before its end, or by a read of unwritten slots that a later
    delivery fills. Source: taxonomy K09.
    """
    state.log.add(
        "read-in-transfer",
        where,
        state.full,
        slots,
        actor=reader,
        row=row,
        positions=span(positions),
        facts={**facts, "positions": listed(positions)},
    )
