"""Incidents as JSON: every fact that the text shows, and nothing that needs the run again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_KV_HASH,
    BIT_POSITION,
    BIT_VERIFY_TOKEN,
    BIT_WRITE_POSITION,
    BIT_WRITE_TOKEN,
    bit_names,
)
from kvcanary_cli.kinds import KINDS
from kvcanary_cli.ledger.records import Breach, Mark, SlotFacts, Writer
from kvcanary_cli.replay.diagnose import UNKNOWN
from kvcanary_cli.replay.incidents import Incident
from kvcanary_cli.replay.stories import SlotStory, Violation
from kvcanary_cli.report.text import to_ranges

UNKNOWN_NAME = "unknown-cause"

TOKEN_IN_WORDS = re.compile(r"(\btoken |, expected |where it has )-?\d+")
TOKEN_FACTS = frozenset({"have", "want", "token", "tokens"})
"""Facts of a breach that are token ids."""


def hide_tokens(text: str) -> str:
    """A sentence without its token ids, which may be what a user wrote."""
    return TOKEN_IN_WORDS.sub(r"\1*", text)


def kind_name(code: str) -> str:
    """Name of a kind; a case that no rule explains has one too."""
    return UNKNOWN_NAME if code == UNKNOWN else KINDS[code]


def incident_json(
    incident: Incident, number: int, page_size: int, *, no_tokens: bool = False
) -> dict[str, Any]:
    """One incident. Ranges are `[first, last]`, unknown is null."""
    facts = incident.facts
    stories = _slots_json(incident, page_size, no_tokens)
    return {
        "id": number,
        "kind": incident.kind,
        "name": kind_name(incident.kind),
        "severity": "error" if incident.is_damaged else "warning",
        "group": incident.group,
        "slots": to_ranges(incident.slots),
        "num_slots": len(incident.slots),
        "pages": to_ranges(slot // page_size for slot in incident.slots),
        "page_size": page_size,
        "is_damaged": incident.is_damaged,
        "shadows": to_ranges(incident.shadows),
        "other_group_slots": to_ranges(incident.other_slots),
        "breach": _breach(incident.breaches[0], no_tokens) if incident.breaches else None,
        "breaches": [_breach(breach, no_tokens) for breach in incident.breaches],
        "damaged_step": list(incident.damaged) if incident.damaged is not None else None,
        "seen": _seen(incident.seen),
        "latency_steps": latency(incident),
        "victims": incident.victims,
        "held_by": _holders(facts),
        "writer": writer_json(incident.writer),
        "last_writer": writer_json(facts.byte_writer if facts is not None else None),
        "held_before": _previous(facts),
        "released": mark_json(facts.released if facts is not None else None),
        "readers": [
            {"rid": rid, "steps": [first, last], "forwards": forwards}
            for rid, (first, last, forwards) in incident.readers.items()
        ],
        "cause": {
            "kind": incident.kind,
            "strength": incident.strength.name.lower(),
            "evidence": [
                {
                    ("for" if e.is_for else "against"): e.kind,
                    "rule": e.rule,
                    "text": hide_tokens(e.text) if no_tokens else e.text,
                }
                for e in incident.evidence
            ],
        },
        "example": _example(incident, stories),
        "slot_stories": stories,
    }


def finding_json(step: int, incident: Incident, page_size: int) -> dict[str, Any]:
    """An incident in short, as it turns up at `step` of a run."""
    return {
        "step": step,
        "kind": incident.kind,
        "name": kind_name(incident.kind),
        "group": incident.group,
        "slots": to_ranges(incident.slots),
        "num_slots": len(incident.slots),
        "pages": to_ranges(slot // page_size for slot in incident.slots),
    }


def latency(incident: Incident) -> list[int | None] | None:
    """Steps from the damage to the first failed check, as bounds."""
    if incident.damaged is None or incident.seen is None:
        return None
    seen = incident.seen.first.step
    first, last = incident.damaged
    longest = None if first is None else max(0, seen - first)
    return [max(0, seen - last), longest]


def violation_json(violation: Violation, no_tokens: bool) -> dict[str, Any]:
    """One violation with its place, reasons by name, hashes as hex."""
    return {
        "slot": violation.slot,
        "page": violation.page,
        "row": violation.row,
        "rid": violation.rid,
        "position": violation.position,
        "step": violation.step,
        "launch": violation.launch,
        "bits": bit_names(violation.bits),
        "stored": _fields(violation.stored, no_tokens),
        "expected": _fields(violation.expected, no_tokens),
    }


def _slots_json(incident: Incident, page_size: int, no_tokens: bool) -> list[dict[str, Any]]:
    """Slots of an incident that failed a check: what failed first, and who held and wrote each then."""
    shadows = {(incident.group, slot) for slot in incident.shadows}
    copies = set(incident.other_slots)
    alike = Counter((story.group, story.bits) for story in incident.stories)
    return [
        {
            "slot": story.slot,
            "group": story.group,
            "page": story.slot // page_size,
            "offset": story.slot % page_size,
            "is_shadow": (story.group, story.slot) in shadows
            or (story.group != incident.group and story.slot not in copies),
            "position": story.first.position,
            "held_by": [holder.name for holder in story.facts.holders],
            "writer": writer_json(story.facts.byte_writer),
            "seen": _seen(story),
            "violations": story.count,
            "last_step": story.last_step,
            "alike_slots": alike[story.group, story.bits],
            **_values(story, no_tokens),
        }
        for story in incident.stories
    ]


def _values(story: SlotStory, no_tokens: bool) -> dict[str, Any]:
    fields = {
        "token": BIT_VERIFY_TOKEN | BIT_WRITE_TOKEN,
        "position": BIT_POSITION | BIT_WRITE_POSITION,
        "prev_hash": BIT_CHAIN_HASH,
        "kv_hash": BIT_KV_HASH,
    }
    stored, expected = story.first.stored["position"], story.first.expected["position"]
    return {
        "differs": [field for field, bits in fields.items() if story.bits & bits],
        "position_shift": None if stored is None or expected is None else stored - expected,
        "stored": _fields(story.first.stored, no_tokens),
        "expected": _fields(story.first.expected, no_tokens),
    }


def writer_json(writer: Writer | None) -> dict[str, Any] | None:
    """The last writer of a slot."""
    if writer is None:
        return None
    return {
        "rid": writer.name,
        "step": writer.step,
        "event": writer.line,
        "how": writer.how,
        "id": writer.id,
        "in_row": writer.in_row,
        "position": writer.position,
    }


def mark_json(mark: Mark | None) -> dict[str, Any] | None:
    """When and by whom something happened."""
    return None if mark is None else {"step": mark.step, "event": mark.line, "by": mark.by, "why": mark.why}


def merged_ranges(incidents: Iterable[dict[str, Any]]) -> int:
    """Damaged slots of all incidents, each counted once."""
    slots: set[tuple[str, int]] = set()
    for incident in incidents:
        if incident["is_damaged"]:
            for first, last in incident["slots"]:
                slots |= {(incident["group"], slot) for slot in range(first, last + 1)}
    return len(slots)


def _example(incident: Incident, stories: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The slot that stands for its incident: the first of its slots that failed a check."""
    wanted = set(incident.slots)
    own = (s for s in stories if s["slot"] in wanted and s["group"] == incident.group)
    return next(own, stories[0] if stories else None)


def _breach(breach: Breach, no_tokens: bool) -> dict[str, Any]:
    facts = {key: value for key, value in breach.facts.items() if not (no_tokens and key in TOKEN_FACTS)}
    return {
        "step": breach.step,
        "event": breach.line,
        "rule": breach.rule,
        "group": breach.group,
        "slots": to_ranges(breach.slots.tolist()),
        "actor": breach.actor,
        "victims": list(breach.victims),
        "row": breach.row,
        "positions": list(breach.positions) if breach.positions is not None else None,
        "facts": facts,
    }


def _seen(story: SlotStory | None) -> dict[str, Any] | None:
    if story is None:
        return None
    first = story.first
    return {"step": first.step, "launch": first.launch, "rid": first.rid, "bits": bit_names(story.bits)}


def _holders(facts: SlotFacts | None) -> list[dict[str, Any]]:
    if facts is None:
        return []
    return [
        {"rid": h.name, "since_step": h.since_step, "epoch": h.epoch, "how": h.how, "event": h.since_line}
        for h in facts.holders
    ]


def _previous(facts: SlotFacts | None) -> dict[str, Any] | None:
    if facts is None or facts.previous is None:
        return None
    previous = facts.previous
    return {
        "rid": previous.holder,
        "steps": [previous.first_step, previous.last_step],
        "epoch": previous.epoch,
    }


def _fields(values: dict[str, int | None], no_tokens: bool) -> dict[str, Any]:
    out: dict[str, Any] = dict(values)
    if no_tokens:
        out.pop("token", None)
    if out.get("prev_hash") is not None:
        out["prev_hash"] = f"0x{out['prev_hash']:016x}"
    return out
