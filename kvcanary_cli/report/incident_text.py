"""One incident in full: text made from the report's dict alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcanary_cli.errors import UsageError
from kvcanary_cli.kinds import KINDS, title
from kvcanary_cli.report.again import again
from kvcanary_cli.report.frame import Report, Sections
from kvcanary_cli.report.replay_text import header, incident_title, latency_text, span_text, verdict
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import WIDTH, count, names, plural, ranges, to_ranges, window, wrap

RULE = "=" * WIDTH
LABEL = 12
MOST_NAMED = 10  # requests that get a line each
LEGEND = [
    "X damaged   s shadow: good, but its chain refers to a damaged slot",
    "o checked, good   ? held, not checked   . free",
]


def with_example(incident: dict[str, Any], slot: int | None, group: str | None) -> dict[str, Any]:
    """The incident with another of its slots as the example.

    Raises: UsageError if no check failed at that slot.
    """
    if slot is None:
        return incident
    wanted = group or incident["group"]
    for story in incident["slot_stories"]:
        if (story["slot"], story["group"]) == (slot, wanted):
            return incident | {"example": story}
    failed = [story["slot"] for story in incident["slot_stories"] if story["group"] == wanted]
    where = (
        f"checks failed at {ranges(to_ranges(failed), limit=6)}" if failed else "no slot of it failed a check"
    )
    raise UsageError(f"`--slot {slot}` was asked for, incident {incident['id']} has no such slot: {where}")


def finding_line(found: dict[str, Any]) -> str:
    """What is said of an incident when it turns up: `step 853: K07 late-remote-write, 16 slots of page 294`."""
    window_group = " of the window group" if found["group"] == "swa" else ""
    pages = _numbers("page", found["pages"], limit=4)
    where = f", {plural(found['num_slots'], 'slot')} of {pages}{window_group}" if found["slots"] else ""
    return f"step {found['step']}: {incident_title(found)}{where}"


def render_incident(report: Report, incident: dict[str, Any]) -> Sections:
    """The incident's page: breach, history of the slots, one slot field by field, cause, neighbourhood."""
    body: list[str | Table] = [RULE, *wrap(_headline(incident)), RULE, *_moments(incident)]
    parts: list[Sequence[str | Table]] = [
        _holders(incident, report),
        _example(incident, report),
        _cause(incident),
        _neighbourhood(incident),
    ]
    for part in [*parts, [_summary_line(incident)]]:
        body += ["", *part] if part else []
    return Sections(
        header=header(report),
        body=body,
        status=_status(incident),
        notes=_next(report, incident),
        verdict=verdict(report),
    )


def _next(report: Report, incident: dict[str, Any]) -> list[tuple[str, str]]:
    explain = ("next", f"kvcanary explain {incident['kind']}")
    slots = [first for first, _ in incident["slots"]]
    place = incident["example"] or {"slot": slots[0] if slots else None, "group": incident["group"]}
    if place["slot"] is None:
        return [explain]
    group = ["--group", place["group"]] if len(report["pool"]["groups"]) > 1 else []
    return [("next", again(report["inputs"], "--slot", str(place["slot"]), *group, "--history")), explain]


def _headline(incident: dict[str, Any]) -> str:
    evidence = next((e["text"] for e in incident["cause"]["evidence"] if "for" in e), "no rule explains it")
    return f"{incident_title(incident)}: {evidence}"


def _labelled(label: str, text: str) -> list[str]:
    return wrap(text, first=label.ljust(LABEL), indent=" " * LABEL)


def _moments(incident: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    breach, seen = incident["breach"], incident["seen"]
    if breach is not None:
        victims = f"; victims {names(breach['victims'])}" if breach["victims"] else ""
        by = breach["actor"] or "nobody named"
        text = (
            f"step {breach['step']}, line {count(breach['event'])}, ledger: {breach['rule']} by {by}{victims}"
        )
        lines += _labelled("breach", text)
    if incident["damaged_step"] is not None:
        lines += _labelled("damaged", f"step {window(incident['damaged_step'])}")
    if seen is None:
        lines += _labelled("seen", "never: no check of the canary failed")
    else:
        reader = f" of {seen['rid']}" if seen["rid"] else ""
        lines += _labelled(
            "seen", f"step {seen['step']}, {seen['launch']}{reader}: {', '.join(seen['bits'])}"
        )
        latency = latency_text(incident["latency_steps"])
        lines += _labelled("latency", f"{latency} step" + ("" if latency in ("1", "<=1") else "s"))
    return lines


def _numbers(noun: str, pairs: list[list[int]], *, limit: int) -> str:
    """`page 7`, `pages 7-9, 12`."""
    is_one = len(pairs) == 1 and pairs[0][0] == pairs[0][1]
    return f"{noun if is_one else noun + 's'} {ranges(pairs, limit=limit)}"


def _holders(incident: dict[str, Any], report: Report) -> list[str]:
    where = f"{_numbers('page', incident['pages'], limit=6)}, {_numbers('slot', incident['slots'], limit=6)}"
    if not incident["slots"]:
        where = "the broken rule names no slot"
    has_window = len(report["pool"]["groups"]) > 1
    lines = wrap(where + (f", group {incident['group']}" if has_window else ""), indent="  ")
    if incident["other_group_slots"]:
        other = next(kind for kind in report["pool"]["groups"] if kind != incident["group"])
        copies = _numbers("slot", incident["other_group_slots"], limit=6)
        lines += _indented("and", [f"{copies} of group {other}: the same damage"])
    held = [
        f"{h['rid']} since step {h['since_step']}, epoch {h['epoch']}: {h['how']}"
        for h in incident["held_by"]
    ]
    lines += _indented("held by", _first(held) or ["nobody, or not recorded"])
    writer = incident["writer"] or incident["last_writer"]
    if writer is None:
        lines += _indented("last writer", ["not recorded"])
    else:
        what = writer["how"] + (f" {writer['id']}" if writer["id"] else "")
        lines += _indented(
            "last writer", [f"{writer['rid'] or 'nobody named'} step {writer['step']}: {what}"]
        )
    before = incident["held_before"]
    if before is not None:
        steps = span_text(before["steps"])
        lines += _indented(
            "held before", [f"{before['rid'] or 'not recorded'} step {steps}, epoch {before['epoch']}"]
        )
    released = incident["released"]
    if released is not None:
        lines += _indented(
            "released", [f"step {released['step']}, by {released['by'] or '-'}: {released['why']}"]
        )
    readers = [
        f"{r['rid']} step {span_text(r['steps'])}, {plural(r['forwards'], 'forward')}"
        for r in incident["readers"]
    ]
    return lines + _indented("read by", _first(readers) or ["nobody, while a check failed"])


def _first(texts: list[str]) -> list[str]:
    """The first of a long list, and how many more there are."""
    left = len(texts) - MOST_NAMED
    return texts if left <= 0 else [*texts[:MOST_NAMED], f"... {count(left)} more (--format json)"]


def _indented(label: str, texts: list[str]) -> list[str]:
    lines: list[str] = []
    for i, text in enumerate(texts):
        lines += wrap(text, first=f"  {label if i == 0 else '':<14}", indent=" " * 16)
    return lines


def _example(incident: dict[str, Any], report: Report) -> list[str | Table]:
    example = incident["example"]
    if example is None:
        return ["no slot failed a check: the ledger alone tells of this"]
    rows = []
    for field in ("token", "position", "prev_hash"):
        differs = field in example["differs"]
        if field not in example["stored"]:
            rows.append([field, "*", "*", "differs" if differs else ""])
            continue
        stored, expected = example["stored"][field], example["expected"].get(field)
        note = "not checked" if expected is None else "agrees"
        if differs:
            shift = example["position_shift"] if field == "position" else None
            note = "differs" + (f", by {shift:+,}" if shift is not None else "")
        rows.append([field, "-" if expected is None else str(expected), str(stored), note])
    is_checked = "real_kv_hash" in report["coverage"]["checks"]
    note = "differs from the bytes" if "kv_hash" in example["differs"] else "agrees with the bytes"
    rows.append(["kv_hash", "-", "-", note if is_checked else "not checked"])
    columns = [Column("FIELD"), Column("EXPECTED", "right"), Column("STORED", "right"), Column("")]
    return [*wrap(_example_title(incident, example, report)), Table(columns, rows)]


def _example_title(incident: dict[str, Any], example: dict[str, Any], report: Report) -> str:
    """Where the example lies, and how many of the incident's slots fail as it does."""
    group = f" of group {example['group']}" if len(report["pool"]["groups"]) > 1 else ""
    place = f"page {example['page']} offset {example['offset']}, position {example['position']}"
    text = f"slot {example['slot']}{group}, {place}"
    if len(incident["slot_stories"]) < 2:
        return text
    alike = plural(example["alike_slots"], "slot")
    return f"{text} ({alike} of this incident {'fails' if example['alike_slots'] == 1 else 'fail'} like it)"


def _cause(incident: dict[str, Any]) -> list[str]:
    cause = incident["cause"]
    lines = [f"{'cause'.ljust(LABEL)}{incident['name']}, evidence: {cause['strength']}"]
    for evidence in cause["evidence"]:
        is_for = "for" in evidence
        text = evidence["text"] if is_for else f"{_titled(evidence['against'])}: {evidence['text']}"
        lines += wrap(text, first=f"  {'+' if is_for else '-'}  ", indent=" " * 5)
    return lines


def _titled(code: str) -> str:
    return title(code) if code in KINDS else code


def _neighbourhood(incident: dict[str, Any]) -> list[str]:
    rows = incident["neighbourhood"]
    if not rows:  # not drawn, or no slot to draw
        return []
    lines = ["slots around, one row per page, at the end of the run"]
    for row in rows:
        mark = "=>" if row["is_damaged"] else "  "
        lines.append(f"  {mark} page {row['page']:<7}{row['cells']}   {row['text']}".rstrip())
    return [*lines, *(f"  {line}" for line in LEGEND)]


def _status(incident: dict[str, Any]) -> str:
    readers = [reader["rid"] for reader in incident["readers"]]
    if not incident["is_damaged"]:
        met = f"; {plural(len(readers), 'request')} met it: {names(readers)}" if readers else ""
        return f"the rules of ownership were broken; no slot of this incident is damaged{met}"
    if not readers:
        return f"{plural(incident['num_slots'], 'slot')} damaged; no request was seen to read them"
    return f"{plural(len(readers), 'request')} read damaged slots: {names(readers)}"


def _summary_line(incident: dict[str, Any]) -> str:
    keys = {
        "page": ranges(incident["pages"], limit=4).replace(" ", ""),
        "slots": ranges(incident["slots"], limit=4).replace(" ", ""),
        "held_by": ",".join(h["rid"] for h in incident["held_by"]) or "-",
        "writer": (incident["writer"] or {}).get("rid") or "-",
        "released": str((incident["released"] or {}).get("step", "-")),
        "damaged": window(incident["damaged_step"]),
        "seen": "never" if incident["seen"] is None else str(incident["seen"]["step"]),
    }
    return f"SUMMARY: {incident_title(incident)} " + " ".join(f"{k}={v}" for k, v in keys.items())
