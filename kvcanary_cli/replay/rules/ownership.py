"""Who may hold a slot, and for how long: K01 to K06."""

from __future__ import annotations

from kvcanary_cli.ledger.records import Breach
from kvcanary_cli.replay.cases import Case
from kvcanary_cli.replay.incidents import Opinion, Strength
from kvcanary_cli.replay.rules.base import Context, fits, mark_text, names, rejected, span

RELEASES = ("free-unheld", "free-twice-in-list")
NAMED_AFTER = ("row-names-released", "tree-names-released", "share-unheld")


def dual_owner(case: Case, context: Context) -> Opinion | None:
    """K01: both owners entered by allocation, and nobody had released the slots in between."""
    breach = case.breach("alloc-held")
    if breach is None:
        return None
    earlier = breach.facts.get("released_before")
    if earlier is not None or case.before(breach, *RELEASES, *NAMED_AFTER) is not None:
        text = f"a release came before the second allocation: {mark_text(earlier)}"
        return rejected("K01", "release-came-first", text)
    text = f"ledger: {span(breach)} went to {breach.actor} while held by {names(breach.victims)}"
    return fits("K01", Strength.CERTAIN, ("alloc-held", text), root=breach, writer=breach.actor)


def double_free(case: Case, context: Context) -> Opinion | None:
    """K02: slots that were released before are released again, or twice in one list."""
    twice = case.breach("free-twice-in-list")
    if twice is not None:
        text = f"ledger: one release by {twice.actor} names {span(twice)} twice"
        return fits("K02", Strength.CERTAIN, ("free-twice-in-list", text), root=twice)
    breach = case.breach("free-unheld")
    if breach is None:
        return None
    previous = breach.facts.get("previous_release")
    if not _was_released(breach):
        return rejected("K02", "not-released-before", f"{span(breach)} had not been released before")
    text = f"ledger: {breach.actor} releases {span(breach)}, released before at {mark_text(previous)}"
    return fits("K02", Strength.CERTAIN, ("free-unheld", text), root=breach)


def stale_mapping(case: Case, context: Context) -> Opinion | None:
    """K03: a live row, or the prefix tree, still names slots that were given up by whoever owned them."""
    breach = case.breach(*NAMED_AFTER)
    if breach is None:
        return None
    if case.before(breach, *RELEASES) is not None:
        return rejected(
            "K03", "released-by-non-holder", "the release itself broke the rules; the row is its victim"
        )
    is_tree = breach.rule == "tree-names-released"
    where = "the prefix tree" if is_tree else f"the row of {breach.actor or names(breach.victims)}"
    text = f"ledger: {where} names {span(breach)}, released at {mark_text(breach.facts.get('released'))}"
    reasons = [(breach.rule, text)]
    if not case.damaged and case.breach("write-foreign", "write-shared", "alloc-held") is None:
        reasons.append(("latent", "no damage yet: the slots were not handed out again"))
    return fits("K03", Strength.CERTAIN, *reasons, root=breach)


def early_shared_release(case: Case, context: Context) -> Opinion | None:
    """K04: one holder's exit releases slots that others still hold."""
    breach = case.breach("free-unheld")
    if breach is None:
        return None
    if _was_released(breach):
        return rejected("K04", "released-before", f"{breach.actor} had released these slots already")
    text = (
        f"ledger: {breach.actor} releases {span(breach)}, which {names(breach.victims)} hold and it does not"
    )
    return fits("K04", Strength.CERTAIN, ("free-unheld", text), root=breach)


def write_to_shared(case: Case, context: Context) -> Opinion | None:
    """K05: a writer and others hold a slot legitimately, and it is written in place."""
    breach = case.breach("write-shared")
    if breach is None:
        return None
    if case.before(breach, "alloc-held", *RELEASES, *NAMED_AFTER) is not None:
        return rejected("K05", "not-by-sharing", "one of the holders did not come by sharing")
    text = f"ledger: {breach.actor} writes {span(breach)} in place, shared with {names(breach.victims)}"
    missing = ("copy-on-write", "copy-on-write is missing")
    return fits("K05", Strength.CERTAIN, ("write-shared", text), missing, root=breach, writer=breach.actor)


def inflight_write_after_free(case: Case, context: Context) -> Opinion | None:
    """K06: the writer is the previous owner, and what it wrote was launched before it let go."""
    breach = case.breach("write-after-free")
    if breach is None:
        if case.breach("xfer-to-old-epoch") is not None:
            return rejected("K06", "no-forward-in-flight", "the late writer is a transfer, not a forward")
        return None
    released = breach.facts.get("released")
    text = f"ledger: {breach.actor} writes {span(breach)}, given up at {mark_text(released)}"
    return fits("K06", Strength.CERTAIN, ("write-after-free", text), root=breach, writer=breach.actor)


def _was_released(breach: Breach) -> bool:
    """Whether the slots of a release were free before: since then nobody, or a new owner, holds them."""
    previous = breach.facts.get("previous_release")
    if breach.facts.get("state") == "free":
        return True
    return isinstance(previous, dict) and previous.get("by") == breach.actor
