"""The report of `record-events`: what was written, and what is missing in it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.kvevents.record import RecordFacts
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, names, plural, wrap

MOST_GAPS = 10


def build_record(
    facts: RecordFacts, *, inputs: dict[str, Any], paths: Sequence[str], seconds: float
) -> Report:
    """The report; lost batches, damaged frames, and nothing at all make it incomplete.

    Ctrl-C is how a recording ends that has no other end; where one was given, it stops the run.
    """
    report = base_report("record-events", inputs=inputs)
    report["files"] = list(paths)
    report["coverage"] = {
        "gap_count": facts.num_gaps,
        "gaps": [list(gap) for gap in facts.gaps],
        "lost_batches": facts.lost,
        "missed_start": facts.missed_start,
        "malformed": facts.malformed,
        "errors": facts.errors,
        "extra_items": facts.extra_items,
        "unknown_keys": dict(sorted(facts.unknown_keys.items())),
    }
    report["summary"] = {
        "batches": facts.batches,
        "events": facts.events.total(),
        "events_by_kind": dict(sorted(facts.events.items())),
        "ranks": dict(sorted(facts.ranks.items())),
        "first_seq": facts.first_seq,
        "last_seq": facts.last_seq,
        "asked": facts.asked,
        "replayed": facts.replayed,
        "repeated": facts.repeated,
        "restarts": facts.restarts,
        "stopped": facts.stopped,
    }
    report["hints"] = _hints(report)
    report["timing"] = {"seconds": round(seconds, 3)}
    codes = [Exit.PASS]
    if facts.lost or facts.malformed or not facts.batches:
        codes.append(Exit.INCOMPLETE)
    has_end = inputs["duration_seconds"] is not None or inputs["max_batches"] is not None
    if facts.stopped == "interrupted" and has_end:
        codes.append(Exit.INTERRUPTED)
    return finish(report, *codes)


def _hints(report: Report) -> list[str]:
    files = " ".join(name(shlex.quote(path)) for path in report["files"])
    return [f"kvcanary replay {files}"] if report["summary"]["batches"] else []


def render_record(report: Report) -> Sections:
    """The text report."""
    summary, coverage, inputs = report["summary"], report["coverage"], report["inputs"]
    kinds = ", ".join(f"{kind} {count(number)}" for kind, number in summary["events_by_kind"].items())
    ranks = ", ".join(f"{rank}: {plural(n, 'batch', 'batches')}" for rank, n in summary["ranks"].items())
    rows = [["batches", f"{count(summary['batches'])}{_numbers(summary)}"], ["events", kinds or "none"]]
    rows.append(["ranks", ranks or "none"])
    rows.append(["gaps", _gaps(coverage)])
    if coverage["missed_start"]:
        text = f"{plural(coverage['missed_start'], 'batch', 'batches')} before the first; their blocks are not known"
        rows.append(["before", text])
    if inputs["replay"] is not None:
        answers = plural(summary["replayed"], "batch", "batches")
        rows.append(["replay", f"asked {plural(summary['asked'], 'time')}, {answers} came"])
    if summary["restarts"]:
        rows.append(["restarts", f"{count(summary['restarts'])}: numbers began anew"])
    if summary["repeated"]:
        rows.append(["repeated", f"{plural(summary['repeated'], 'batch', 'batches')}, written once"])
    if coverage["malformed"]:
        rows.append(["damaged", f"{plural(coverage['malformed'], 'message')} that can't be decoded"])
        for error in coverage["errors"]:
            rows += [["", line] for line in wrap(error, width=66)]
    if coverage["extra_items"]:
        rows.append(["newer", f"{plural(coverage['extra_items'], 'item')} behind the last known field"])
    if coverage["unknown_keys"]:
        rows.append(["newer", "keys that are not known: " + names(list(coverage["unknown_keys"]))])
    return Sections(
        header=[("recorded", name(inputs["endpoint"])), ("into", names(report["files"]))],
        body=[Table([Column("WHAT"), Column("FOUND")], rows, header=False)],
        status=_status(report),
        notes=[*_advice(report), *[("next", hint) for hint in report["hints"]]],
        verdict={
            "batches": summary["batches"],
            "events": summary["events"],
            "ranks": len(summary["ranks"]),
            "gaps": coverage["gap_count"],
            "lost_batches": coverage["lost_batches"],
            "malformed": coverage["malformed"],
            "restarts": summary["restarts"],
            "stopped": summary["stopped"],
        },
    )


def _numbers(summary: dict[str, Any]) -> str:
    if summary["first_seq"] is None:
        return ""
    return f", numbers {count(summary['first_seq'])} to {count(summary['last_seq'])}"


def _gaps(coverage: dict[str, Any]) -> str:
    if not coverage["gap_count"]:
        return "none"
    shown = coverage["gaps"][:MOST_GAPS]
    parts = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in shown)
    more = coverage["gap_count"] - len(shown)
    tail = f", ... {count(more)} more" if more else ""
    return f"{count(coverage['gap_count'])}, {plural(coverage['lost_batches'], 'batch', 'batches')} lost: {parts}{tail}"


def _status(report: Report) -> str:
    summary, coverage = report["summary"], report["coverage"]
    if not summary["batches"] and not coverage["malformed"]:
        return "no batch came: nobody publishes there, or nothing happened in the cache"
    if coverage["lost_batches"] or coverage["malformed"]:
        return "batches are missing; an audit can't judge what they would explain"
    if coverage["missed_start"]:
        return "every batch since the first was written; the cache was not empty when it began"
    return "every batch was written"


def _advice(report: Report) -> list[tuple[str, str]]:
    if not report["summary"]["batches"] and not report["coverage"]["malformed"]:
        return [("fix", "start the server with KV events on: docs/kv-events.md")]
    if report["coverage"]["lost_batches"] and report["inputs"]["replay"] is None:
        return [("fix", "--replay ENDPOINT asks the server's replay socket for lost batches")]
    return []
