"""The report of `kvcanary selftest`: kind by kind, planted, found, named right, how late, and what was wrong."""

from __future__ import annotations

from statistics import median_high
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.kinds import title
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, plural
from kvcanary_cli.selftest.matrix import CLEAN, Plan, Trial

MAX_DETAILS = 20


def build_selftest(plan: Plan, trials: list[Trial], backend: dict[str, Any], seconds: float) -> Report:
    """The report of a matrix of trials."""
    report = base_report(
        "selftest",
        inputs={
            "kinds": list(plan.kinds),
            "scenarios": list(plan.scenarios),
            "seeds": list(plan.seeds),
            "steps": plan.steps,
        },
        backend=backend,
        packages=("torch", "triton") if backend["name"] == "triton" else ("numba",),
    )
    planted = [t for t in trials if t.kind != CLEAN and t.applies]
    clean = [t for t in trials if t.kind == CLEAN]
    report["kinds"] = [_kind(kind, planted) for kind in plan.kinds]
    report["summary"] = {
        "planted": len(planted),
        "found": sum(t.found for t in planted),
        "named_right": sum(t.named_right for t in planted),
        "in_time": sum(t.in_time for t in planted),
        "false_slots": sum(t.false_slots for t in planted),
        "blamed": sum(len(t.blamed) for t in planted),
        "spare": sum(t.spare for t in planted),
        "kinds": len(plan.kinds),
        "kinds_planted": sum(kind["planted"] > 0 for kind in report["kinds"]),
        "clean_runs": len(clean),
        "clean_findings": sum(t.spare for t in clean),
    }
    report["unmet"] = [_unmet(t) for t in trials if not t.is_met]
    report["hints"] = _hints(report)
    report["timing"] = {"seconds": round(seconds, 3)}
    missing = report["summary"]["kinds"] - report["summary"]["kinds_planted"]
    codes = [Exit.FINDINGS if report["unmet"] else Exit.PASS, Exit.INCOMPLETE if missing else Exit.PASS]
    return finish(report, *codes)


def _hints(report: Report) -> list[str]:
    """How to see the first failure by itself; else where the kinds that had no place have one."""
    if report["unmet"]:
        first = report["unmet"][0]
        trace = f"kvcanary synth t.jsonl --scenario {first['scenario']} --steps {report['inputs']['steps']}"
        trace += f" --seed {first['seed']}"
        if first["kind"] == CLEAN:
            return [trace, "kvcanary replay t.jsonl"]
        return [f"{trace} --fault {first['kind']}", "kvcanary replay t.jsonl --expect t.faults.json"]
    missing = [kind["kind"] for kind in report["kinds"] if not kind["planted"]]
    return [f"kvcanary selftest --kinds {','.join(missing)} --scenarios all"] if missing else []


def _kind(kind: str, planted: list[Trial]) -> dict[str, Any]:
    own = [t for t in planted if t.kind == kind]
    latencies = [t.latency_steps for t in own if t.latency_steps is not None]
    return {
        "kind": kind,
        "planted": len(own),
        "found": sum(t.found for t in own),
        "named_right": sum(t.named_right for t in own),
        "median_latency_steps": median_high(latencies) if latencies else None,
        "false_findings": sum(t.false_slots > 0 or bool(t.blamed) or t.spare > 0 for t in own),
    }


def _unmet(trial: Trial) -> dict[str, Any]:
    return {
        "kind": trial.kind,
        "scenario": trial.scenario,
        "seed": trial.seed,
        "found": trial.found,
        "named_right": trial.named_right,
        "false_slots": trial.false_slots,
        "blamed": list(trial.blamed),
        "spare": trial.spare,
        "detail": trial.detail,
    }


def render_selftest(report: Report) -> Sections:
    """Text of a selftest report."""
    inputs, summary, backend = report["inputs"], report["summary"], report["backend"]
    columns = [
        Column("FAULT"),
        Column("PLANTED", "right"),
        Column("FOUND", "right"),
        Column("NAMED RIGHT", "right"),
        Column("MEDIAN LATENCY", "right"),
        Column("FALSE", "right"),
    ]
    rows = [
        [
            title(kind["kind"]),
            count(kind["planted"]),
            count(kind["found"]),
            count(kind["named_right"]),
            "-" if kind["median_latency_steps"] is None else count(kind["median_latency_steps"]),
            count(kind["false_findings"]),
        ]
        for kind in report["kinds"]
    ]
    body: list[str | Table] = [Table(columns, rows)]
    body.append(
        f"  clean runs: {count(summary['clean_runs'])}, findings in them: {count(summary['clean_findings'])}"
    )
    body += _details(report["unmet"])
    what = (
        f"{plural(len(inputs['kinds']), 'kind')} x {plural(len(inputs['scenarios']), 'scenario')} x "
        f"{plural(len(inputs['seeds']), 'seed')}, {plural(inputs['steps'], 'step')} each"
    )
    reason = f" ({backend['reason']})" if backend["reason"] else ""
    return Sections(
        header=[("selftest", what), ("backend", f"{backend['name']} on {backend['device']}{reason}")],
        body=body,
        status=_status(report),
        notes=[("next", hint) for hint in report["hints"]],
        verdict={
            "planted": summary["planted"],
            "found": summary["found"],
            "named": summary["named_right"],
            "false": sum(kind["false_findings"] for kind in report["kinds"]) + summary["clean_findings"],
            "kinds": f"{summary['kinds_planted']}/{summary['kinds']}",
        },
    )


def _details(unmet: list[dict[str, Any]]) -> list[str]:
    lines = []
    for trial in unmet[:MAX_DETAILS]:
        wrong = [trial["detail"] or ("" if trial["found"] else "not found")]
        if trial["false_slots"]:
            wrong.append(f"{plural(trial['false_slots'], 'slot')} wrongly called damaged")
        if trial["blamed"]:
            wrong.append(f"innocent: {' '.join(trial['blamed'])}")
        text = "; ".join(part for part in wrong if part)
        lines.append(f"  {trial['kind']} in {trial['scenario']}, seed {trial['seed']}: {text}")
    if len(unmet) > MAX_DETAILS:
        lines.append(f"  ... {count(len(unmet) - MAX_DETAILS)} more (--format json)")
    return ["", *lines] if lines else []


def _status(report: Report) -> str:
    summary = report["summary"]
    if report["status"] == "pass":
        return "every fault was found and named, nothing else was reported"
    if report["status"] == "incomplete":
        missing = summary["kinds"] - summary["kinds_planted"]
        return (
            f"what was planted was found and named; {plural(missing, 'kind')} had no place in these scenarios"
        )
    return (
        f"of {plural(summary['planted'], 'planted fault')} {count(summary['found'])} found, "
        f"{count(summary['named_right'])} named right"
    )
