"""Parts of the text of `check-capacities`: each function reads the report dict and nothing else."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.capacity.formula import STAMP_BYTES, STAMPS_PER_SLOT
from kvcanary_cli.report.frame import Report
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, headroom, names, percent, plural, size, wrap

_CODE_COLUMN = 3


def subject(report: Report) -> str:
    launch = report["launch"]
    lines = [launch[source] for source in ("config", "log") if launch[source] is not None]
    if launch["log_ranks"]:
        lines[-1] += f", {plural(len(launch['log_ranks']), 'rank')}"
    lines.append(
        f"launch arguments of sglang {launch['sglang_version']}: {count(launch['given'])} given, "
        f"{count(launch['defaulted'])} defaulted"
    )
    if launch["unknown_flags"]:
        flags = names([unknown["flag"] for unknown in launch["unknown_flags"]], limit=3)
        lines.append(f"{count(len(launch['unknown_flags']))} not known to that release: {flags}")
    return "\n".join(lines)


def pool_line(pool: dict[str, Any]) -> str:
    slots, groups = count(pool["slots"]), ", ".join(pool["groups"])
    line = f"{slots} slots, page size {count(pool['page_size'])}, groups: {groups}"
    if pool["is_estimate"]:
        low, high = (count(end) for end in pool["plausible_slots"])
        line += f"\nan estimate: {low} to {high} slots are plausible"
    if pool["swa_slots"] is None:
        return line
    return f"{line}\n{count(pool['swa_slots'])} slots in the swa group, window {count(pool['window'])}"


def capacity_table(report: Report) -> Table:
    rows, details = [], []
    for row in report["capacities"]:
        rows.append(
            [
                row["status"],
                row["name"],
                "-" if row["value"] is None else count(row["value"]),
                "-" if row["need"] is None else count(row["need"]),
                _headroom(row),
                row["bound_by"],
            ]
        )
        text = row["worked"] + (f"; {row['remark']}" if row["remark"] else "")
        first = f"{'':{_CODE_COLUMN}}{row['code']}   "
        # the table's own indent takes two of the 80 columns
        details.append("\n".join(wrap(text, first=first, width=78)))
    columns = [
        Column("STATUS"),
        Column("CAPACITY"),
        Column("VALUE", "right"),
        Column("NEED", "right"),
        Column("HEADROOM", "right"),
        Column("BOUND BY"),
    ]
    return Table(columns=columns, rows=rows, detail=list(details))


def _headroom(row: dict[str, Any]) -> str:
    if row["need"] is None or row["value"] is None:
        return "-"
    return "exact" if row["exact"] else headroom(row["value"], row["need"])


def memory_lines(report: Report) -> list[str]:
    memory, pool = report["memory"], report["pool"]
    canary, workspace, total = (memory[f"{part}_bytes"] for part in ("canary", "workspace", "total"))
    share = ""
    if memory["kv_bytes"] is not None:
        used = percent(total, memory["kv_bytes"], digits=2, up=True)
        share = (
            f", {used} of {size(memory['kv_bytes'], down=True)} KV ({count(memory['tokens_lost'])} tokens)"
        )
    summary = f"canary {size(canary)} + workspace {size(workspace)} = {size(total)}{share}"
    lines = wrap(summary, first="memory    ")
    slots, page = count(pool["slots"]), count(pool["page_size"])
    if pool["swa_slots"] is None:
        slots = f"({slots} + {page}) slots"
    else:
        slots = f"({slots} + {count(pool['swa_slots'])} + 2 x {page}) slots"
    runners = f"{memory['runners']} runners x " if memory["runners"] > 1 else ""
    stamps = f"{STAMP_BYTES} B x {STAMPS_PER_SLOT} (head and tail, K and V)"
    if memory["is_window_only"]:
        slots, stamps = f"{count(pool['swa_slots'])} window slots", f"{STAMP_BYTES} B x 2 (head and tail)"
    lines += wrap(f"{runners}{slots} x {stamps}", first=f"{'':10}canary    ")
    rates = memory["workspace_rates_bytes"]
    terms = (
        f"{rates['verify_entry']} B x verify entries + {rates['write_request']} B x write requests + "
        f"{rates['write_entry']} B x write entries + {rates['fixed']} B"
    )
    if memory["workspace_copies"] > 1:
        terms = f"{memory['workspace_copies']} x ({terms}): eager, and in the graph pool"
    lines += wrap(terms, first=f"{'':10}workspace ")
    if memory["token_table_bytes"] is not None:
        lines.append(f"{'':10}token ids {size(memory['token_table_bytes'])} more for the token check")
    return lines


def input_table(report: Report) -> Table:
    rows = [
        [name, str(value["value"]), value["from"], value["source"]]
        for name, value in report["inputs"].items()
    ]
    return Table(columns=[Column("INPUT"), Column("VALUE"), Column("FROM"), Column("SOURCE")], rows=rows)


def unknown_lines(report: Report) -> list[str]:
    lines = []
    for unknown in report["launch"]["unknown_flags"]:
        close = f", close to {unknown['nearest']}" if unknown["nearest"] else ""
        lines.append(f"  not known: {unknown['flag']}{close}")
    return lines


def status_sentence(report: Report, failing: list[dict[str, Any]]) -> str:
    rows = [row["status"] for row in report["capacities"]]
    total = sum(finding["capacity"] is None for finding in report["findings"])
    total = len(rows) - total
    over, settings = rows.count("OVER"), rows.count("FAIL")
    if failing:
        parts = []
        if over or not settings:
            parts.append(f"{over} of {total} capacities {'is' if over == 1 else 'are'} exceeded")
        if settings:
            parts.append(f"{plural(settings, 'setting')} {'fails' if settings == 1 else 'fail'}")
        return f"{', '.join(parts)}: {'; '.join(item['text'] for item in failing)}"
    parts = [f"none of {plural(total, 'capacity', 'capacities')} is exceeded"]
    if report["pool"]["is_estimate"]:
        parts[0] += ", for an estimated pool"
    if report["workload"] is not None and report["workload"]["not_reached"]:
        rules = ", ".join(report["workload"]["not_reached"])
        parts.append(f"the flags allow more than this workload needs ({rules})")
    tight = rows.count("TIGHT")
    if tight:
        parts.append(f"{tight} {'is' if tight == 1 else 'are'} tight")
    parts += [finding["text"] for finding in report["findings"]]
    return "; ".join(parts)


def notes_of(
    report: Report, findings: list[dict[str, Any]], *, most_fixes: int | None
) -> list[tuple[str, str]]:
    found = []
    for finding in findings:
        if finding["server_message"] is None:
            found.append(("why", f"{finding['when']}: {finding['text']}"))
        else:
            found += [("why", finding["server_message"]), ("when", finding["when"])]
    texts = [fix["text"] for fix in report["fixes"][:most_fixes]]
    width = max((len(text) for text in texts), default=0)
    for number, fix in enumerate(report["fixes"][:most_fixes]):
        note = f"  ({fix['note']})" if fix["note"] else ""
        line = f"{fix['text']:{width}}{note}" if note else fix["text"]
        found.append(("fix" if number == 0 else "   or", line))
    return found
