"""The report of `audit` as data; `audit_text.py` makes text of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.kernels.consts import (
    BIT_OUT_OF_RANGE,
    RING_AUX,
    RING_BITS,
    RING_EXPECTED_TOKEN,
    RING_SLOT,
    WORD_KV_HASH,
    bit_names,
)
from kvcanary_cli.kernels.hashing_ref import hash_slot
from kvcanary_cli.report.frame import Report, base_report, finish
from kvcanary_cli.report.text import to_ranges

if TYPE_CHECKING:
    from kvcanary_cli.audit.blame import Damage
    from kvcanary_cli.audit.incidents import Incident
    from kvcanary_cli.audit.run import AuditResult, GroupResult
    from kvcanary_cli.audit.verify import BufferResult

CACHE = "cache"
MAX_VIOLATIONS = 10_000
"""Violations in the JSON; the counts are always of all."""
MAX_HASHED = 1_000  # of these, how many say what hash the bytes have


def build_audit(
    result: AuditResult,
    *,
    inputs: dict[str, Any],
    backend: dict[str, Any],
    seconds: float,
    required: tuple[str, ...] = (),
    no_tokens: bool = False,
) -> Report:
    """The report of an audit: a damaged slot is a finding, what had to be checked and wasn't makes it incomplete."""
    dump = result.dump
    packages = ("numpy", "torch", "triton") if backend["name"] == "triton" else ("numpy", "numba")
    report = base_report("audit", inputs=inputs, pool=_pool(result), backend=backend, packages=packages)
    report["about"] = dump.facts.about
    missing = dict(result.missing)
    missing |= {check: "required, not checked" for check in required if check not in result.checks}
    report["coverage"] = _coverage(result, missing)
    incidents = [_incident(result, group, found) for group in result.groups for found in group.incidents]
    report["incidents"] = [{"id": number, **found} for number, found in enumerate(incidents, 1)]
    violations = [row for group in result.groups for row in _violations(result, group)]
    report["violations"] = violations[:MAX_VIOLATIONS]
    report["lengths"] = [
        {"row": p.row, "rid": dump.facts.rids.get(p.row), "length": p.length, "width": p.width}
        for p in result.lengths
    ]
    report["mixed_prefixes"] = [
        {"group": group.group, "slot": slot, "holders": _holders(result, group, entries)}
        for group in result.groups
        for slot, entries in group.mixed
    ]
    report["server_log"] = _log(result)
    report["notes"] = list(dump.notes)
    report["summary"] = _summary(result, report)
    report["timing"] = {"seconds": round(seconds, 3)}
    if no_tokens:
        _hide_tokens(report)
    codes = [Exit.FINDINGS] if report["incidents"] or report["lengths"] else []
    codes += [Exit.INCOMPLETE] if missing else []
    warnings = len(report["mixed_prefixes"]) + (report["summary"]["unmapped_positions"] > 0)
    return finish(report, *(codes or [Exit.PASS]), warnings=warnings)


def _pool(result: AuditResult) -> dict[str, Any]:
    slots = max([group.num_slots for group in result.groups] or [0])
    page_size = result.dump.page_size
    return {
        "slots": slots,
        "pages": -(-slots // page_size),
        "page_size": page_size,
        "groups": [group.group for group in result.groups],
    }


def _log(result: AuditResult) -> dict[str, int] | None:
    if result.log_count is None:
        return None
    return {"violations": result.log_count, "kept": result.log_rows, "confirmed": result.log_confirmed}


def _coverage(result: AuditResult, missing: dict[str, str]) -> dict[str, Any]:
    return {
        "rows": len(result.rows),
        "cached_entries": result.num_cached,
        "entries": result.num_entries,
        "groups": [
            {
                "group": group.group,
                "claims": len(group.entries.claims),
                "slots_held": len(set(_held(group))),
                "launches": [{"launch": r.launch, "entries": r.num_checked} for r in group.results],
            }
            for group in result.groups
        ],
        "checks": list(result.checks),
        "missing": [{"check": check, "why": why} for check, why in missing.items()],
        "not_checked": [{"check": check, "why": why} for check, why in result.not_checked.items()],
        "not_judged": sum(group.num_unjudged for group in result.groups),
    }


def _held(group: GroupResult) -> list[int]:
    held: list[int] = group.entries.slot[group.entries.is_checked].tolist()
    return held


def _summary(result: AuditResult, report: Report) -> dict[str, Any]:
    damaged = {(group.group, slot) for group in result.groups for i in group.incidents for slot in i.slots}
    rows = {row for incident in report["incidents"] for row in incident["rows"]}
    rids = result.dump.facts.rids
    return {
        "incidents": len(report["incidents"]) + len(report["lengths"]),
        "slots": len(damaged),
        "shadows": sum(len(group.shadows) for group in result.groups),
        "rows": sorted(rows),
        "rids": sorted(rids[row] for row in rows if row in rids),
        "violations": sum(len(found.entries) for group in result.groups for found in group.results),
        "unmapped_positions": sum(group.unmapped for group in result.groups),
    }


def _incident(result: AuditResult, group: GroupResult, found: Incident) -> dict[str, Any]:
    page = result.dump.page_size
    first, last = found.damages[0], found.damages[-1]
    bits = 0
    for damage in found.damages:
        bits |= damage.bits
    return {
        "kind": found.kind,
        "group": group.group,
        "slots": to_ranges(found.slots),
        "num_slots": len(set(found.slots)),
        "pages": to_ranges(slot // page for slot in found.slots if slot >= 0),
        "page_size": page,
        "rows": [row for row in found.holders if row >= 0],
        "held_by": [_name(result, row) for row in found.holders],
        "held_rightly_by": [_name(result, row) for row in first.also],
        "positions": [first.position, last.position],
        "stamped_positions": _stamped(found),
        "displacement": found.displacement,
        "stamp": _origin(result, first),
        "bits": bit_names(bits),
        "launches": sorted({launch for damage in found.damages for launch in damage.launches}),
        "shadows": to_ranges(found.shadows),
        "evidence": next((damage.evidence for damage in found.damages if damage.evidence), None),
        "unseen_slots": to_ranges(damage.slot for damage in found.damages if not damage.bits and damage.slot),
    }


def _stamped(found: Incident) -> list[list[int]]:
    """Positions that the stamps say, as ranges."""
    return to_ranges(d.origin.position for d in found.damages if d.origin is not None)


def _origin(result: AuditResult, damage: Damage) -> dict[str, Any] | None:
    """Where the stamp comes from, as a reader of the report needs it."""
    origin = damage.origin
    if origin is None:
        return None
    return {
        "state": origin.state,
        "chain_of": [_name(result, row) for row in origin.holders],
        "position": None if origin.state == "blank" else origin.position,
        "token": None if origin.state == "blank" else origin.token,
        "goes_on_from_slot": origin.anchor,
        "since_position": origin.since if origin.state in ("held", "unheld") else None,
    }


def _name(result: AuditResult, row: int) -> dict[str, Any]:
    if row < 0:
        return {"row": None, "rid": None, "cache": True}
    return {"row": row, "rid": result.dump.facts.rids.get(row), "cache": False}


def _holders(result: AuditResult, group: GroupResult, entries: list[int]) -> list[dict[str, Any]]:
    found = []
    for entry in entries:
        for row in group.entries.holders_of(entry):
            found.append({**_name(result, row), "position": int(group.entries.position[entry])})
    return found


def _violations(result: AuditResult, group: GroupResult) -> list[dict[str, Any]]:
    """Every failed check, of every launch: where, and what was stored and expected."""
    found = []
    for launch in group.results:
        for number, entry in enumerate(launch.entries.tolist()[:MAX_VIOLATIONS]):
            found.append(_violation(result, group, launch, entry, number))
    return found


def _violation(
    result: AuditResult, group: GroupResult, launch: BufferResult, entry: int, number: int
) -> dict[str, Any]:
    entries, row = group.entries, launch.rows[number]
    slot, holders = int(row[RING_SLOT]), entries.holders_of(entry)
    stamp = launch.stamps[slot].tolist()
    bits = int(row[RING_BITS])
    token = int(row[RING_EXPECTED_TOKEN])
    is_chain_known = not bits & BIT_OUT_OF_RANGE
    return {
        "launch": launch.launch,
        "group": group.group,
        "slot": slot,
        "page": slot // result.dump.page_size,
        "row": next((h for h in holders if h >= 0), None),
        "rid": result.dump.facts.rids.get(holders[0]),
        "held_by": [CACHE if h < 0 else h for h in holders],
        "position": int(entries.position[entry]),
        "bits": bit_names(bits),
        "stored": {
            "token": stamp[0],
            "position": stamp[1],
            "prev_hash": _hex(stamp[2]),
            "kv_hash": _hex(stamp[WORD_KV_HASH]),
        },
        "expected": {
            "token": token if token >= 0 else None,
            "position": int(entries.position[entry]),
            "prev_hash": _hex(row[RING_AUX]) if is_chain_known else None,
            "kv_hash": _kv_hash(result, group, launch, slot) if number < MAX_HASHED else None,
        },
    }


def _kv_hash(result: AuditResult, group: GroupResult, launch: BufferResult, slot: int) -> str | None:
    """Hash of the bytes that a slot has now; None where the launch compares none."""
    phase, half, _ = launch.launch.split("_")
    sources = group.sources.get(half.lower()) if phase == "TAIL" else None
    mode = result.dump.hash_mode
    return _hex(hash_slot(sources, mode, slot)) if sources and mode else None


def _hex(word: int) -> str:
    return f"0x{int(word) & (2**64 - 1):016x}"


def _hide_tokens(report: Report) -> None:
    for row in report["violations"]:
        row["stored"]["token"] = row["expected"]["token"] = None
    for incident in report["incidents"]:
        if incident["stamp"] is not None:
            incident["stamp"]["token"] = None
