"""The report of `explain` about pasted text or a log: messages with their numbers, violations decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.explain.advice import Advice, advise
from kvcanary_cli.explain.families import nearest_template, templates
from kvcanary_cli.explain.grouping import Found, MessageGroup, TextGroup, ViolationGroup
from kvcanary_cli.explain.index import group_of
from kvcanary_cli.explain.pages import Page, load
from kvcanary_cli.explain.violations import PREFIX, Violation, decoded_launch, facts, is_known
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, plural, ranges, to_ranges, wrap

INDENT = "  "
MOST_SLOTS = 8
"""Ranges of slots that the text shows."""


def page_entry(page: Page) -> dict[str, Any]:
    """What a list shows of a page."""
    return {
        "code": page.code,
        "name": page.name,
        "group": group_of(page.code),
        "summary": page.summary,
        "ledger_rules": list(page.rules),
    }


def build_messages(found: Found, *, inputs: dict[str, Any], lines: int, others: Sequence[str] = ()) -> Report:
    """The report; exit code 1 where nothing of the canary was recognised.

    Args:
        lines: of the log or the text.
        others: lines that name a canary, or the text itself, for the nearest message.
    """
    report = base_report("explain", inputs=inputs)
    advised = [(group, advise(group.match)) for group in found.messages]
    codes = [code for _, advice in advised for code in advice.pages]
    codes += [reason for group in found.violations for reason in group.example.reasons if is_known(reason)]
    report["pages"] = [page_entry(load(code)) for code in dict.fromkeys(codes)]
    report["page"] = None
    report["messages"] = [_message(group, advice) for group, advice in advised]
    report["violations"] = [_violation(group) for group in found.violations]
    report["unknown"] = [_unknown(group) for group in found.unknown]
    report["nearest"] = _nearest(found, others)
    report["next"] = _next(advised, found.violations)
    report["summary"] = {
        "pages": len(report["pages"]),
        "lines": lines,
        "messages": sum(group.count for group in found.messages),
        "violations": sum(group.count for group in found.violations),
        "unknown": sum(group.count for group in found.unknown),
        "kinds": len(found.messages) + len(found.violations),
        "left_out": found.left_out,
    }
    return finish(report, Exit.FINDINGS if found.is_empty else Exit.PASS)


def _message(group: MessageGroup, advice: Advice) -> dict[str, Any]:
    return {
        "family": group.match.family,
        "count": group.count,
        "first_line": group.first,
        "last_line": group.last,
        "text": group.match.text,
        "template": templates().get(group.match.family),
        "numbers": group.match.numbers,
        "words": group.match.words,
        "what": list(advice.what),
        "changes": [{"change": change, "note": note} for change, note in advice.changes],
        "pages": list(advice.pages),
    }


def _violation(group: ViolationGroup) -> dict[str, Any]:
    example = group.example
    return {
        "launch": example.launch,
        "decoded": decoded_launch(example.launch),
        "reasons": [
            {"name": reason, "summary": load(reason).summary if is_known(reason) else None}
            for reason in example.reasons
        ],
        "count": group.count,
        "first_line": group.first,
        "last_line": group.last,
        "slots": to_ranges(group.slots),
        "example": _example(example),
        "facts": facts(example),
    }


def _example(violation: Violation) -> dict[str, Any]:
    return {
        "slot": violation.slot,
        "position": violation.position,
        "stored_token": violation.stored_token,
        "expected_token": violation.expected_token,
        "stored_chain_hash": None if violation.stored_hash is None else f"0x{violation.stored_hash:016x}",
        "expected_aux": None if violation.aux is None else f"0x{violation.aux:016x}",
    }


def _unknown(group: TextGroup) -> dict[str, Any]:
    return {
        "text": group.text,
        "count": group.count,
        "first_line": group.first,
        "last_line": group.last,
        "nearest": nearest_template(group.text),
    }


def _nearest(found: Found, others: Sequence[str]) -> str | None:
    if not found.is_empty:
        return None
    texts = [group.text for group in found.unknown] or others
    return next((near for near in map(nearest_template, texts) if near is not None), None)


def _next(advised: list[tuple[MessageGroup, Advice]], violations: list[ViolationGroup]) -> list[str]:
    commands = [f"kvcanary explain {advice.pages[0]}" for _, advice in advised if advice.pages]
    for group in violations:
        commands += [f"kvcanary explain {reason}" for reason in group.example.reasons if is_known(reason)]
    about_sizes = [advice for _, advice in advised if advice.pages]
    if about_sizes:
        version = next((advice.version for advice in about_sizes if advice.version is not None), None)
        release = "" if version is None else f" --sglang-version {version}"
        commands.append(f"kvcanary check-capacities --args-file LAUNCH.sh{release}")
    slot = next((group.example.slot for group in violations if group.example.slot is not None), None)
    if slot is not None:
        commands.append(f"kvcanary replay TRACE --slot {slot} --history")
    return list(dict.fromkeys(commands))


def render_messages(report: Report) -> Sections:
    """The text report."""
    summary = report["summary"]
    body: list[str | Table] = []
    for message in report["messages"]:
        body += ["", *_message_lines(message)]
    summaries = {page["code"]: page["summary"] for page in report["pages"]}
    for violation in report["violations"]:
        body += ["", *_violation_lines(violation)]
    for text in report["unknown"]:
        body += ["", *_unknown_lines(text)]
    pages = [code for message in report["messages"] for code in message["pages"]]
    if pages:
        rows = [[code, summaries[code]] for code in dict.fromkeys(pages)]
        body += ["", "Pages", Table([Column("CODE"), Column("WHAT")], rows, header=False)]
    if summary["left_out"]:
        body += ["", f"{plural(summary['left_out'], 'more line')} of further kinds not shown"]
    is_empty = report["exit_code"] == Exit.FINDINGS
    return Sections(
        header=_header(report),
        body=body[1:],
        status=_status(summary) if is_empty else "",
        notes=_notes(report),
        verdict={
            "code": None,
            "pages": summary["pages"],
            "messages": summary["messages"],
            "violations": summary["violations"],
            "unknown": summary["unknown"],
        },
    )


def _header(report: Report) -> list[tuple[str, str]]:
    summary, log = report["summary"], report["inputs"]["log"]
    what = f"{log or 'pasted text'}, {plural(summary['lines'], 'line')}"
    parts = [
        f"{plural(summary[key], noun)} of {plural(len(report[key]), 'kind')}"
        for key, noun in (("messages", "message"), ("violations", "violation"))
        if summary[key]
    ]
    return [("explain", what), *([("", ", ".join(parts))] if parts else [])]


def _status(summary: dict[str, Any]) -> str:
    if summary["unknown"]:
        return "the text has the canary's prefix, and is none of its texts that kvcanary knows"
    return f"none of ours: {plural(summary['lines'], 'line')} without a message of the canary"


def _notes(report: Report) -> list[tuple[str, str]]:
    notes = [("next", command) for command in report["next"]]
    if report["exit_code"] == Exit.FINDINGS:
        near = report["nearest"]
        notes.append(("why", f"nearest known message: {near}" if near else "no known message is like it"))
        notes.append(("next", "kvcanary explain"))
    return notes


def _times(group: dict[str, Any]) -> str:
    if group["count"] == 1:
        return f"line {count(group['first_line'])}"
    return f"{count(group['count'])} times, lines {count(group['first_line'])} to {count(group['last_line'])}"


def _message_lines(message: dict[str, Any]) -> list[str | Table]:
    lines: list[str | Table] = [f"{message['family']}: {_times(message)}", *_quoted(message["text"])]
    lines += ["", *(line for text in message["what"] for line in wrap(text, first=INDENT))]
    if message["changes"]:
        rows = [[each["change"], f"({each['note']})" if each["note"] else ""] for each in message["changes"]]
        lines += [
            "",
            f"{INDENT}What to change",
            Table([Column("CHANGE"), Column("WHY")], rows, header=False, indent=4),
        ]
    return lines


def _violation_lines(violation: dict[str, Any]) -> list[str | Table]:
    names = "+".join(reason["name"] for reason in violation["reasons"])
    lines: list[str | Table] = [f"{PREFIX} {violation['launch']} {names}: {_times(violation)}"]
    decoded = violation["decoded"]
    launch = f"a launch that no known release has ({violation['launch']})"
    if decoded is not None:
        launch = ", ".join((decoded["phase"], decoded["half"], decoded["group"]))
    rows = [[violation["launch"] if decoded is not None else "launch", launch]]
    rows += [
        [reason["name"], reason["summary"] or "no check that kvcanary knows"]
        for reason in violation["reasons"]
    ]
    lines.append(Table([Column("FIELD"), Column("MEANING")], rows, header=False))
    if violation["slots"]:
        text = f"slots {ranges(violation['slots'], limit=MOST_SLOTS)}"
        position = violation["example"]["position"]
        lines += wrap(
            text if position is None else f"{text}; the first at position {position:,}", first=INDENT
        )
    for fact in violation["facts"]:
        lines += wrap(fact, first=INDENT)
    return lines


def _unknown_lines(text: dict[str, Any]) -> list[str | Table]:
    lines: list[str | Table] = [f"not known: {_times(text)}", *_quoted(text["text"])]
    if text["nearest"]:
        lines += wrap(f"nearest known message: {text['nearest']}", first=INDENT)
    return lines


def _quoted(text: str) -> list[str]:
    """A message as it stands, so that it can be searched for."""
    return [f"{INDENT}{text}"]
