"""The right place with the wrong content: tokens, positions, prefixes, bytes (K16 to K21)."""

from __future__ import annotations

from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_KV_HASH,
    BIT_POSITION,
    BIT_VERIFY_TOKEN,
    BIT_WRITE_TOKEN,
)
from kvcanary_cli.ledger.records import Breach
from kvcanary_cli.replay.cases import Case
from kvcanary_cli.replay.incidents import Opinion, Strength
from kvcanary_cli.replay.rules.base import Context, fits, rejected, span, was
from kvcanary_cli.replay.stories import SlotStory


def rollback_slip(case: Case, context: Context) -> Opinion | None:
    """K16: after a speculative verify the length is not what was accepted."""
    breach = case.breach("length-mismatch", "length-jump")
    if breach is None:
        return None
    if case.breach("read-in-transfer", "share-unwritten") is not None:
        return rejected(
            "K16", "not-after-a-verify", "what was read is a copy or a prefix that had not come yet"
        )
    facts = breach.facts
    text = f"ledger: {breach.actor} goes on at {facts.get('prefix')} after a length of {facts.get('length')}"
    return fits(
        "K16",
        Strength.CERTAIN if breach.rule == "length-mismatch" else Strength.STRONG,
        (breach.rule, text),
        root=breach,
    )


def position_drift(case: Case, context: Context) -> Opinion | None:
    """K17: slot and token are right, the position label is not."""
    breach = case.breach("position-drift")
    if breach is None:
        return None
    text = f"trace: {breach.actor} writes positions {breach.facts.get('delta')} off its row's columns"
    return fits("K17", Strength.CERTAIN, ("position-drift", text), root=breach, writer=breach.actor)


def wrong_input_token(case: Case, context: Context) -> Opinion | None:
    """K18: the KV is faithful to a token that the request never had."""
    published = case.breach("publish-token-mismatch")
    if case.rules() - {"publish-token-mismatch"}:
        return None
    stories = [s for s in case.damaged if s.bits & (BIT_VERIFY_TOKEN | BIT_WRITE_TOKEN)]
    if not stories:
        return _published_token(published)
    story = stories[0]
    if story.bits & BIT_WRITE_TOKEN:
        given, expected = story.first.stored["token"], story.first.expected["token"]
        text = f"request {story.first.rid} was given token {given}, expected {expected}"
        return fits("K18", Strength.CERTAIN, ("write-token", text), rank=15)
    if not _is_as_written(story):
        return rejected("K18", "stamp-differs", "the stamp does not hold the token that was written")
    if story.bits & (BIT_CHAIN_HASH | BIT_POSITION | BIT_KV_HASH):
        return None
    text = f"slot {story.slot} holds the token that {story.first.rid} was given, which is not the one it has"
    return fits("K18", Strength.STRONG, ("token-as-written", text), rank=35)


def _published_token(breach: Breach | None) -> Opinion | None:
    """No check saw it, but the publisher says that it has another token there than was written."""
    if breach is None:
        return None
    facts = breach.facts
    text = f"ledger: {breach.actor} wrote token {facts.get('have')} at position {facts.get('position')}"
    text += f" and publishes it as {facts.get('want')}"
    return fits("K18", Strength.STRONG, ("publish-token-mismatch", text), root=breach)


def uncomputed_prefix(case: Case, context: Context) -> Opinion | None:
    """K19: a prefix is shared that nobody wrote since its slots were allocated."""
    breach = case.breach("share-unwritten", "publish-unwritten")
    if breach is None:
        return None
    how = "published" if breach.rule == "publish-unwritten" else "shared"
    text = f"ledger: {was(breach)} {how} by {breach.actor}, and nobody wrote it since its allocation"
    return fits("K19", Strength.CERTAIN, (breach.rule, text), root=breach)


def key_collision(case: Case, context: Context) -> Opinion | None:
    """K20: the lookup returned a real, intact prefix of something else."""
    breach = case.breach("share-token-mismatch", "key-mismatch")
    if breach is None:
        return None
    if breach.rule == "key-mismatch":
        text = f"ledger: {breach.actor} was lent {span(breach)}, published under another key"
    else:
        facts = breach.facts
        text = (
            f"ledger: {breach.actor} was lent {span(breach)}, which holds token {facts.get('have')} "
            f"at position {facts.get('position')} where it has {facts.get('want')}"
        )
    return fits("K20", Strength.CERTAIN, (breach.rule, text), root=breach)


def unattributed_bytes(case: Case, context: Context) -> Opinion | None:
    """K21: bytes or a stamp changed, and nobody wrote."""
    if case.rules() - {"publish-token-mismatch"}:
        if case.damaged and case.bits() & BIT_KV_HASH:
            return rejected("K21", "writer-recorded", "the writer is recorded")
        return None
    stories = case.damaged
    if not stories or any(s.first.rid is None and s.facts.stamp_writer is None for s in stories):
        return None
    if all(s.bits & ~BIT_KV_HASH == 0 for s in stories):
        if any(_bytes_rewritten(s) for s in stories):
            text = "bytes were written after the stamps, by a writer that the trace names"
            return fits("K21", Strength.WEAK, ("bytes-after-stamp", text), rank=60)
        text = "no write, transfer or padded lane touched the slots since they were stamped"
        return fits("K21", Strength.STRONG, ("nobody-wrote", text), rank=40)
    changed = [s for s in stories if not _is_as_written(s) or s.bits & BIT_CHAIN_HASH]
    if changed:
        text = (
            f"the stamp of slot {changed[0].slot} is not the one that was written, and nobody wrote it since"
        )
        return fits("K21", Strength.STRONG, ("stamp-changed", text), rank=45)
    return None


def _is_as_written(story: SlotStory) -> bool:
    """Whether token and position in the stamp are those that the ledger saw being written."""
    writer, stored = story.facts.stamp_writer, story.first.stored
    if writer is None:
        return False
    is_token = story.facts.token is None or stored["token"] == story.facts.token
    is_position = writer.position is None or stored["position"] == writer.position
    return is_token and is_position


def _bytes_rewritten(story: SlotStory) -> bool:
    byte_writer, stamp_writer = story.facts.byte_writer, story.facts.stamp_writer
    return byte_writer is not None and (stamp_writer is None or byte_writer.line != stamp_writer.line)
