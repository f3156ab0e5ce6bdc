"""An answer sheet against a replay's findings: found, named right, how late, and what nobody planted."""

from __future__ import annotations

from statistics import median_high
from typing import Any

from kvcanary_cli.faults.answers import Answer, AnswerSheet, Match, compare
from kvcanary_cli.report.frame import Report

SATURATION = "C7"  # the log fills up as a consequence of any fault that fails often enough


def build_expectation(sheet: AnswerSheet, report: Report) -> dict[str, Any]:
    """The `expectation` of a report: totals, and one entry a kind."""
    findings = findings_of(report)
    matches = compare(sheet.faults, findings)
    return summarise(matches, findings)


def findings_of(report: Report) -> list[dict[str, Any]]:
    """Incidents, and capacity violations as incidents of their kind: one for each kind."""
    capacity: dict[str, dict[str, Any]] = {}
    for found in report["capacity_violations"]:
        capacity.setdefault(found["kind"], _capacity_finding(found))
    return [*report["incidents"], *capacity.values()]


def summarise(matches: list[Match], findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals of a comparison."""
    planted = {match.answer.kind for match in matches}
    matched = {index for match in matches for index in (match.incident, *match.others) if index is not None}
    spare = [
        finding
        for index, finding in enumerate(findings)
        if index not in matched and not (finding["kind"] == SATURATION and SATURATION not in planted)
    ]
    false_slots = sum(len(match.false_slots) for match in matches)
    blamed = sorted({rid for match in matches for rid in match.blamed_rids})
    found = sum(match.found for match in matches)
    named = sum(match.named_right for match in matches)
    return {
        "planted": len(matches),
        "found": found,
        "named_right": named,
        "in_time": sum(match.in_time for match in matches),
        "not_planted": len(spare),
        "false_slots": false_slots,
        "blamed_rids": blamed,
        "is_met": found == named == len(matches) and not spare and not false_slots and not blamed,
        "kinds": [_kind(kind, matches) for kind in sorted(planted)],
        "faults": [_fault(match, findings) for match in matches],
    }


def _kind(kind: str, matches: list[Match]) -> dict[str, Any]:
    own = [match for match in matches if match.answer.kind == kind]
    latencies = [match.latency for match in own if match.latency is not None]
    return {
        "kind": kind,
        "planted": len(own),
        "found": sum(match.found for match in own),
        "named_right": sum(match.named_right for match in own),
        "median_latency_steps": median_high(latencies) if latencies else None,
    }


def _fault(match: Match, findings: list[dict[str, Any]]) -> dict[str, Any]:
    answer: Answer = match.answer
    return {
        "kind": answer.kind,
        "step": answer.step,
        "found": match.found,
        "named_right": match.named_right,
        "found_as": None if match.incident is None else findings[match.incident]["kind"],
        "incident": None if match.incident is None else match.incident + 1,
        "first_seen_step": match.first_seen_step,
        "found_by_step": answer.found_by_step,
        "in_time": match.in_time,
        "false_slots": match.false_slots,
        "blamed_rids": match.blamed_rids,
    }


def _capacity_finding(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": found["kind"],
        "group": found["group"] or "full",
        "slots": [],
        "is_damaged": False,
        "shadows": [],
        "breach": None,
        "damaged_step": [found["step"], found["step"]],
        "seen": {"step": found["step"]},
        "held_by": [],
        "writer": None,
        "readers": [],
    }
