"""The report of `bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Annotation, Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import plural

if TYPE_CHECKING:
    from kvcanary_cli.bench.rows import CpuRow, GpuRow
    from kvcanary_cli.bench.run import BenchResult

PACKAGES = ("numpy", "numba", "torch", "triton", "sglang")

MIN_BYTES = 1 << 20
"""Below this, a launch is a matter of latency, and bytes over time say nothing."""


def build_bench(result: BenchResult, *, inputs: dict[str, Any], seconds: float) -> Report:
    """The report of a benchmark; a wrong result is a finding. All that depends on the clock is under `timing`."""
    report = base_report(
        "bench",
        inputs=inputs,
        backend={"device": result.choice.label, "name": result.choice.name, "driver": result.driver},
        packages=PACKAGES,
    )
    rows: list[GpuRow | CpuRow] = [*result.gpu_rows, *result.cpu_rows]
    wrong = [
        {"case": row.case, "operation": row.operation, "problem": row.problem} for row in rows if row.problem
    ]
    report["cases"] = [asdict(case) for case in result.cases]
    report["wrong"] = wrong
    report["peer"] = result.peer or None
    report["timing"] = {
        "seconds": round(seconds, 1),
        "copy_gb_per_second": _rounded(result.copy_gb_per_second),
        "gpu": [_gpu_row(row, result.copy_gb_per_second) for row in result.gpu_rows],
        "cpu": [{**asdict(row), "ratio": _rounded(row.ratio)} for row in result.cpu_rows],
    }
    return finish(report, Exit.FINDINGS if wrong else Exit.PASS)


def _gpu_row(row: Any, copied: float | None) -> dict[str, Any]:
    rate = row.gb_per_second
    return {
        **{key: _rounded(value) for key, value in asdict(row).items()},
        "gb_per_second": _rounded(rate),
        "copy_percent": _rounded(100 * rate / copied) if rate and copied else None,
    }


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def render_bench(report: Report) -> Sections:
    """The text report."""
    timing, backend = report["timing"], report["backend"]
    tool = report["tool"]
    versions = ", ".join(f"{name} {tool[name]}" for name in ("torch", "triton", "numba") if tool[name])
    device = backend["name"] if backend["device"] == "cpu" else f"{backend['name']}, {backend['device']}"
    header = [
        ("bench", f"{plural(len(report['cases']), 'case')}, kvcanary {tool['version']}"),
        ("device", f"{device}, driver {backend['driver'] or 'none'}"),
        ("versions", versions),
    ]
    if timing["copy_gb_per_second"]:
        header.append(
            ("copy", f"{timing['copy_gb_per_second']:,.0f} GB/s device to device, read and written")
        )
    notes = []
    if report["peer"] not in (None, "timed"):
        notes.append(("why", f"SGLang's kernels were not timed: {report['peer']}"))
    wrong = report["wrong"]
    notes += [("why", f"{row['case']}, {row['operation']}: {row['problem']}") for row in wrong[:10]]
    has_gpu = backend["device"] != "cpu"
    return Sections(
        header=header,
        body=[_gpu_table(timing["gpu"]), "", _cpu_table(timing["cpu"])]
        if timing["cpu"]
        else [_gpu_table(timing["gpu"])],
        status=_sentence(wrong, has_gpu),
        notes=notes,
        verdict={
            "cases": len(report["cases"]),
            "timed": sum(row["median_us"] is not None for row in timing["gpu"]),
            "wrong": len(wrong),
            "copy_gb_per_second": timing["copy_gb_per_second"],
        },
        annotations=[
            Annotation(
                level="error",
                title=f"kvcanary bench: {row['case']}, {row['operation']}",
                message=row["problem"],
            )
            for row in wrong
        ],
    )


def _gpu_table(rows: list[dict[str, Any]]) -> Table:
    cells = []
    for row in rows:
        words = {"wrong": "WRONG", "no GPU": "no GPU"}.get(row["result"])
        times = [
            f"{row[key]:,.2f}" if row[key] is not None else "-" for key in ("median_us", "p20_us", "p80_us")
        ]
        is_large = (row["moved_bytes"] or 0) >= MIN_BYTES
        rates = [
            f"{row[key]:,.0f}" if is_large and row[key] is not None else "-"
            for key in ("gb_per_second", "copy_percent")
        ]
        cells.append([row["case"], row["operation"], row["order"], words or times[0], *times[1:], *rates])
    right = [Column(name, align="right") for name in ("US", "P20", "P80", "GB/S", "% OF COPY")]
    return Table([Column("CASE"), Column("OPERATION"), Column("SLOTS"), *right], cells)


def _cpu_table(rows: list[dict[str, Any]]) -> Table:
    cells = [
        [
            row["case"],
            row["operation"],
            f"{row['entries']:,}",
            "WRONG" if row["ratio"] is None else f"{row['ratio']:.2f} x",
        ]
        for row in rows
    ]
    columns = [Column("CASE"), Column("ON THE CPU"), Column("STAMPS", align="right")]
    return Table([*columns, Column("OF A BARE GATHER", align="right")], cells)


def _sentence(wrong: list[dict[str, Any]], has_gpu: bool) -> str:
    if wrong:
        return f"{plural(len(wrong), 'operation')} computed something else and has no time"
    where = "on the GPU and the CPU" if has_gpu else "on the CPU; there is no GPU to time"
    return f"every operation was checked before it was timed, {where}"
