"""The report of a replayed KV event stream as data; `event_audit_text.py` makes text of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.kinds import STREAM_KINDS
from kvcanary_cli.kvevents.audit import AuditResult
from kvcanary_cli.kvevents.checks import gaps_in_checks, made_checks
from kvcanary_cli.kvevents.events import Source
from kvcanary_cli.kvevents.findings import Finding
from kvcanary_cli.kvevents.rules import hex_hash
from kvcanary_cli.report.frame import Report, base_report, finish

MOST_LINES = 1_000
FORMAT = {"name": "kv-events", "title": "KV event stream"}


def build_event_audit(
    result: AuditResult,
    *,
    inputs: dict[str, Any],
    pool_tokens: int | None,
    required: Sequence[str],
    seconds: float,
) -> Report:
    """The report: findings are incidents; lost batches, lines and required checks make it incomplete."""
    pool = {"tokens": pool_tokens} if pool_tokens is not None else None
    report = base_report("replay", inputs=inputs, pool=pool)
    report["format"] = {**FORMAT, "forms": dict(result.file.forms.most_common())}
    report["coverage"] = _coverage(result, pool_tokens, required)
    report["summary"] = _summary(result)
    report["incidents"] = [
        finding_json(number, finding) for number, finding in enumerate(result.log.findings, 1)
    ]
    report["ranks"] = [_rank(result, source) for source in sorted(result.caches, key=_order)]
    report["hints"] = _hints(report)
    report["timing"] = {"seconds": round(seconds, 3)}
    return finish(report, *_codes(report))


def _codes(report: Report) -> list[Exit]:
    codes = [Exit.PASS]
    coverage = report["coverage"]
    if report["summary"]["incidents"]:
        codes.append(Exit.FINDINGS)
    if coverage["incomplete"]:
        codes.append(Exit.INCOMPLETE)
    if coverage["stopped"] is not None:
        codes.append(Exit.INTERRUPTED)
    return codes


def _coverage(result: AuditResult, pool_tokens: int | None, required: Sequence[str]) -> dict[str, Any]:
    file, log = result.file, result.log
    not_checked = gaps_in_checks(result, pool_tokens)
    missing = [gap["check"] for gap in not_checked if gap["check"] in required]
    is_incomplete = (
        result.lost or result.malformed or file.bad_lines or file.truncated or missing or result.interrupted
    )
    return {
        "lines": file.lines,
        "batches": result.batches,
        "events": result.events.total(),
        "events_by_kind": dict(sorted(result.events.items())),
        "stored_blocks": result.stored_blocks,
        "removed_blocks": result.removed_blocks,
        "stored_again": result.stored_again,
        "numbered_batches": result.numbered,
        "repeated_batches": result.repeated,
        "restarts": result.restarts,
        "started_at": result.started_at,
        "seconds": None if result.first_ts is None else (result.last_ts or 0.0) - result.first_ts,
        "checks": made_checks(result),
        "not_checked": not_checked,
        "required_missing": missing,
        "unproven": dict(sorted(log.unproven.items())),
        "passed": {reason: number for reason, number in sorted(log.passed.items()) if number},
        "gaps": [
            {"first": gap.first, "last": gap.last, "file": gap.place.file, "line": gap.place.line}
            for gap in result.gaps
        ],
        "gap_count": result.num_gaps,
        "lost_batches": result.lost,
        "malformed": result.malformed,
        "bad_lines": len(file.bad_lines),
        "bad_line_numbers": [{"file": name, "line": line} for name, line in file.bad_lines[:MOST_LINES]],
        "truncated": None
        if file.truncated is None
        else {"file": file.truncated[0], "line": file.truncated[1]},
        "extra_items": file.decoder.extra_items,
        "unknown_keys": dict(sorted(file.decoder.unknown_keys.items())),
        "empty_stores": file.decoder.empty_stores,
        "incomplete": bool(is_incomplete),
        "stopped": "interrupted" if result.interrupted else None,
    }


def _summary(result: AuditResult) -> dict[str, Any]:
    return {
        "incidents": result.log.total,
        "blocks": result.log.blocks.total(),
        "by_code": dict(sorted(result.log.counts.items())),
        "ranks": len(result.caches),
    }


def finding_json(number: int | None, finding: Finding) -> dict[str, Any]:
    """One finding; `id` is None for a first word while the audit runs."""
    return {
        "id": number,
        "kind": finding.code,
        "name": STREAM_KINDS[finding.code],
        "severity": "error",
        "rank": finding.source.rank,
        "worker": finding.source.worker,
        "group": finding.group,
        "medium": finding.medium,
        "hash": None if finding.hash is None else hex_hash(finding.hash),
        "blocks": finding.blocks,
        "file": finding.place.file,
        "line": finding.place.line,
        "seq": finding.place.seq,
        "text": finding.text,
        "strength": "certain" if finding.is_certain else "strong",
    }


def _order(source: Source) -> tuple[int, int]:
    return (
        -1 if source.worker is None else source.worker,
        -1 if source.rank is None else source.rank,
    )


def _rank(result: AuditResult, source: Source) -> dict[str, Any]:
    """Residency of one rank, by cache group and medium."""
    cache = result.caches[source]
    places = sorted(
        cache.places.items(), key=lambda item: (-1 if item[0][0] is None else item[0][0], item[0][1])
    )
    return {
        "rank": source.rank,
        "worker": source.worker,
        "page_hashes": {"fitting": cache.pages.fitting, "unproven": cache.pages.unproven}
        if cache.pages.fitting
        else None,
        "places": [
            {
                "group": group,
                "medium": medium,
                "kind": cache.kinds.get(group),
                "block_size": place.block_size,
                "peak_blocks": place.peak_blocks,
                "peak_tokens": place.peak_tokens if place.block_size else None,
                "peak_line": place.peak_line,
                "end_blocks": len(place.blocks),
            }
            for (group, medium), place in places
        ],
    }


def _hints(report: Report) -> list[str]:
    """Command lines to go on with."""
    codes = list(dict.fromkeys(incident["kind"] for incident in report["incidents"]))
    coverage = report["coverage"]
    if not codes and (coverage["lost_batches"] or coverage["malformed"]):
        codes = ["S09"]
    return [f"kvcanary explain {code}" for code in codes[:3]]
