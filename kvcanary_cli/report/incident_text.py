"""One incident in full, and the history of one slot: text made from the report's dict alone."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.report.frame import Report, Sections
from kvcanary_cli.report.replay_text import header, latency_text, verdict
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import WIDTH, count, names, plural, ranges, window, wrap

RULE = "=" * WIDTH
LABEL = 12
LEGEND = [
    "X damaged   s shadow: good, but its chain refers to a damaged slot",
    "o checked, good   ? held, not checked   . free",
]


def render_incident(report: Report, number: int) -> Sections:
    """The incident's page: breach, history of the slots, one slot field by field, cause, neighbourhood."""
    incident = report["incidents"][number - 1]
    body: list[str | Table] = [RULE, *wrap(_headline(incident)), RULE]
    body += _moments(incident)
    body += ["", *_holders(incident)]
    body += ["", *_example(incident)]
    body += ["", *_cause(incident)]
    body += ["", *_neighbourhood(incident)]
    next_slot = incident["example"]["slot"] if incident["example"] else incident["slots"][0][0]
    path = report["inputs"]["trace"]["path"]
    group = " --group swa" if incident["group"] == "swa" and len(report["pool"]["groups"]) > 1 else ""
    notes = [("next", f"kvcanary replay {path} --slot {next_slot}{group} --history")]
    if not incident["kind"].startswith("unknown"):
        notes.append(("next", f"kvcanary explain {incident['kind']}"))
    body += ["", _summary_line(incident)]
    return Sections(
        header=header(report), body=body, status=_status(incident), notes=notes, verdict=verdict(report)
    )


def render_history(report: Report) -> Sections:
    """Every event of one slot, in order."""
    history = report["history"]
    columns = [Column("STEP", "right"), Column("LINE", "right"), Column("EPOCH", "right"), Column("EVENT")]
    columns += [Column("WHO"), Column("DETAILS")]
    rows = [
        [
            str(moment["step"]),
            "-" if moment["event"] is None else str(moment["event"]),
            str(moment["epoch"]),
            moment["what"],
            moment["who"] or "-",
            moment["text"] or "-",
        ]
        for moment in history["moments"]
    ]
    title = (
        f"slot {history['slot']} ({history['group']}), page {history['page']}: {plural(len(rows), 'event')}"
    )
    body: list[str | Table] = [title, ""]
    body.append(Table(columns, rows) if rows else "  nothing is recorded of this slot")
    return Sections(
        header=header(report), body=body, status=_history_status(history), notes=[], verdict=verdict(report)
    )


def _history_status(history: dict[str, Any]) -> str:
    failed = sum(moment["what"] == "check FAIL" for moment in history["moments"])
    checked = failed + sum(moment["what"] == "check ok" for moment in history["moments"])
    return f"slot {history['slot']} was checked {plural(checked, 'time')} and failed {plural(failed, 'time')}"


def _headline(incident: dict[str, Any]) -> str:
    evidence = next((e["text"] for e in incident["cause"]["evidence"] if "for" in e), "no rule explains it")
    return f"{incident['kind']} {incident['name']}: {evidence}"


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
        lines += _labelled("latency", f"{latency_text(incident['latency_steps'])} steps")
    return lines


def _holders(incident: dict[str, Any]) -> list[str]:
    lines = [f"pages {ranges(incident['pages'], limit=6)}, slots {ranges(incident['slots'], limit=6)}"]
    held = [
        f"{h['rid']} since step {h['since_step']}, epoch {h['epoch']}: {h['how']}"
        for h in incident["held_by"]
    ]
    lines += _indented("held by", held or ["nobody, or not recorded"])
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
        steps = window(before["steps"])
        lines += _indented(
            "held before", [f"{before['rid'] or 'not recorded'} step {steps}, epoch {before['epoch']}"]
        )
    released = incident["released"]
    if released is not None:
        lines += _indented(
            "released", [f"step {released['step']}, by {released['by'] or '-'}: {released['why']}"]
        )
    readers = [
        f"{r['rid']} step {window(r['steps'])}, {plural(r['forwards'], 'forward')}"
        for r in incident["readers"]
    ]
    return lines + _indented("read by", readers or ["nobody, while a check failed"])


def _indented(label: str, texts: list[str]) -> list[str]:
    lines: list[str] = []
    for i, text in enumerate(texts):
        lines += wrap(text, first=f"  {label if i == 0 else '':<14}", indent=" " * 16)
    return lines


def _example(incident: dict[str, Any]) -> list[str | Table]:
    example = incident["example"]
    if example is None:
        return ["no slot failed a check: the ledger alone tells of this"]
    rows = []
    for field in ("token", "position", "prev_hash"):
        if field not in example["stored"]:
            rows.append([field, "*", "*", "differs" if field in example["differs"] else ""])
            continue
        stored, expected = example["stored"][field], example["expected"].get(field)
        differs = field in example["differs"]
        note = "not checked" if expected is None else "agrees"
        if differs:
            note = "differs" + _displacement(field, stored, expected)
        rows.append([field, "-" if expected is None else str(expected), str(stored), note])
    hash_note = (
        "differs from the bytes"
        if "kv_hash" in example["differs"]
        else "agrees with the bytes, or not checked"
    )
    rows.append(["kv_hash", "-", "-", hash_note])
    title = f"slot {example['slot']}, position {example['position']}"
    columns = [Column("FIELD"), Column("EXPECTED", "right"), Column("STORED", "right"), Column("")]
    return [title, Table(columns, rows)]


def _displacement(field: str, stored: int | str, expected: int | str | None) -> str:
    if field == "position" and isinstance(stored, int) and isinstance(expected, int):
        return f", by {stored - expected:+,}"
    return ""


def _cause(incident: dict[str, Any]) -> list[str]:
    cause = incident["cause"]
    lines = [f"{'cause'.ljust(LABEL)}{incident['name']}, evidence: {cause['strength']}"]
    for evidence in cause["evidence"]:
        is_for = "for" in evidence
        text = evidence["text"] if is_for else f"{evidence['against']}: {evidence['text']}"
        lines += wrap(text, first=f"  {'+' if is_for else '-'}  ", indent=" " * 5)
    return lines


def _neighbourhood(incident: dict[str, Any]) -> list[str]:
    rows = incident["neighbourhood"]
    if not rows:
        return []
    lines = ["slots around, one row per page, at the end of the run"]
    for row in rows:
        mark = "=>" if row["is_damaged"] else "  "
        lines.append(f"  {mark} page {row['page']:<7}{row['cells']}   {row['text']}".rstrip())
    return [*lines, *(f"  {line}" for line in LEGEND)]


def _status(incident: dict[str, Any]) -> str:
    readers = [reader["rid"] for reader in incident["readers"]]
    if not incident["is_damaged"]:
        return "the rules of ownership were broken; no slot of this incident is damaged"
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
    return f"SUMMARY: {incident['kind']} {incident['name']} " + " ".join(f"{k}={v}" for k, v in keys.items())
