"""Data that comes from elsewhere: transfers, offloads, reloads (K07 to K09, K22 to K26)."""

from __future__ import annotations

from kvcanary_cli.kernels.consts import BIT_KV_HASH
from kvcanary_cli.replay.cases import Case
from kvcanary_cli.replay.incidents import Opinion, Strength
from kvcanary_cli.replay.rules.base import Context, fits, mark_text, names, rejected, span, was


def late_remote_write(case: Case, context: Context) -> Opinion | None:
    """K07: a transfer lands after its destination changed hands."""
    breach = case.breach("xfer-to-old-epoch")
    if breach is None:
        if case.bits() & BIT_KV_HASH and context.has_transfers and not case.writers():
            return rejected("K07", "no-transfer-landed", "no transfer landed on these slots")
        return None
    addressed, now = breach.facts.get("addressed_epoch"), breach.facts.get("epoch_now")
    reasons = [
        (
            "xfer-to-old-epoch",
            f"ledger: {was(breach)} addressed in epoch {addressed} and landed in epoch {now}, "
            f"held by {names(breach.victims)}",
        ),
        (
            "released-first",
            f"ledger: the destination was released at {mark_text(breach.facts.get('released'))}",
        ),
    ]
    return fits("K07", Strength.CERTAIN, *reasons, root=breach, writer=breach.actor)


def store_source_race(case: Case, context: Context) -> Opinion | None:
    """K08: an offload copied slots that did not hold what its key promises."""
    breach = case.breach("offload-unwritten", "offload-foreign")
    if breach is not None:
        what = (
            "not written yet" if breach.rule == "offload-unwritten" else "already written by another request"
        )
        return fits(
            "K08",
            Strength.CERTAIN,
            (breach.rule, f"ledger: {was(breach)} copied when {what}"),
            root=breach,
        )
    reloads = [writer for writer in case.writers() if writer.how == "reload"]
    if reloads and len(reloads) == len(case.writers()) and not case.breaches:
        text = f"every damaged slot was reloaded from key {reloads[0].id}, and the reload was complete"
        return fits("K08", Strength.WEAK, ("reloaded", text), rank=60)
    return None


def reload_race(case: Case, context: Context) -> Opinion | None:
    """K09: restored data is read before the copy is complete."""
    breach = case.breach("read-in-transfer")
    if breach is None:
        return None
    text = f"ledger: {breach.actor} reads {span(breach)} before the copy that fills them is done"
    return fits("K09", Strength.CERTAIN, ("read-in-transfer", text), root=breach)


def torn_transfer(case: Case, context: Context) -> Opinion | None:
    """K22: only the first part of an extent arrived."""
    breach = case.breach("xfer-partial", "reload-partial")
    if breach is None:
        if case.breach("xfer-to-old-epoch") is not None:
            return rejected("K22", "complete", "the transfer is complete")
        return None
    text = f"ledger: of the extent only a part arrived, {span(breach)} did not"
    return fits("K22", Strength.CERTAIN, (breach.rule, text), root=breach)


def missing_sidecar(case: Case, context: Context) -> Opinion | None:
    """K23: some byte sources were not copied with the others."""
    breach = case.breach("xfer-missing-sources", "reload-missing-sources")
    if breach is None:
        return None
    missing = breach.facts.get("missing") or breach.facts.get("sources") or []
    named = ", ".join(str(name) for name in missing) if isinstance(missing, list) else str(missing)
    text = f"ledger: {span(breach)} came without source {named}"
    return fits("K23", Strength.CERTAIN, (breach.rule, text), root=breach)


def dtype_scale(case: Case, context: Context) -> Opinion | None:
    """K24: producer and consumer declare different types, element sizes or scales."""
    breach = case.breach("dtype-mismatch")
    if breach is None:
        return None
    facts = breach.facts
    text = f"declared: {facts.get('field')} is {facts.get('declared')}, the pool has {facts.get('pool')}"
    return fits("K24", Strength.CERTAIN, ("dtype-mismatch", text), root=breach)


def geometry_mismatch(case: Case, context: Context) -> Opinion | None:
    """K25: the two sides lay slots out differently."""
    breach = case.breach("geometry-mismatch")
    if breach is None:
        return None
    facts = breach.facts
    text = f"declared: {facts.get('id')} has pages of {facts.get('page_size')}, the pool of {facts.get('expected')}"
    return fits("K25", Strength.CERTAIN, ("geometry-mismatch", text), root=breach)


def overlay_restore(case: Case, context: Context) -> Opinion | None:
    """K26: a reload lands on slots that are published and in use."""
    breach = case.breach("reload-over-published")
    if breach is None:
        return None
    harm = "their bytes changed" if case.damaged else "their bytes are the same, so no harm was done"
    text = (
        f"ledger: {was(breach)} published and held by {names(breach.victims)} when a reload wrote it; {harm}"
    )
    return fits("K26", Strength.CERTAIN, ("reload-over-published", text), root=breach)
