"""Report of `check-capacities`: an audit as a dict, and that dict as text."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.capacity.arguments import closest_flag
from kvcanary_cli.capacity.audit import Audit
from kvcanary_cli.capacity.capacities import Capacity
from kvcanary_cli.capacity.formula import STAMP_BYTES, STAMPS_PER_SLOT, workspace_rates
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.capacity.rule import Finding
from kvcanary_cli.exits import Exit
from kvcanary_cli.report.capacity_text import (
    capacity_table,
    input_table,
    memory_lines,
    notes_of,
    pool_line,
    status_sentence,
    subject,
    unknown_lines,
)
from kvcanary_cli.report.frame import Annotation, Report, Sections, base_report, finish
from kvcanary_cli.report.request_file import request_file_lines
from kvcanary_cli.report.tables import Table
from kvcanary_cli.report.text import plural

# Keys of the verdict, and the statuses that each counts
_COUNTED = {"over": ("OVER", "FAIL"), "tight": ("TIGHT", "WARN"), "ok": ("OK",), "info": ("INFO",)}
_SHOWN_FIXES = 2


def build_check_capacities(audit: Audit) -> Report:
    """The report dict of an audit, with its verdict."""
    setup, config = audit.setup, audit.request.config
    report = base_report("check-capacities", inputs=_inputs(audit), pool=_pool(audit))
    rows = [_capacity(row, audit) for row in audit.capacities]
    report["launch"] = {
        "config": None if config is None else config.path,
        "given": setup.num_given,
        "defaulted": sum(value.origin is Origin.DEFAULT for value in setup.inputs.values()),
        "unknown_flags": [
            {"flag": flag, "nearest": closest_flag(flag, audit.request.table)} for flag in setup.unknown_flags
        ],
        "canary_mode": setup.canary.mode,
        "canary_off": setup.canary.is_off,
        "log": None if setup.log is None or setup.log.origin is not Origin.LOG else setup.log.path,
        "log_ranks": [] if setup.log is None else list(setup.log.ranks),
        "sglang_version": setup.version.name,
    }
    report["capacities"] = rows
    report["memory"] = _memory(audit)
    report["workload"] = _workload(audit)
    report["findings"] = [
        {
            "rule": finding.rule.id,
            "code": finding.rule.code,
            "severity": finding.rule.severity,
            "capacity": finding.rule.capacity or None,
            "title": finding.rule.title,
            "when": finding.hit.when,
            "text": finding.hit.text,
            "server_message": finding.hit.server_message,
        }
        for finding in audit.findings
    ]
    report["fixes"] = [
        {
            "changes": [
                {"flag": change.flag, "value": None if change.is_removal else change.value}
                for change in fix.changes
            ],
            "text": " ".join(change.text for change in fix.changes),
            "note": fix.note or None,
        }
        for fix in audit.fixes
    ]
    report["summary"] = {
        key: sum(row["status"] in statuses for row in rows) for key, statuses in _COUNTED.items()
    }
    code = Exit.FINDINGS if report["summary"]["over"] else Exit.PASS
    return finish(report, code, warnings=report["summary"]["tight"])


def _workload(audit: Audit) -> dict[str, Any] | None:
    workload = audit.setup.workload
    if workload is None:
        return None
    return {
        "path": workload.path,
        "format": workload.format,
        "steps": workload.steps,
        "requests": workload.requests._asdict(),
        "tokens": workload.tokens._asdict(),
        "verify": {group: peak._asdict() for group, peak in workload.verify},
        "not_reached": audit.not_reached,
        "details": workload.details,
    }


def _inputs(audit: Audit) -> dict[str, Any]:
    return {
        name: {"value": value.value, "from": value.origin.value, "source": value.source}
        for name, value in audit.setup.inputs.items()
    }


def _pool(audit: Audit) -> dict[str, Any]:
    pool, window = audit.setup.pool, audit.setup.window
    return {
        "slots": pool.tokens,
        "pages": pool.tokens // pool.page_size,
        "page_size": pool.page_size,
        "groups": ["full"] if window.tokens is None else ["full", "swa"],
        "window": window.size,
        "swa_slots": window.tokens,
        "context_length": pool.context_length,
        "is_estimate": pool.estimate is not None,
        "plausible_slots": None if pool.estimate is None else [pool.estimate.smallest, pool.estimate.largest],
    }


def _capacity(row: Capacity, audit: Audit) -> dict[str, Any]:
    rules = {finding.rule.id for finding in audit.findings if _judges(finding, row)}
    flags = _flags_for(row, audit)
    return {
        "name": row.name,
        "rule": row.rule,
        "code": row.code,
        "status": row.status,
        "value": row.value,
        "need": row.need,
        # hundredths, rounded down like the text
        "headroom": None if not row.need or row.value is None else row.value * 100 // row.need / 100,
        "exact": row.is_exact,
        "formula": row.formula,
        "terms": dict(row.terms),
        "worked": row.worked,
        "remark": row.remark or None,
        "bound_by": row.bound_by,
        "fired": sorted(rules),
        "server_message": row.server_message,
        "fix": flags,
    }


def _judges(finding: Finding, row: Capacity) -> bool:
    return row.name == (finding.rule.capacity or finding.rule.id)


def _flags_for(row: Capacity, audit: Audit) -> list[dict[str, str | None]]:
    """Changes of the fixes that bear on one row, each once, in their order."""
    rules = [finding.rule for finding in audit.findings if _judges(finding, row)]
    bearing = {
        change.flag
        for rule in rules
        for changes in rule.changes(audit.request, audit.setup, audit.sizes)
        for change in changes
    }
    changes = [
        (change.flag, None if change.is_removal else change.value)
        for fix in audit.fixes
        for change in fix.changes
    ]
    return [{"flag": flag, "value": value} for flag, value in dict.fromkeys(changes) if flag in bearing]


def _memory(audit: Audit) -> dict[str, Any]:
    memory, rates = audit.sizes.memory, workspace_rates(audit.setup.groups)
    is_window_only = audit.setup.model.family.pool == "dsv4" and audit.setup.window.tokens is not None
    return {
        "canary_bytes": memory.runners * memory.buffers,
        "canary_bytes_per_runner": memory.buffers,
        "canary_bytes_per_slot": (2 if is_window_only else STAMPS_PER_SLOT) * STAMP_BYTES,
        "is_window_only": is_window_only,
        "runners": memory.runners,
        "workspace_bytes": memory.workspace_copies * memory.workspace,
        "workspace_bytes_per_copy": memory.workspace,
        "workspace_copies": memory.workspace_copies,
        "workspace_rates_bytes": {
            "verify_entry": rates.verify_entry,
            "write_request": rates.write_request,
            "write_entry": rates.write_entry,
            "fixed": rates.fixed,
        },
        "total_bytes": memory.total,
        "fixed_bytes": memory.fixed,
        "token_table_bytes": memory.token_table,
        "kv_bytes": memory.kv,
        # what the pool could hold in the same memory, rounded up
        "tokens_lost": None if not memory.kv else -(-memory.total * audit.setup.pool.tokens // memory.kv),
    }


def render_check_capacities(report: Report, *, verbose: bool = False) -> Sections:
    """The report dict as text; `verbose` adds every input with its origin."""
    body: list[str | Table] = [capacity_table(report), "", *memory_lines(report)]
    if report["launch"]["canary_off"]:
        body.append("canary    off in these arguments (--kv-canary none): nothing is checked; the sizes are")
        body.append("          those that it would have")
    elif report["launch"]["canary_mode"] == "none":
        body.append("canary    off in these arguments (--kv-canary none); sized as if it were on")
    if verbose:
        body += ["", input_table(report), *unknown_lines(report)]
    failing = [finding for finding in report["findings"] if finding["severity"] == "error"]
    warned = [finding for finding in report["findings"] if finding["severity"] == "warning"]
    header = [("check-capacities", subject(report)), ("pool", pool_line(report["pool"]))]
    workload = report["workload"]
    if workload is not None:
        steps = plural(workload["steps"], "step")
        header.append(("workload", f"{workload['path']}, {workload['format']}: need measured over {steps}"))
        header += request_file_lines(workload["details"])
    return Sections(
        header=header,
        body=body,
        status=status_sentence(report, failing),
        notes=notes_of(report, failing or warned, most_fixes=None if verbose else _SHOWN_FIXES),
        verdict={key: report["summary"][key] for key in _COUNTED},
        annotations=[_annotation(finding) for finding in (*failing, *warned)],
    )


def _annotation(finding: dict[str, Any]) -> Annotation:
    name, rule, text = finding["capacity"], finding["rule"], finding["text"]
    message = finding["server_message"]
    return Annotation(
        level=finding["severity"],
        title=rule if name is None else f"{name} ({rule})",
        message=text if message is None else f"{text}: {message}",
    )
