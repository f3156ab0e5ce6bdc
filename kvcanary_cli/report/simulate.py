"""The report of `simulate`: the peaks of a modelled run, and the run beside a measured one."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, percent, plural

if TYPE_CHECKING:
    from kvcanary_cli.sim.calibrate import Calibration
    from kvcanary_cli.sim.calibrate_series import Measured
    from kvcanary_cli.sim.config import SimConfig
    from kvcanary_cli.sim.series import Tick, Watch

SETTINGS = {
    "sglang": ("max_running_requests", "chunk_tokens", "max_prefill_tokens", "mixed_chunk", "prefix_cache"),
    "vllm": ("max_num_seqs", "max_num_batched_tokens", "prefix_cache"),
}
NEAR_PERCENT = 10
PEAK_TEXT = {
    "running": "running requests",
    "waiting": "waiting requests",
    "lanes": "requests a forward",
    "tokens": "tokens a forward",
    "verify_entries": "verify entries",
    "window_entries": "verify entries of the window",
    "request_slots": "slots of requests",
    "used_slots": "slots of requests and cache",
    "used_window_slots": "window slots in use",
}


def build_simulate(
    *,
    inputs: dict[str, Any],
    path: str,
    format_title: str,
    details: dict[str, Any],
    config: SimConfig,
    watch: Watch,
    rows: list[Tick],
    num_rows: int,
    tick_s: float,
    calibration: Calibration | None,
    measured: Measured | None,
    events: int | None,
    seconds: float,
) -> Report:
    """The report of one run.

    Args:
        details: facts about the file.
        rows: time series of the run; empty where there is none to compare it with.
        num_rows: of the time series that was written.
        events: lines of the trace that was written; None: none was.
        seconds: that the command took.
    """
    page = config.page_size
    pool = {
        "slots": config.pool_slots,
        "pages": config.pool_slots // page,
        "page_size": page,
        "groups": ["full", "swa"] if config.window else ["full"],
    }
    report = base_report("simulate", inputs=inputs, pool=pool)
    report["trace"] = {"path": path, "format": format_title, **details}
    report["scheduler"] = {
        "name": config.scheduler,
        **{setting: getattr(config, setting) for setting in SETTINGS[config.scheduler]},
        "prefill_tokens_per_s": 1 / config.costs.prefill_token_s if config.costs.prefill_token_s else None,
        "decode_step_s": config.costs.decode_step_s,
        "seed": config.seed,
    }
    report["run"] = _run(watch, config)
    report["peaks"] = {
        key: peak._asdict()
        for key, peak in watch.peaks.items()
        if key in PEAK_TEXT and _is_shown(key, config)
    }
    report["calibration"] = _calibration(calibration) if calibration is not None else None
    report["comparison"] = _comparison(watch, rows, measured, config) if measured is not None else None
    report["written"] = {
        "trace": {"path": inputs["output"], "events": events} if events is not None else None,
        "time_series": {"path": inputs["time_series"], "rows": num_rows, "tick_s": tick_s}
        if inputs["time_series"] is not None
        else None,
    }
    limits = {key: inputs[f"limit_{key}"] for key in ("requests", "steps")}
    reached = {"requests": details["requests"], "steps": watch.steps}
    report["limited"] = {
        key: limit for key, limit in limits.items() if limit is not None and limit == reached[key]
    }
    finish(report, Exit.INCOMPLETE if details["bad_lines"] else Exit.PASS)
    report["timing"] = {"seconds": round(seconds, 3)}
    return report


def _is_shown(key: str, config: SimConfig) -> bool:
    return bool(config.window) or "window" not in key


def _run(watch: Watch, config: SimConfig) -> dict[str, Any]:
    last = watch.last
    return {
        "steps": watch.steps,
        "modes": dict(sorted(watch.modes.items())),
        "makespan_s": round(watch.makespan_s, 6),
        "busy_s": round(watch.busy_s, 6),
        "mean_running": round(watch.mean_running, 3),
        "hit_tokens": last.hit_tokens if last else 0,
        "evicted_slots": last.evicted_slots if last else 0,
        "retracted": last.retracted if last else 0,
        "pool_tokens": config.pool_slots - config.page_size,
    }


def _calibration(found: Calibration) -> dict[str, Any]:
    return {
        "prefill_tokens_per_s": round(found.prefill_tokens_per_s, 1),
        "decode_step_ms": round(found.costs.decode_step_s * 1000, 4),
        "runs": found.runs,
        "errors": {key: round(value, 6) for key, value in asdict(found.errors).items()},
    }


def _comparison(watch: Watch, rows: list[Tick], measured: Measured, config: SimConfig) -> dict[str, Any]:
    """Model and measurement, both at the ticks of the time series; what was never measured is None."""
    lines = []

    def add(quantity: str, model: float, found: float | None, *, fitted: bool = False) -> None:
        off = None if not found else round(100 * (model / found - 1), 2)
        lines.append(
            {
                "quantity": quantity,
                "measured": None if found is None else round(found, 3),
                "model": round(model, 3),
                "difference_percent": off,
                "fitted": fitted,
            }
        )

    add("makespan_s", watch.makespan_s, measured.makespan_s, fitted=True)
    sampled = float(measured.sampled[-1])
    tokens = sum(row.gen_throughput for row in rows) * measured.tick_s
    add("output_tokens_per_s", tokens / watch.makespan_s, sampled / measured.makespan_s, fitted=True)
    for key in ("running", "waiting", "kv_cache_pct"):
        column = getattr(measured, key)
        ticks = [getattr(row, key) for row in rows]
        add(f"{key}_peak", max(ticks), None if column is None else float(column.max()))
        add(f"{key}_mean", sum(ticks) / len(ticks), None if column is None else float(column.mean()))
    return {"path": measured.path, "missing": measured.missing, "rows": lines}


def render_simulate(report: Report, *, verbose: bool = False) -> Sections:
    """The text report."""
    trace, run, scheduler, pool = report["trace"], report["run"], report["scheduler"], report["pool"]
    header = [
        ("simulate", f"{name(trace['path'])}, {trace['format']}: {plural(trace['requests'], 'request')}"),
        ("pool", f"{count(pool['slots'])} slots, {count(pool['pages'])} pages of {count(pool['page_size'])}"),
        ("scheduler", _scheduler_text(scheduler)),
    ]
    rate = scheduler["prefill_tokens_per_s"]
    costs = "-" if rate is None else count(round(rate))
    costs += f" prompt tokens/s, {scheduler['decode_step_s'] * 1000:.3f} ms a decode step"
    header.append(("costs", costs + _fitted_text(report)))
    body: list[str | Table] = [_peaks_table(report, verbose=verbose), "", *_total_lines(run)]
    if report["comparison"] is not None:
        body += ["", _comparison_table(report["comparison"])]
    notes = []
    written = report["written"]
    if written["trace"] is not None and written["trace"]["path"] != "-":
        notes.append(("next", f"kvcanary replay {shlex.quote(written['trace']['path'])}"))
    verdict: dict[str, object] = {
        "steps": run["steps"],
        "requests": trace["requests"],
        "running": report["peaks"]["running"]["value"],
        "verify": report["peaks"]["verify_entries"]["value"],
        "retracted": run["retracted"],
        "makespan": f"{run['makespan_s']:.3f}",
    }
    if report["limited"]:
        verdict["limited"] = ",".join(f"{key}:{value}" for key, value in report["limited"].items())
    status = (
        f"{plural(len(trace['bad_lines']), 'line')} of the file could not be read"
        if trace["bad_lines"]
        else ""
    )
    return Sections(header=header, body=body, status=status, notes=notes, verdict=verdict)


def _scheduler_text(scheduler: dict[str, Any]) -> str:
    words = [f"{key.replace('_', ' ')} {_plain(scheduler[key])}" for key in SETTINGS[scheduler["name"]]]
    return f"{scheduler['name']}: {', '.join(words)}"


def _plain(value: int | None) -> str:
    if value is None:
        return "none"
    return ("on" if value else "off") if isinstance(value, bool) else count(value)


def _fitted_text(report: Report) -> str:
    fitted = report["calibration"]
    return "" if fitted is None else f" (fitted in {plural(fitted['runs'], 'run')})"


def _peaks_table(report: Report, *, verbose: bool) -> Table:
    columns = [
        Column("PEAK"),
        Column("VALUE", "right"),
        Column("AT STEP", "right"),
        Column("AT TIME", "right"),
    ]
    rows = []
    capacity = report["run"]["pool_tokens"]
    for key, peak in report["peaks"].items():
        value = count(peak["value"])
        if key in ("request_slots", "used_slots"):
            value += f" ({percent(peak['value'], capacity, up=True)})"
        rows.append([PEAK_TEXT[key], value, count(peak["step"]), f"{peak['time_s']:,.2f} s"])
    return Table(columns, rows)


def _total_lines(run: dict[str, Any]) -> list[str | Table]:
    modes = ", ".join(f"{count(number)} {mode}" for mode, number in run["modes"].items())
    cells = [
        ["forwards", f"{count(run['steps'])}: {modes}" if modes else "0"],
        ["makespan", f"{run['makespan_s']:,.3f} s, {run['busy_s']:,.3f} s of it in forwards"],
        ["running, mean", f"{run['mean_running']:,.2f}"],
        ["prefix hits", plural(run["hit_tokens"], "token")],
        ["evictions", plural(run["evicted_slots"], "slot")],
        ["retractions", plural(run["retracted"], "time")],
    ]
    return [Table([Column("TOTAL"), Column("")], cells, header=False)]


def _comparison_table(comparison: dict[str, Any]) -> Table:
    columns = [
        Column("BESIDE THE RUN"),
        *(Column(word, "right") for word in ("MEASURED", "MODEL", "DIFFERENCE")),
    ]
    rows = []
    for line in comparison["rows"]:
        off = line["difference_percent"]
        rows.append(
            [
                line["quantity"] + (" (fitted)" if line["fitted"] else ""),
                "-" if line["measured"] is None else f"{line['measured']:,.2f}",
                f"{line['model']:,.2f}",
                "-" if off is None else f"{off:+.1f}%" + (" *" if abs(off) > NEAR_PERCENT else ""),
            ]
        )
    detail: list[str | None] = [None] * len(rows)
    notes = [f"not measured: {key}, {why}" for key, why in comparison["missing"].items()]
    if any(row[-1].endswith("*") for row in rows):
        notes.append(f"* more than {NEAR_PERCENT}% apart")
    if notes:
        detail[-1] = "\n".join(notes)
    return Table(columns, rows, detail)
