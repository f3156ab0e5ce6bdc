"""The report of `kvcanary replay`: one dict from the result, and the text made from that dict alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from kvcanary_cli.exits import Exit
from kvcanary_cli.kernels.consts import bit_names
from kvcanary_cli.replay.log import Run, Violation
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import ReplayResult, checks_made
from kvcanary_cli.report.frame import Annotation, Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, names, plural, ranges, wrap

MAX_ROWS = 50  # rows of a table before the rest is a count; totals are always the true ones


def build_replay(
    result: ReplayResult,
    options: ReplayOptions,
    *,
    source: dict[str, Any],
    bad_lines: list[int],
    truncated: int | None,
    backend: dict[str, Any],
    seconds: float,
    no_tokens: bool = False,
) -> Report:
    """The report of one replay.

    Args:
        source: path, format and what else names the input.
        bad_lines: line numbers that were skipped.
        truncated: line in which the trace ends, if it ends inside one.
        no_tokens: leave token ids out.
    """
    layout = result.layout
    report = base_report(
        "replay",
        inputs=_inputs(options, source),
        pool={
            "slots": layout.num_slots,
            "pages": layout.num_slots // layout.page_size,
            "page_size": layout.page_size,
            "groups": [group.kind for group in layout.groups],
        },
        backend=backend,
        packages=("torch", "triton") if backend["name"] == "triton" else ("numba",),
    )
    coverage = _coverage(result, options, bad_lines, truncated)
    runs = result.records.runs()
    report["coverage"] = coverage
    report["summary"] = _summary(result, runs)
    report["capacity_violations"] = [asdict(found) for found in result.capacity_violations]
    report["violations"] = [_violation(v, no_tokens) for v in result.records.kept]
    report["violation_total"] = result.records.total
    report["violation_log_rows"] = result.records.ring_capacity
    report["runs"] = [_run(run, no_tokens) for run in runs]
    report["digest_mismatches"] = [asdict(found) for found in result.digest_mismatches]
    report["memory_bytes"] = layout.memory_bytes()
    report["hints"] = _hints(report)
    report["timing"] = {"seconds": round(seconds, 3)}
    return finish(report, *_codes(report, result))


def _codes(report: Report, result: ReplayResult) -> list[Exit]:
    codes = [Exit.PASS]
    if report["runs"] or report["capacity_violations"] or report["digest_mismatches"]:
        codes.append(Exit.FINDINGS)
    if report["coverage"]["incomplete"]:
        codes.append(Exit.INCOMPLETE)
    if result.stopped == "interrupted":
        codes.append(Exit.INTERRUPTED)
    return codes


def _inputs(options: ReplayOptions, source: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace": source,
        "device": options.device.label,
        "hash": options.hash_mode.name.lower(),
        "sweep_interval": options.sweep_interval,
        "ring": options.ring,
        "limit_steps": options.limit_steps,
        "limit_requests": options.limit_requests,
        "require": list(options.required),
    }


def _coverage(
    result: ReplayResult, options: ReplayOptions, bad_lines: list[int], truncated: int | None
) -> dict[str, Any]:
    totals = result.totals
    made, missing = checks_made(result)
    incomplete = []
    if bad_lines:
        incomplete.append(f"{plural(len(bad_lines), 'bad line')} skipped")
    if truncated is not None:
        incomplete.append(f"the trace ends inside line {count(truncated)}")
    for step, forwards, why in totals.gaps:
        lost = "an unknown number of forwards" if forwards is None else plural(forwards, "forward")
        incomplete.append(f"the recording lost {lost} after step {step}" + (f" ({why})" if why else ""))
    incomplete += [f"launches are missing: {text}" for text in result.counters.missing()]
    incomplete += [f"required, not checked: {check}" for check in options.required if check not in made]
    if result.stopped == "interrupted":
        incomplete.append("stopped by Ctrl-C")
    skipped = sorted(
        {found.step for found in result.capacity_violations if found.capacity == "verify_capacity"}
    )
    return {
        "steps": totals.steps,
        "limited": result.limited,
        "stopped": result.stopped,
        "events": totals.events,
        "requests": len(totals.requests),
        "stamps": totals.stamps,
        "entries": totals.entries - totals.unjudged,
        "entries_planned": totals.entries,
        "entries_skipped": totals.unjudged,
        "sweeps": totals.sweeps,
        "checks": made,
        "not_checked": [{"check": check, "why": why} for check, why in missing.items()],
        "sources": [
            {
                "name": source.name,
                "half": source.half,
                "group": source.group,
                "bytes_per_slot": source.bytes_per_slot,
                "hashed_bytes": source.hashed_bytes,
            }
            for source in result.layout.sources
        ],
        "gaps": [{"after_step": s, "forwards": f, "why": w} for s, f, w in totals.gaps],
        "bad_lines": bad_lines,
        "truncated_line": truncated,
        "server_skipped_steps": skipped,
        "incomplete": incomplete,
    }


def _summary(result: ReplayResult, runs: list[Run]) -> dict[str, Any]:
    rids = sorted({rid for story in result.records.slots.values() for rid in story.rids})
    return {
        "incidents": len(runs),
        "slots": len(result.records.slots),
        "violations": result.records.total,
        "capacity_violations": len(result.capacity_violations),
        "rids": rids,
    }


def _violation(violation: Violation, no_tokens: bool) -> dict[str, Any]:
    return {
        **asdict(violation),
        "bits": bit_names(violation.bits),
        "stored": _fields(violation.stored, no_tokens),
        "expected": _fields(violation.expected, no_tokens),
    }


def _fields(values: dict[str, int | None], no_tokens: bool) -> dict[str, Any]:
    out: dict[str, Any] = dict(values)
    if no_tokens:
        out.pop("token")
    if out["prev_hash"] is not None:
        out["prev_hash"] = f"0x{out['prev_hash']:016x}"
    return out


def _run(run: Run, no_tokens: bool) -> dict[str, Any]:
    first, last = run.stories[0], run.stories[-1]
    return {
        "slots": [run.slots[0], run.slots[-1]],
        "pages": sorted({first.first.page, last.first.page}),
        "row": first.first.row,
        "rid": first.first.rid,
        "positions": [first.first.position, last.first.position],
        "first_step": first.first.step,
        "last_step": max(story.last_step for story in run.stories),
        "launch": first.first.launch,
        "bits": bit_names(first.first.bits),
        "violations": sum(story.count for story in run.stories),
        "readers": sorted({rid for story in run.stories for rid in story.rids}),
        "example": _violation(first.first, no_tokens),
    }


def _hints(report: Report) -> list[str]:
    path = report["inputs"]["trace"]["path"]
    if report["runs"]:
        return [f"kvcanary replay {path} --format json"]
    return []


def render_replay(report: Report) -> Sections:
    """Text of a replay report."""
    body: list[str | Table] = [*_coverage_lines(report), ""]
    body += _capacity_table(report["capacity_violations"])
    body += _digest_table(report["digest_mismatches"])
    body += _runs_table(report)
    while body and body[-1] == "":
        body.pop()
    return Sections(
        header=_header(report),
        body=body,
        status=_status(report),
        notes=_notes(report),
        verdict=_verdict(report),
        annotations=[
            Annotation(
                level="error",
                title=f"corrupted slots {ranges([run['slots']])}",
                message=f"{'+'.join(run['bits'])} in {run['launch']} at step {run['first_step']}, request {run['rid']}",
            )
            for run in report["runs"]
        ],
    )


def _header(report: Report) -> list[tuple[str, str]]:
    coverage, pool, backend = report["coverage"], report["pool"], report["backend"]
    trace = report["inputs"]["trace"]
    what = (
        f"{trace['path']}, {trace['format']}: {plural(coverage['steps'], 'step')}, "
        f"{plural(coverage['requests'], 'request')}, {plural(coverage['events'], 'event')}"
    )
    reason = f" ({backend['reason']})" if backend["reason"] else ""
    shape = f"{plural(pool['slots'], 'slot')}, {count(pool['pages'])} pages of {count(pool['page_size'])}, "
    return [
        ("replay", what),
        ("pool", shape + f"groups: {' '.join(pool['groups'])}"),
        ("backend", f"{backend['name']} on {backend['device']}{reason}"),
    ]


def _coverage_lines(report: Report) -> list[str]:
    c = report["coverage"]
    lines = [f"  steps      {c['steps']:>13,}{_steps_note(c)}", f"  stamps     {c['stamps']:>13,} written"]
    first = f"  entries    {c['entries']:>13,} of {count(c['entries_planned'])} verified: "
    lines += wrap(" ".join(_check_words(c)), first=first, indent=" " * 27)
    if c["sweeps"]:
        interval = report["inputs"]["sweep_interval"]
        every = f", every {plural(interval, 'step')}" if interval else ", where the trace asks for one"
        lines.append(f"  sweeps     {c['sweeps']:>13,}{every}")
    for gap in c["not_checked"]:
        lines.append(f"  not checked             {gap['check']}: {gap['why']}")
    for source in c["sources"]:
        if source["hashed_bytes"] == 0:
            lines.append(f"  not covered             source {source['name']}: none of its bytes are hashed")
    for text in c["incomplete"]:
        lines += wrap(text, first="  missing    ", indent=" " * 13)
    if c["bad_lines"]:
        shown = ranges([[line, line] for line in c["bad_lines"]], limit=8)
        lines.append(f"  bad lines  {len(c['bad_lines']):>13,} skipped (--skip-bad-lines): {shown}")
    return lines


def _steps_note(coverage: dict[str, Any]) -> str:
    if coverage["limited"]:
        key, value = next(iter(coverage["limited"].items()))
        return f", limited to {count(value)} {key}"
    if coverage["stopped"] == "violation":
        return ", stopped at the first finding"
    if coverage["stopped"] == "interrupted":
        return ", stopped by Ctrl-C"
    if coverage["truncated_line"] is not None:
        return f": trace ends inside line {count(coverage['truncated_line'])}"
    return ""


def _check_words(coverage: dict[str, Any]) -> list[str]:
    words = []
    for check in coverage["checks"]:
        if check == "real_kv_hash":
            hashed = sum(source["hashed_bytes"] for source in coverage["sources"])
            whole = sum(source["bytes_per_slot"] for source in coverage["sources"])
            check = f"real_kv_hash ({count(hashed)} of {count(whole)} bytes a slot)"
        words.append(check)
    return words


def _capacity_table(found: list[dict[str, Any]]) -> list[str | Table]:
    if not found:
        return []
    rows = [
        [
            count(item["step"]),
            count(item["batch"]),
            count(item["tokens"]),
            item["capacity"] + (f" ({item['group']})" if item["capacity"] == "verify_capacity" else ""),
            count(item["need"]),
            count(item["limit"]),
            item["flag"],
        ]
        for item in found[:MAX_ROWS]
    ]
    right: Literal["right"] = "right"
    columns = [
        Column("STEP", right),
        Column("BATCH", right),
        Column("TOKENS", right),
        Column("CAPACITY"),
        Column("NEED", right),
        Column("LIMIT", right),
        Column("FLAG"),
    ]
    more = [f"  ... {count(len(found) - MAX_ROWS)} more (--format json)"] if len(found) > MAX_ROWS else []
    return [f"{plural(len(found), 'capacity violation')}", "", Table(columns, rows), *more, ""]


def _digest_table(found: list[dict[str, Any]]) -> list[str | Table]:
    if not found:
        return []
    columns = [
        Column("SLOT", "right"),
        Column("SOURCE"),
        Column("LAST GOOD", "right"),
        Column("SEEN", "right"),
    ]
    rows = [
        [count(i["slot"]), i["source"], count(i["since_step"]), count(i["step"])] for i in found[:MAX_ROWS]
    ]
    return [
        f"{plural(len(found), 'digest')} of the real pool changed without a write",
        "",
        Table(columns, rows),
        "",
    ]


def _runs_table(report: Report) -> list[str | Table]:
    runs = report["runs"]
    if not runs:
        return []
    right: Literal["right"] = "right"
    columns = [
        Column("SLOT", right),
        Column("PAGE", right),
        Column("ROW", right),
        Column("REQUEST"),
        Column("POS", right),
        Column("SEEN", right),
        Column("LAUNCH"),
        Column("REASONS"),
    ]
    rows: list[list[str]] = []
    details: list[str | None] = []
    for run in runs[:MAX_ROWS]:
        rows.append(
            [
                ranges([run["slots"]]),
                "-".join(str(page) for page in run["pages"]),
                "-" if run["row"] is None else str(run["row"]),
                run["rid"] or "-",
                ranges([sorted(run["positions"])]),
                count(run["first_step"]),
                run["launch"],
                "+".join(run["bits"]),
            ]
        )
        details.append(_example(run["example"]))
    summary = report["summary"]
    failed = plural(summary["slots"], "slot")
    title = f"{failed} failed in {plural(len(runs), 'run')}, {plural(summary['violations'], 'violation')}"
    extra = []
    if len(runs) > MAX_ROWS:
        extra.append(f"  ... {count(len(runs) - MAX_ROWS)} more rows (--format json)")
    if summary["violations"] > report["violation_log_rows"]:
        extra.append(
            f"  the log keeps {count(report['violation_log_rows'])} of {count(summary['violations'])} violations "
            "in full (--ring); counts are exact"
        )
    return [title, "", Table(columns, rows, details), *extra]


def _example(violation: dict[str, Any]) -> str:
    parts = []
    stored, expected = violation["stored"], violation["expected"]
    for field in ("token", "position", "prev_hash"):
        if field in expected and expected[field] is not None and stored[field] != expected[field]:
            parts.append(f"{field} {stored[field]}, expected {expected[field]}")
    if "real_kv_hash" in violation["bits"]:
        parts.append("byte hash differs")
    if "slot_out_of_range" in violation["bits"]:
        parts.append("slot is outside the pool")
    return "     " + "; ".join(parts)


def _status(report: Report) -> str:
    coverage, summary = report["coverage"], report["summary"]
    if report["status"] == "fail":
        if summary["rids"]:
            readers = plural(len(summary["rids"]), "request")
            return f"{readers} read damaged slots; what they produced is suspect: {names(summary['rids'])}"
        if report["runs"] or report["digest_mismatches"]:
            return "damaged slots were found; no request read them"
        return "the server's canary has less room than these steps need"
    if report["status"] == "incomplete":
        return "no fault found in what was checked; see `missing`"
    if coverage["not_checked"]:
        return "no fault found in what was checked; see `not checked`"
    return "clean: everything that was asked was checked, nothing failed"


def _notes(report: Report) -> list[tuple[str, str]]:
    notes = []
    message = next((i["server_message"] for i in report["capacity_violations"] if i["server_message"]), None)
    if message:
        notes.append(("why", message))
    elif report["coverage"]["server_skipped_steps"]:
        notes.append(("why", "the server skips verification of such a step and only warns"))
    notes += [("next", hint) for hint in report["hints"]]
    return notes


def _verdict(report: Report) -> dict[str, object]:
    coverage, summary = report["coverage"], report["summary"]
    verdict: dict[str, object] = {
        "incidents": summary["incidents"],
        "slots": summary["slots"],
        "checked": coverage["entries"],
        "skipped": coverage["entries_skipped"],
    }
    if summary["capacity_violations"]:
        verdict["capacity"] = summary["capacity_violations"]
    if coverage["not_checked"]:
        verdict["unchecked"] = ",".join(gap["check"] for gap in coverage["not_checked"])
    if coverage["limited"]:
        verdict["limited"] = ",".join(f"{key}:{value}" for key, value in coverage["limited"].items())
    if coverage["bad_lines"]:
        verdict["bad_lines"] = len(coverage["bad_lines"])
    if coverage["gaps"]:
        verdict["gaps"] = len(coverage["gaps"])
    return verdict
