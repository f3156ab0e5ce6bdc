"""Findings of a replay that are no incidents: capacities that a step exceeds, digests that changed."""

from __future__ import annotations

from typing import Any, Literal

from kvcanary_cli.report.frame import Report
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, plural

RIGHT: Literal["right"] = "right"


def capacity_table(report: Report, most: int) -> list[str | Table]:
    """Forwards that ask for more than the server has room for; the first `most` of them."""
    found, total = report["capacity_violations"], report["summary"]["capacity_violations"]
    if not found:
        return []
    # the log that fills up belongs to the whole run, not to a batch
    rows = [
        [
            item["kind"],
            count(item["step"]),
            count(item["batch"]) if item["batch"] else "-",
            count(item["tokens"]) if item["batch"] else "-",
            item["capacity"] + (f" ({item['group']})" if item["group"] else ""),
            count(item["need"]),
            count(item["limit"]),
        ]
        for item in found[:most]
    ]
    columns = [
        Column("KIND"),
        Column("STEP", RIGHT),
        Column("BATCH", RIGHT),
        Column("TOKENS", RIGHT),
        Column("CAPACITY"),
        Column("NEED", RIGHT),
        Column("LIMIT", RIGHT),
    ]
    more = [f"  ... {count(total - len(rows))} more (--format json)"] if total > len(rows) else []
    flags = {item["capacity"]: item["flag"] for item in found}
    set_by = [f"  {capacity} is set by {flag}" for capacity, flag in flags.items()]
    return [plural(total, "capacity violation"), "", Table(columns, rows), *more, *set_by, ""]


def digest_table(found: list[dict[str, Any]], most: int) -> list[str | Table]:
    """Slots whose bytes in the real pool changed although nothing wrote them; the first `most` of them."""
    if not found:
        return []
    columns = [Column("SLOT", RIGHT), Column("SOURCE"), Column("LAST GOOD", RIGHT), Column("SEEN", RIGHT)]
    rows = [[str(i["slot"]), i["source"], count(i["since_step"]), count(i["step"])] for i in found[:most]]
    headline = f"{plural(len(found), 'digest')} of the real pool changed without a write"
    return [headline, "", Table(columns, rows), ""]
