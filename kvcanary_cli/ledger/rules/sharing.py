"""Rules about slots that are shared and published: held, written, with the right tokens and key?"""

from __future__ import annotations

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import CACHE, IntArray
from kvcanary_cli.ledger.rules.holders import alloc_reserved, as_fact, flagged
from kvcanary_cli.ledger.state import LedgerState, listed, span


def judge_join(state: LedgerState, where: Where, slots: IntArray, actor: str, how: str) -> None:
    """Report what `join` flagged."""
    found = state.full.found.copy()
    reserved = flagged(slots, found, c.IS_RESERVED)
    if reserved.size:
        alloc_reserved(state, where, state.full, reserved, actor, how)
    unheld = flagged(slots, found, c.NOT_HELD)
    if unheld.size:
        share_unheld(state, where, unheld, actor, how)


def share_unheld(state: LedgerState, where: Where, slots: IntArray, actor: str, how: str) -> None:
    """Somebody joins the holders of a slot that has none: proven by the event and the release before it.

    Source: trace format, `share` and `hold` ("slots already held"); taxonomy K03.
    """
    state.log.add(
        "share-unheld",
        where,
        state.full,
        slots,
        actor=actor,
        facts={"how": how, "released": as_fact(state.full.released(int(slots[0])))},
    )


def share_unwritten(
    state: LedgerState, where: Where, row: int, rid: str, slots: IntArray, positions: IntArray
) -> None:
    """A forward reads shared slots into which nobody wrote since their allocation.

    Proven by the alloc and by no write before this forward; judged at the forward, because a delivery may still
    come after the share. Source: taxonomy K19.
    """
    allocated = state.full.allocated(int(slots[0]))
    state.log.add(
        "share-unwritten",
        where,
        state.full,
        slots,
        actor=allocated.by if allocated is not None else None,
        victims=(rid,),
        row=row,
        positions=span(positions),
        facts={"positions": listed(positions), "allocated": as_fact(allocated), "reader": rid},
    )


def share_token_mismatch(
    state: LedgerState, where: Where, rid: str, slots: IntArray, positions: IntArray, want: IntArray
) -> None:
    """A request takes over slots that were written (or published) with tokens that it does not have.

    Proven by the tokens written there and the sharer's `truth`. The slots are intact for their publisher.
    Source: taxonomy K20.
    """
    table = state.full
    row = table.slots[int(slots[0])]
    is_written = bool(row[c.FLAGS] & c.HAS_TOKEN)
    state.log.add(
        "share-token-mismatch",
        where,
        table,
        slots,
        actor=rid,
        positions=span(positions),
        facts={
            "position": int(positions[0]),
            "have": int(row[c.TOKEN if is_written else c.PUBLISHED_TOKEN]),
            "want": int(want[0]),
            "source": "written" if is_written else "published",
            "positions": listed(positions),
        },
    )


def publish_token_mismatch(
    state: LedgerState,
    where: Where,
    rid: str | None,
    slots: IntArray,
    positions: IntArray,
    published: IntArray,
) -> None:
    """The cache files slots under tokens that were not written there: proven by `publish.tokens` and the writes.

    Source: trace format, `publish`; taxonomy K20.
    """
    state.log.add(
        "publish-token-mismatch",
        where,
        state.full,
        slots,
        actor=rid,
        victims=(CACHE,),
        positions=span(positions),
        facts={
            "position": int(positions[0]),
            "have": int(state.full.slots[int(slots[0]), c.TOKEN]),
            "want": int(published[0]),
            "positions": listed(positions),
        },
    )


def publish_unwritten(
    state: LedgerState, where: Where, rid: str | None, slots: IntArray, positions: IntArray
) -> None:
    """The cache has entries on slots that nobody wrote, not even the forward after the publish.

    Proven by the alloc and by no write up to the end of the next forward. Source: taxonomy K19.
    """
    state.log.add(
        "publish-unwritten",
        where,
        state.full,
        slots,
        actor=rid,
        victims=(CACHE,),
        positions=span(positions),
        facts={
            "positions": listed(positions),
            "allocated": as_fact(state.full.allocated(int(slots[0]))),
        },
    )


def key_mismatch(
    state: LedgerState,
    where: Where,
    rid: str | None,
    slots: IntArray,
    keys: tuple[dict[str, object], dict[str, object]],
) -> None:
    """Slots are used under another cache key than they were published under: another adapter, image or salt.

    Proven by the `key` of both publishes; where either gave none, nothing is judged. Source: taxonomy K20.
    """
    own, published = keys
    parts = [part for part in sorted({*own, *published}) if own.get(part) != published.get(part)]
    state.log.add(
        "key-mismatch",
        where,
        state.full,
        slots,
        actor=rid,
        victims=state.holder_names(state.full, slots.tolist()),
        facts={"own": own, "published": published, "differs": parts},
    )
