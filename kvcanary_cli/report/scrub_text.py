"""The text of a scrub's report, made from its dict alone."""

from __future__ import annotations

import shlex
from typing import Any

from kvcanary_cli.report.frame import Annotation, Report, Sections
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, names, percent, plural, ranges, size

MAX_ROWS = 50
MAX_GROUPS = 5
MAX_TENSORS = 3  # names in a cell
MAX_PAIRS = 4  # ranges in a line


def render_scrub(report: Report, *, verbose: bool = False) -> Sections:
    """The text report; `verbose` lists every tensor and does not cut tables."""
    summary, coverage, changed = report["summary"], report["coverage"], report["changed"]
    body: list[str | Table] = [_facts(report)]
    if report["values"] is not None:
        body += ["", *_values(report)]
    if changed is not None:
        body += ["", *_changes(changed, None if verbose else MAX_ROWS)]
    if verbose:
        body += ["", _tensors(report["tensors"])]
    verdict = {
        "slots": coverage["slots"],
        "bytes": coverage["bytes"],
        "zero": summary["zero_slots"],
        "duplicates": summary["duplicate_slots"],
        "changed": None if changed is None else changed["slots"],
        "unexpected": None if changed is None else changed["unexpected_slots"],
        "digest": summary["digest"],
    }
    if report["warnings"]:
        verdict["warnings"] = report["warnings"]
    return Sections(
        header=_header(report),
        body=body,
        status=_sentence(report),
        notes=_notes(report),
        verdict=verdict,
        annotations=_annotations(changed),
    )


def _header(report: Report) -> list[tuple[str, str]]:
    pool, backend, memory = report["pool"], report["backend"], report["memory"]
    coverage = report["coverage"]
    pages = f", {plural(pool['pages'], 'page')} of {pool['page_size']}" if pool["page_size"] > 1 else ""
    reason = f" ({backend['reason']})" if backend["reason"] else ""
    taken = f"{size(memory['host_bytes'])} on the host"
    if memory["device_bytes"]:
        taken += f", {size(memory['device_bytes'])} on {backend['device']}"
    rows = [("scrub", f"{report['inputs']['file']}, {size(coverage['file_bytes'])}")]
    if report["against"] is not None:
        against = report["against"]
        kind = "saved hashes" if against["kind"] == "hashes" else "a dump"
        rows.append(("against", f"{against['path']}, {kind}"))
    return [
        *rows,
        ("pool", f"{plural(pool['slots'], 'slot')}{pages}, {plural(pool['tensors'], 'tensor')}"),
        ("backend", f"{backend['name']} on {backend['device']}{reason}"),
        ("memory", taken),
    ]


def _facts(report: Report) -> Table:
    coverage, summary = report["coverage"], report["summary"]
    padded = coverage["padding_bytes"]
    rows = [
        ["hashed", f"{plural(coverage['slots'], 'slot')}, {count(coverage['bytes'])} bytes"],
        ["speed", _speed(report["timing"])],
        ["digest", summary["digest"]],
        ["zero", _listed(summary["zero_slots"], report["zero"])],
        ["copies", _copies(report)],
    ]
    if padded:
        rows.insert(1, ["padding", f"{count(padded)} zero bytes after rows that are no multiple of 16"])
    left_out = coverage["tensors_left_out"]
    if left_out:
        reasons = sorted({row["reason"] for row in left_out})
        for reason in reasons:
            named = [row["name"] for row in left_out if row["reason"] == reason]
            rows.append(["left out", f"{names(named, limit=MAX_TENSORS)}: {reason}"])
    if report["saved"] is not None:
        rows.append(["saved", f"{report['saved']['path']}, {size(report['saved']['bytes'])}"])
    return Table([Column("WHAT"), Column("FOUND")], rows, header=False)


def _speed(timing: dict[str, Any]) -> str:
    def rate(part: str) -> str:
        value = timing[f"{part}_gb_per_second"]
        return "-" if value is None else f"{value:,.2f} GB/s"

    parts = ["read", *(["copy"] if timing["copy_seconds"] is not None else []), "kernel"]
    details = ", ".join(f"{part} {rate(part)}" for part in parts)
    return f"{rate('end_to_end')} end to end in {timing['hash_seconds']:,.3f} s ({details})"


def _listed(number: int, pairs: list[list[int]]) -> str:
    if not number:
        return "no slot is zero in every tensor"
    return f"{plural(number, 'slot')}: {ranges(pairs, limit=MAX_PAIRS)}"


def _copies(report: Report) -> str:
    summary = report["summary"]
    if not summary["duplicate_slots"]:
        return "no two slots have the same content, zeros apart"
    groups = report["duplicates"][:MAX_GROUPS]
    shown = "; ".join(ranges(group, limit=MAX_PAIRS) for group in groups)
    more = summary["duplicate_groups"] - len(groups)
    return (
        f"{plural(summary['duplicate_slots'], 'slot')} with {plural(summary['duplicate_groups'], 'content')}: "
        + shown
        + (f"; ... {count(more)} more" if more else "")
    )


def _values(report: Report) -> list[str | Table]:
    found = [row for row in report["values"] if row["nan"] or row["inf"]]
    unchecked = report["coverage"]["values_not_checked"]
    lines: list[str | Table] = []
    if found:
        columns = [Column("TENSOR"), Column("NAN", "right"), Column("INF", "right"), Column("SLOTS")]
        cells = [
            [row["name"], count(row["nan"]), count(row["inf"]), ranges(row["slots"], limit=MAX_PAIRS)]
            for row in found[:MAX_ROWS]
        ]
        lines.append(Table(columns, cells))
        if len(found) > MAX_ROWS:
            lines.append(f"  ... {plural(len(found) - MAX_ROWS, 'more tensor')} (--format json)")
    else:
        lines.append(f"  no NaN and no infinity in {plural(len(report['values']), 'tensor')}")
    if unchecked:
        lines.append(f"  not checked: {names(unchecked, limit=MAX_TENSORS)} (no floats that have them)")
    return lines


def _changes(changed: dict[str, Any], limit: int | None) -> list[str | Table]:
    lines: list[str | Table] = []
    if changed["written_but_unchanged_slots"]:
        lines.append(f"  {plural(changed['written_but_unchanged_slots'], 'written slot')} did not change")
    if not changed["slots"]:
        return [*lines, "  no slot changed"]
    shown = changed["ranges"][:limit]
    columns = [Column("SLOTS", "right"), Column("PAGES"), Column("CHANGE"), Column("TENSORS")]
    cells = [
        [
            ranges([row["slots"]]),
            ranges([row["pages"]]),
            "written" if row["allowed"] else "unexpected",
            f"{len(row['tensors'])}: {names(row['tensors'], limit=MAX_TENSORS)}",
        ]
        for row in shown
    ]
    lines.append(Table(columns, cells))
    more = changed["num_ranges"] - len(shown)
    if more:
        lines.append(
            f"  ... {plural(more, 'more row')} of {plural(changed['slots'], 'slot')} (-v, or --format json)"
        )
    by_tensor = [[row["name"], count(row["slots"])] for row in changed["tensors"]]
    lines += ["", Table([Column("TENSOR"), Column("CHANGED", "right")], by_tensor[:limit])]
    if limit is not None and len(by_tensor) > limit:
        lines.append(f"  ... {plural(len(by_tensor) - limit, 'more tensor')} (-v, or --format json)")
    return lines


def _tensors(rows: list[dict[str, Any]]) -> Table:
    columns = [Column("TENSOR"), Column("TYPE"), Column("SHAPE"), Column("BYTES A SLOT", "right")]
    cells = [[row["name"], row["dtype"], str(row["shape"]), count(row["row_bytes"])] for row in rows]
    return Table(columns, cells)


def _sentence(report: Report) -> str:
    changed, coverage = report["changed"], report["coverage"]
    warned = ""
    if report["warnings"]:
        warned = f"; {plural(report['warnings'], 'tensor')} with NaN or infinity"
    if changed is None:
        return f"{plural(coverage['slots'], 'slot')} hashed, compared with nothing{warned}"
    compared = plural(coverage["compared_slots"], "slot")
    share = percent(coverage["compared_slots"], coverage["slots"])
    part = "" if coverage["compared_slots"] == coverage["slots"] else f" ({share} of the pool)"
    if changed["unexpected_slots"]:
        number = changed["unexpected_slots"]
        return f"{count(number)} of {compared}{part} changed and were not allowed to{warned}"
    if changed["slots"]:
        return f"{compared}{part} compared: {count(changed['slots'])} changed, all of them allowed to{warned}"
    return f"{compared}{part} compared, none changed{warned}"


def _notes(report: Report) -> list[tuple[str, str]]:
    changed = report["changed"]
    if changed is None or not changed["unexpected_slots"]:
        return []
    first = next(row for row in changed["ranges"] if not row["allowed"])
    inputs = report["inputs"]
    words = ["kvcanary", "scrub", inputs["file"], "--against", inputs["against"]]
    for glob in inputs["tensors"]:
        words += ["--tensors", glob]
    if inputs["page_size"] > 1:
        words += ["--page-size", str(inputs["page_size"]), *(["--flat"] if inputs["flat"] else [])]
    words += ["--only-slots", ranges([first["slots"]]), "-v"]
    return [("next", " ".join(shlex.quote(word) for word in words))]


def _annotations(changed: dict[str, Any] | None) -> list[Annotation]:
    if changed is None:
        return []
    return [
        Annotation(
            level="error",
            title=f"kvcanary scrub: slots {ranges([row['slots']])}",
            message=f"changed in {names(row['tensors'], limit=MAX_TENSORS)} and were not allowed to",
        )
        for row in [row for row in changed["ranges"] if not row["allowed"]][:10]
    ]
