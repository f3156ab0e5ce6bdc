"""The report of `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Annotation, Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import plural

if TYPE_CHECKING:
    from kvcanary_cli.doctor.checks import CompileRun, VectorRun
    from kvcanary_cli.doctor.facts import Row

PACKAGES = ("numpy", "numba", "msgspec", "torch", "triton")


def build_doctor(
    rows: Sequence[Row],
    runs: Sequence[VectorRun],
    compiled: CompileRun | None,
    *,
    inputs: dict[str, Any],
    seconds: float,
) -> Report:
    """The report of facts and runs; a FAIL row is a finding, a WARN row a warning."""
    report = base_report("doctor", inputs=inputs, packages=PACKAGES)
    number = {word: sum(row.status == word for row in rows) for word in ("OK", "WARN", "FAIL", "SKIP")}
    report["rows"] = [asdict(row) for row in rows]
    report["vectors"] = {
        run.backend: {key: value for key, value in asdict(run).items() if key != "backend"} for run in runs
    }
    report["compile"] = None if compiled is None else asdict(compiled)
    report["summary"] = {word.lower(): value for word, value in number.items()} | {
        "passed": sum(run.passed for run in runs),
        "failed": sum(run.failed for run in runs),
    }
    report["timing"] = {"seconds": round(seconds, 2)}
    return finish(report, Exit.FINDINGS if number["FAIL"] else Exit.PASS, warnings=number["WARN"])


def render_doctor(report: Report) -> Sections:
    """The text report."""
    rows = report["rows"]
    table = Table(
        [Column("STATUS"), Column("FACT"), Column("TEXT")],
        [[row["status"], row["name"], row["text"]] for row in rows],
        header=False,
    )
    pad = " " * table.starts()[2]
    table = Table(
        table.columns,
        table.rows,
        [pad + row["consequence"] if row["consequence"] else None for row in rows],
        header=False,
    )
    bad = [row for row in rows if row["status"] == "FAIL"]
    return Sections(
        header=[],
        body=[table],
        status=_sentence(report, bad),
        notes=[],
        verdict=dict(report["summary"]),
        annotations=[
            Annotation(level="error", title=f"kvcanary doctor: {row['name']}", message=row["text"])
            for row in bad
        ],
    )


def _sentence(report: Report, bad: list[dict[str, Any]]) -> str:
    if bad:
        return f"not in order: {', '.join(row['name'] for row in bad)}"
    if report["status"] == "fail":
        number = report["warnings"]
        which = "which counts as a finding" if number == 1 else "which count as findings"
        return f"{plural(number, 'warning')}, {which} under --strict"
    runs = report["vectors"]
    if not any(runs.get(backend, {}).get("passed") for backend in ("numba", "triton")):
        return "nothing is wrong; no backend of an audit was checked"
    if any(run["device"].startswith("cuda") for run in runs.values()):
        return "audits can run here; Triton kernels were run on a device"
    return "audits can run here; Triton kernels were not run on a device"
