"""The report of `kvcanary replay` as one dict; `replay_text.py` renders it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.faults.answers import AnswerSheet
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import ReplayResult, checks_made
from kvcanary_cli.report.again import again
from kvcanary_cli.report.expectation import build_expectation
from kvcanary_cli.report.frame import Report, base_report, finish
from kvcanary_cli.report.incidents import hide_tokens, incident_json, merged_ranges, violation_json
from kvcanary_cli.report.pool_map import heatmap, neighbourhood
from kvcanary_cli.report.replay_text import render_replay
from kvcanary_cli.report.text import count, plural

__all__ = ["build_replay", "render_replay"]

MOST_DRAWN = 200
"""Incidents whose surroundings are drawn; a run in which everything fails has thousands."""


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
    answers: AnswerSheet | None = None,
    asked: dict[str, Any] | None = None,
    page_of: int | None = None,
) -> Report:
    """The report of one replay.

    Args:
        source: path, format and what else names the input.
        bad_lines: line numbers that were skipped.
        truncated: line in which the trace ends, if it ends inside one.
        no_tokens: leave token ids out.
        answers: what was planted, to compare with what was found.
        page_of: number of the incident that is to be shown in full.
        asked: further words of the command line that decide what is found.
    """
    layout = result.layout
    report = base_report(
        "replay",
        inputs=_inputs(options, source) | _asked(asked or {}),
        pool={
            "slots": layout.num_slots,
            "pages": layout.num_slots // layout.page_size,
            "page_size": layout.page_size,
            "groups": [group.kind for group in layout.groups],
        },
        backend=backend,
        packages=("torch", "triton") if backend["name"] == "triton" else ("numba",),
    )
    incidents = [
        {
            **incident_json(incident, number, layout.page_size, no_tokens=no_tokens),
            "neighbourhood": neighbourhood(result, incident)
            if number <= MOST_DRAWN or number == page_of
            else None,
        }
        for number, incident in enumerate(result.incidents, 1)
    ]
    report["coverage"] = _coverage(result, options, bad_lines, truncated)
    report["summary"] = _summary(result, incidents)
    report["incidents"] = incidents
    report["capacity_violations"] = [asdict(found) for found in result.capacity_violations]
    report["digest_mismatches"] = [asdict(found) for found in result.digest_mismatches]
    report["violations"] = [violation_json(v, no_tokens) for v in result.stories.kept]
    report["violation_total"] = result.stories.total
    report["violation_log_rows"] = result.stories.ring_capacity
    report["memory_bytes"] = layout.memory_bytes()
    report["heatmap"] = heatmap(result)
    report["history"] = _history(result, no_tokens)
    report["expectation"] = build_expectation(answers, report) if answers is not None else None
    report["hints"] = _hints(report)
    report["timing"] = {"seconds": round(seconds, 3)}
    return finish(report, *_codes(report, result))


def _codes(report: Report, result: ReplayResult) -> list[Exit]:
    codes = [Exit.PASS]
    if report["expectation"] is not None:
        codes.append(Exit.PASS if report["expectation"]["is_met"] else Exit.FINDINGS)
    elif report["incidents"] or report["capacity_violations"] or report["digest_mismatches"]:
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
        "verify": "incremental" if options.incremental else "full",
        "chain": "affine" if options.is_affine else "mixed",
        "sweep_interval": options.sweep_interval,
        "ring": options.ring,
        "limit_steps": options.limit_steps,
        "limit_requests": options.limit_requests,
        "require": list(options.required),
    }


def _asked(asked: dict[str, Any]) -> dict[str, Any]:
    usual = {
        "capacities": None,
        "skip_bad_lines": False,
        "stop_on_violation": False,
        "seed": 0,
        "expect": None,
        "input_format": None,
        "block_size": None,
    }
    return usual | asked


def _coverage(
    result: ReplayResult, options: ReplayOptions, bad_lines: list[int], truncated: int | None
) -> dict[str, Any]:
    totals = result.totals
    made, missing = checks_made(result)
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
        "sweeps_in_trace": totals.sweeps
        - (totals.steps // options.sweep_interval if options.sweep_interval else 0),
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
        "ledger": _ledger(result),
        "gaps": [{"after_step": s, "forwards": f, "why": w} for s, f, w in totals.gaps],
        "bad_lines": bad_lines,
        "truncated_line": truncated,
        "server_skipped_steps": skipped,
        "server_entries": _server_entries(result),
        "incomplete": _incomplete(result, options, made, bad_lines, truncated),
    }


def _server_entries(result: ReplayResult) -> int:
    """Entries that a server would have verified too: it skips a step whose plan has no room (C4), HEAD and TAIL."""
    asked = sum(found.need for found in result.capacity_violations if found.capacity == "verify_capacity")
    return max(result.totals.entries - 2 * len(result.layout.halves) * asked, 0)


def _ledger(result: ReplayResult) -> dict[str, Any]:
    counts = result.ledger.counts()
    unjudged = counts["unjudged"]
    pairs = unjudged.items() if isinstance(unjudged, dict) else ()
    return {
        "events": counts["events"],
        "breaches": counts["breaches"],
        "not_judged": [f"{what}: {why}" for what, why in pairs],
    }


def _history(result: ReplayResult, no_tokens: bool) -> dict[str, Any] | None:
    history = result.history
    if history is None:
        return None
    moments = [
        {
            "step": m.step,
            "event": m.line,
            "what": m.what,
            "who": m.who,
            "epoch": m.epoch,
            "text": hide_tokens(m.text) if no_tokens else m.text,
        }
        for m in history.moments
    ]
    page = history.slot // result.layout.page_size
    return {"slot": history.slot, "group": history.group, "page": page, "moments": moments}


def _incomplete(
    result: ReplayResult, options: ReplayOptions, made: list[str], bad_lines: list[int], truncated: int | None
) -> list[str]:
    """What was planned and not done, one sentence each."""
    reasons = []
    skipped = [line for line in bad_lines if line != truncated]
    if skipped:
        reasons.append(f"{plural(len(skipped), 'bad line')} skipped")
    if truncated is not None:
        reasons.append(f"the trace ends inside line {count(truncated)}")
    for step, forwards, why in result.totals.gaps:
        lost = "an unknown number of forwards" if forwards is None else plural(forwards, "forward")
        reasons.append(f"the recording lost {lost} after step {step}" + (f" ({why})" if why else ""))
    if result.began_unknown:
        reasons.append("the recording began in a running engine: what was there before is unknown")
    reasons += [f"launches are missing: {text}" for text in result.counters.missing()]
    reasons += [f"required, not checked: {check}" for check in options.required if check not in made]
    if result.stopped == "interrupted":
        reasons.append("stopped by Ctrl-C")
    return reasons


def _summary(result: ReplayResult, incidents: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "incidents": len(incidents),
        "slots": merged_ranges(incidents),
        "shadows": sum(last - first + 1 for i in incidents for first, last in i["shadows"]),
        "breaches": result.ledger.counts()["breaches"],
        "cut_steps": result.cut_steps,
        "violations": result.stories.total,
        "capacity_violations": result.capacity_total,
        "rids": sorted({reader["rid"] for incident in incidents for reader in incident["readers"]}),
    }


def _hints(report: Report) -> list[str]:
    """Commands to go on with; there is one for everything that is no plain pass."""
    incidents, expectation = report["incidents"], report["expectation"]
    if expectation is not None and expectation["is_met"]:
        return []
    if incidents:
        # the earliest incident whose cause is certain or strong
        sure = [i for i in incidents if i["cause"]["strength"] in ("certain", "strong")]
        chosen = (sure or incidents)[0]
        page = again(report["inputs"], "--incident", str(chosen["id"]))
        return [page, f"kvcanary explain {chosen['kind']}"]
    kinds = list(dict.fromkeys(found["kind"] for found in report["capacity_violations"]))
    if kinds:
        return [f"kvcanary explain {kind}" for kind in kinds]
    if report["digest_mismatches"]:
        slot = report["digest_mismatches"][0]["slot"]
        return [again(report["inputs"], "--slot", str(slot), "--history"), "kvcanary explain K21"]
    return _gap_hints(report)


def _gap_hints(report: Report) -> list[str]:
    """How to go on after an incomplete run: the part that is whole, or what a missing check needs."""
    coverage, inputs = report["coverage"], report["inputs"]
    hints = []
    ends = [gap["after_step"] + 1 for gap in coverage["gaps"]]
    if coverage["truncated_line"] is not None:
        ends.append(coverage["steps"] - 1)
    whole = min(ends, default=0)
    if whole > 0 and set(coverage["bad_lines"]) <= {coverage["truncated_line"]}:
        hints.append(again(inputs | {"limit_steps": whole, "skip_bad_lines": False}))
    if coverage["stopped"] == "interrupted":
        hints.append(again(inputs))
    missing = [check for check in inputs["require"] if check not in coverage["checks"]]
    return hints + [f"kvcanary explain {check}" for check in missing]
