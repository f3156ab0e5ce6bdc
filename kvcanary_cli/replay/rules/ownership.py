"""Who may hold a slot, and for how long: K01 to K06."""

from __future__ import annotations

from kvcanary_cli.replay.cases import Case
from kvcanary_cli.replay.incidents import Opinion, Strength
from kvcanary_cli.replay.rules.base import Context, fits, mark_text, names, rejected, span

RELEASES = ("free-unheld", "free-twice-in-list")


def dual_owner(case: Case, context: Context) -> Opinion | None:
    """K01: both owners entered by allocation, and nobody had released the slots in between."""
    breach = case.breach("alloc-held")
    if breach is None:
        return None
    earlier = breach.facts.get("released_before")
    if earlier is not None or case.breach(*RELEASES, "row-names-released") is not None:
        return rejected(
            "K01", "release-came-first", f"a release came before the second allocation: {mark_text(earlier)}"
        )
    text = f"ledger: {span(breach)} went to {breach.actor} while held by {names(breach.victims)}"
    return fits("K01", Strength.CERTAIN, ("alloc-held", text), rank=30, writer=breach.actor)


def double_free(case: Case, context: Context) -> Opinion | None:
    """K02: slots that were released before are released again, or twice in one list."""
    twice = case.breach("free-twice-in-list")
    if twice is not None:
        text = f"ledger: one release by {twice.actor} names {span(twice)} twice"
        return fits("K02", Strength.CERTAIN, ("free-twice-in-list", text), rank=10)
    breach = case.breach("free-unheld")
    if breach is None:
        return None
    previous = breach.facts.get("previous_release")
    was_theirs = isinstance(previous, dict) and previous.get("by") == breach.actor
    if breach.facts.get("state") != "free" and not was_theirs:
        return rejected(
            "K02", "not-released-before", f"{breach.actor} had not released {span(breach)} before"
        )
    text = f"ledger: {breach.actor} releases {span(breach)}, released before at {mark_text(previous)}"
    return fits("K02", Strength.CERTAIN, ("free-unheld", text), rank=10)


def stale_mapping(case: Case, context: Context) -> Opinion | None:
    """K03: a live row, or the prefix tree, still names slots that were given up by whoever owned them."""
    breach = case.breach("row-names-released", "tree-names-released", "share-unheld")
    if breach is None:
        return None
    if case.breach(*RELEASES) is not None:
        return rejected(
            "K03", "released-by-non-holder", "the release itself broke the rules; the row is its victim"
        )
    where = (
        "the prefix tree"
        if breach.rule == "tree-names-released"
        else f"the row of {breach.actor or names(breach.victims)}"
    )
    text = f"ledger: {where} names {span(breach)}, released at {mark_text(breach.facts.get('released'))}"
    reused = case.breach("write-foreign", "write-shared", "alloc-held")
    reasons = [(breach.rule, text)]
    if reused is None and not case.damaged:
        reasons.append(("latent", "no damage yet: the slots were not handed out again"))
    return fits("K03", Strength.CERTAIN, *reasons, rank=20)


def early_shared_release(case: Case, context: Context) -> Opinion | None:
    """K04: one holder's exit releases slots that others still hold."""
    breach = case.breach("free-unheld")
    if breach is None:
        return None
    previous = breach.facts.get("previous_release")
    if isinstance(previous, dict) and previous.get("by") == breach.actor:
        return rejected(
            "K04",
            "released-before",
            f"{breach.actor} had released these slots already: {mark_text(previous)}",
        )
    if breach.facts.get("state") != "held-by-others":
        return None
    text = (
        f"ledger: {breach.actor} releases {span(breach)}, which {names(breach.victims)} hold and it does not"
    )
    return fits("K04", Strength.CERTAIN, ("free-unheld", text), rank=10)


def write_to_shared(case: Case, context: Context) -> Opinion | None:
    """K05: a writer and others hold a slot legitimately, and it is written in place."""
    breach = case.breach("write-shared")
    if breach is None:
        return None
    if case.breach("alloc-held", *RELEASES, "row-names-released") is not None:
        return rejected("K05", "not-by-sharing", "one of the holders did not come by sharing")
    text = f"ledger: {breach.actor} writes {span(breach)} in place, shared with {names(breach.victims)}"
    return fits(
        "K05", Strength.CERTAIN, ("write-shared", text), ("copy-on-write", "copy-on-write is missing"), rank=40,
        writer=breach.actor,
    )  # fmt: skip


def inflight_write_after_free(case: Case, context: Context) -> Opinion | None:
    """K06: the writer is the previous owner, and what it wrote was launched before it let go."""
    breach = case.breach("write-after-free")
    if breach is None:
        if case.breach("xfer-to-old-epoch") is not None:
            return rejected("K06", "no-forward-in-flight", "the late writer is a transfer, not a forward")
        return None
    released = breach.facts.get("released")
    text = f"ledger: {breach.actor} writes {span(breach)}, given up at {mark_text(released)}"
    return fits("K06", Strength.CERTAIN, ("write-after-free", text), rank=20, writer=breach.actor)
