"""Corrupted slots as a table, and the pool as a map of four rows: text made from the report's dict alone."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.report.frame import Report
from kvcanary_cli.report.replay_text import MAX_ROWS, latency_text
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, plural, ranges, to_ranges, window, wrap

LETTERS = (
    (("verify_token", "write_token"), "t"),
    (("position", "write_position"), "p"),
    (("chain_hash",), "c"),
    (("real_kv_hash",), "b"),
)
OUT_OF_RANGE = "slot_out_of_range"


def slots_table(report: Report, *, show_all: bool, shadows: bool) -> list[str | Table]:
    """Slots that failed; neighbours with the same story are one row unless all are asked for."""
    has_window = len(report["pool"]["groups"]) > 1
    rows = [row for incident in report["incidents"] for row in _rows(incident, show_all, shadows)]
    if not rows:
        return ["no slot failed a check"]
    columns = [
        Column("SLOT", "right"),
        Column("PAGE", "right"),
        Column("KIND"),
        Column("HELD BY"),
        Column("POS", "right"),
        Column("WRITER"),
        Column("DAMAGED", "right"),
        Column("SEEN", "right"),
        Column("LATENCY", "right"),
        Column("BITS"),
    ]
    if has_window:
        columns.insert(1, Column("GROUP"))
    shown = rows if show_all else rows[:MAX_ROWS]
    cells_shown = [[slots, *([group] if has_window else []), *rest] for (slots, group, *rest), _ in shown]
    out: list[str | Table] = [Table(columns, cells_shown, indent=0)]
    if len(shown) < len(rows):
        left = sum(size for _, size in rows[len(shown) :])
        out.append(
            f"... {count(len(rows) - len(shown))} more rows, {count(left)} slots (--all, or --format json)"
        )
    legend = "b real_kv_hash; - means it agreed." + _shadow_note(report, shadows)
    if any(cells[-1].endswith("x") for cells in cells_shown):
        legend = "x slot out of range, " + legend
    return [*out, "", "BITS of the first failed check: t token, p position, c chain_hash,", *wrap(legend)]


def _shadow_note(report: Report, shadows: bool) -> str:
    number = report["summary"]["shadows"]
    if not number or shadows:
        return ""
    return f" {plural(number, 'shadow slot')} {'is' if number == 1 else 'are'} not listed (--shadows)."


def _rows(incident: dict[str, Any], show_all: bool, shadows: bool) -> list[tuple[list[str], int]]:
    """(cells, slots) of each run of neighbours with the same story."""
    runs: list[list[dict[str, Any]]] = []
    for story in sorted(incident["slot_stories"], key=lambda s: (s["group"], s["slot"])):
        if story["is_shadow"] and not shadows:
            continue
        previous = runs[-1][-1] if runs else None
        if previous is not None and not show_all and _same_story(previous, story):
            runs[-1].append(story)
        else:
            runs.append([story])
    return [(_cells(incident, run), len(run)) for run in runs] + _unseen(incident, show_all)


def _unseen(incident: dict[str, Any], show_all: bool) -> list[tuple[list[str], int]]:
    """Damaged slots at which no check ever failed: the ledger alone knows of them."""
    if not incident["is_damaged"]:
        return []
    failed = {s["slot"] for s in incident["slot_stories"] if s["group"] == incident["group"]}
    left = [
        slot for first, last in incident["slots"] for slot in range(first, last + 1) if slot not in failed
    ]
    page_size = incident["page_size"]
    runs = [[slot, slot] for slot in left] if show_all else to_ranges(left)
    return [
        (
            [
                ranges([run]),
                incident["group"],
                ranges(to_ranges([run[0] // page_size, run[1] // page_size])),
                incident["kind"],
                incident["held_by"][0]["rid"] if incident["held_by"] else "-",
                "-",
                _writer(incident),
                window(incident["damaged_step"]),
                "never",
                "-",
                "-" * len(LETTERS),
            ],
            run[1] - run[0] + 1,
        )
        for run in runs
    ]


def _writer(incident: dict[str, Any]) -> str:
    writer = incident["writer"]
    return (writer["rid"] or "-") if writer else "-"


def _same_story(a: dict[str, Any], b: dict[str, Any]) -> bool:
    same = ("held_by", "is_shadow", "page", "group")
    return (
        b["slot"] == a["slot"] + 1
        and b["position"] == a["position"] + 1
        and a["seen"]["bits"] == b["seen"]["bits"]
        and a["seen"]["step"] == b["seen"]["step"]
        and all(a[key] == b[key] for key in same)
    )


def _cells(incident: dict[str, Any], run: list[dict[str, Any]]) -> list[str]:
    first, last = run[0], run[-1]
    bits = set(first["seen"]["bits"])
    return [
        ranges([[first["slot"], last["slot"]]]),
        first["group"],
        str(first["page"]),
        incident["kind"] + (" (shadow)" if first["is_shadow"] else ""),
        first["held_by"][0] if first["held_by"] else "-",
        ranges([[first["position"], last["position"]]]),
        _writer(incident),
        window(incident["damaged_step"]),
        str(first["seen"]["step"]),
        latency_text(incident["latency_steps"]),
        "".join(letter if bits & set(names) else "-" for names, letter in LETTERS)
        + ("x" if OUT_OF_RANGE in bits else ""),
    ]


def heatmap_lines(heatmap: dict[str, Any]) -> list[str]:
    """The pool in four rows of 64 cells; the worst state in a cell wins."""
    lines = [f"pool map, {plural(heatmap['slots_per_cell'], 'slot')} per cell, whole run"]
    lines += [f"{row['first_slot']:>8,}  {row['cells']}" for row in heatmap["rows"]]
    lines.append("  1-9 damaged slots in the cell, # ten or more   o used, all checks agreed")
    lines.append("  ? used, never checked   . never used")
    return lines
