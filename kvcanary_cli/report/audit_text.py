"""The text of an audit's report, made from its dict alone."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.report.again import shell_word
from kvcanary_cli.report.frame import Annotation, Report, Sections
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import WIDTH, count, name, names, plural, ranges, to_ranges, wrap

MAX_ROWS = 50
MAX_NAMES = 3
LETTERS = (
    ("slot_out_of_range", "x"),
    ("verify_token", "t"),
    ("position", "p"),
    ("chain_hash", "c"),
    ("real_kv_hash", "b"),
)


def render_audit(report: Report, *, show_all: bool = False, verbose: bool = False) -> Sections:
    """The text report; `show_all` cuts no table, `verbose` adds the table of violations."""
    most = None if show_all else MAX_ROWS
    body: list[str | Table] = [*_coverage(report)]
    body += _lengths(report["lengths"], most)
    body += _incidents(report, most)
    body += _mixed(report["mixed_prefixes"], most)
    if verbose and report["violations"]:
        body += _violations(report, most)
    return Sections(
        header=_header(report),
        body=body,
        status=_status(report),
        notes=_notes(report, verbose),
        verdict=_verdict(report),
        annotations=_annotations(report),
    )


def _header(report: Report) -> list[tuple[str, str]]:
    pool, backend = report["pool"], report["backend"]
    reason = f" ({backend['reason']})" if backend["reason"] else ""
    about = "".join(f", {key} {value}" for key, value in report["about"].items())
    shape = plural(pool["slots"], "slot")
    if pool["page_size"] > 1:
        shape += f", {plural(pool['pages'], 'page')} of {pool['page_size']}"
    return [
        ("audit", f"{report['inputs']['dump']}{about}"),
        ("pool", f"{shape}, groups: {' '.join(pool['groups']) or '-'}"),
        ("backend", f"{backend['name']} on {backend['device']}{reason}"),
    ]


def _coverage(report: Report) -> list[str]:
    coverage = report["coverage"]
    lines = [f"  rows       {coverage['rows']:>13,} hold a request"]
    if coverage["cached_entries"] is not None:
        lines.append(f"  cache      {coverage['cached_entries']:>13,} entries")
    checks = [
        c for c in coverage["checks"] if c in ("chain_hash", "position", "real_kv_hash", "verify_token")
    ]
    for group in coverage["groups"]:
        what = f"{plural(group['claims'], 'position')} of group {group['group']}"
        lines.append(f"  slots      {group['slots_held']:>13,} at {what}")
    if checks:
        first = f"  entries    {coverage['entries']:>13,} verified: "
        lines += wrap(" ".join(checks), first=first, indent=" " * 27)
    for group in coverage["groups"]:
        if group["launches"]:
            words = " ".join(launch["launch"] for launch in group["launches"])
            lines += wrap(words, first="  stamps                   ")
    lines += _log(report["server_log"])
    for gap in coverage["not_checked"]:
        lines += wrap(f"{gap['check']}: {gap['why']}", first="  not checked              ")
    for gap in coverage["missing"]:
        lines += wrap(f"{gap['check']}: {gap['why']}", first="  missing                  ")
    if coverage["not_judged"]:
        left = plural(coverage["not_judged"], "failed entry", "failed entries")
        lines += wrap(f"{left} not looked at one by one", first="  not judged               ")
    for note in report["notes"]:
        lines += wrap(note, first="  note                     ")
    if report["summary"]["unmapped_positions"]:
        given_up = plural(report["summary"]["unmapped_positions"], "position")
        lines += wrap(
            f"{given_up} of rows inside the window without a slot of it", first="  WARN                     "
        )
    return lines


def _log(log: dict[str, Any] | None) -> list[str]:
    if log is None:
        return []
    text = "violations in the server's log"
    if log["violations"]:
        text += f", {count(log['confirmed'])} of {count(log['kept'])} kept rows fail the same check here"
    return wrap(text, first=f"  server     {log['violations']:>13,} ", indent=" " * 27)


def _lengths(rows: list[dict[str, Any]], most: int | None) -> list[str | Table]:
    if not rows:
        return []
    cells = [[str(r["row"]), r["rid"] or "-", count(r["length"]), count(r["width"])] for r in rows[:most]]
    columns = [Column("ROW", "right"), Column("REQUEST"), Column("LENGTH", "right"), Column("WIDTH", "right")]
    head = f"{plural(len(rows), 'row')} with a length that can't be"
    return ["", head, "", Table(columns, cells, indent=1), *_more(len(rows), most, "row")]


def _incidents(report: Report, most: int | None) -> list[str | Table]:
    incidents, summary = report["incidents"], report["summary"]
    if not incidents:
        return []
    head = f"{plural(len(incidents), 'incident')}, {plural(summary['slots'], 'slot')} damaged"
    if report["coverage"]["not_judged"]:
        head += " at least"
    if summary["shadows"]:
        head += f", {plural(summary['shadows'], 'shadow')}"
    columns = [
        Column("#", "right"),
        Column("KIND"),
        Column("SLOTS"),
        Column("PAGES"),
        Column("HELD BY"),
        Column("POS"),
        Column("BITS"),
    ]
    several = len(report["pool"]["groups"]) > 1
    cells = [
        [
            str(incident["id"]),
            incident["kind"] + (f" ({incident['group']})" if several else ""),
            ranges(incident["slots"], limit=MAX_NAMES),
            ranges(incident["pages"], limit=MAX_NAMES),
            holders(incident["held_by"]),
            ranges([incident["positions"]]),
            bits(incident["bits"]),
        ]
        for incident in incidents[:most]
    ]
    detail: list[str | None] = [
        "\n".join(wrap(story(incident), first="     ", width=WIDTH - 1)) for incident in incidents[:most]
    ]
    legend = "BITS: t token, p position, c chain_hash, b real_kv_hash, x slot out of range"
    table = Table(columns, cells, detail, indent=1)
    return ["", head, "", table, *_more(len(incidents), most, "incident"), "", legend]


def _mixed(rows: list[dict[str, Any]], most: int | None) -> list[str | Table]:
    if not rows:
        return []
    cells = [
        [
            row["group"],
            str(row["slot"]),
            "; ".join(f"{holders([h])} at {h['position']}" for h in row["holders"]),
        ]
        for row in rows[:most]
    ]
    head = f"WARN {plural(len(rows), 'slot')} held behind several slots, all of which verify"
    columns = [Column("GROUP"), Column("SLOT", "right"), Column("HELD BY")]
    return ["", head, "", Table(columns, cells, indent=1), *_more(len(rows), most, "slot")]


def _violations(report: Report, most: int | None) -> list[str | Table]:
    rows = report["violations"]
    columns = [
        Column("LAUNCH"),
        Column("SLOT", "right"),
        Column("PAGE", "right"),
        Column("ROW", "right"),
        Column("POS", "right"),
        Column("BITS"),
        Column("WORD"),
        Column("STORED", "right"),
        Column("EXPECTED", "right"),
    ]
    cells = [_violation(row) for row in rows[:most]]
    more = report["summary"]["violations"] - len(cells)
    tail = [f"  ... {plural(more, 'more violation')} (--all, or --format json)"] if more > 0 else []
    return ["", Table(columns, cells, indent=1), *tail]


def _violation(row: dict[str, Any]) -> list[str]:
    """One violation, with the first word that differs."""
    words = {
        "verify_token": "token",
        "position": "position",
        "chain_hash": "prev_hash",
        "real_kv_hash": "kv_hash",
    }
    word = next((words[bit] for bit in row["bits"] if bit in words), "slot")
    held = "-" if row["row"] is None else str(row["row"])
    stored, expected = row["stored"].get(word), row["expected"].get(word)
    return [
        row["launch"],
        str(row["slot"]),
        str(row["page"]),
        held,
        str(row["position"]),
        bits(row["bits"]),
        word,
        "-" if stored is None else str(stored),
        "-" if expected is None else str(expected),
    ]


def _more(total: int, most: int | None, noun: str) -> list[str]:
    if most is None or total <= most:
        return []
    return [f"  ... {plural(total - most, 'more ' + noun)} (--all, or --format json)"]


def bits(found: list[str]) -> str:
    """Failed checks as letters: `tpc-`; `-` where no check failed on the slot itself."""
    letters = "".join(letter for bit, letter in LETTERS if bit in found)
    return letters or "-"


def holders(found: list[dict[str, Any]]) -> str:
    """`row 5 (req-9)`, `cache`; past three, how many more there are."""
    words = [_holder(one) for one in found[:MAX_NAMES]]
    if len(found) > MAX_NAMES:
        words.append(f"{len(found) - MAX_NAMES:,} more")
    return ", ".join(words) or "-"


def _holder(one: dict[str, Any]) -> str:
    if one["cache"]:
        return "cache"
    return f"row {one['row']}" + (f" ({name(one['rid'])})" if one["rid"] is not None else "")


def story(incident: dict[str, Any]) -> str:
    """What is wrong in one sentence, and what the stamp says about who wrote it."""
    parts = [_SENTENCES[incident["kind"]], *_written_by(incident)]
    if incident["held_rightly_by"]:
        what = "it" if incident["num_slots"] == 1 else "them"
        parts.append(f"{holders(incident['held_rightly_by'])} holds {what} rightly")
    if incident["evidence"] and incident["kind"] == "changed-stamp":
        parts.append(incident["evidence"])
    if incident["shadows"]:
        parts.append(
            f"the chain breaks at slot {ranges(incident['shadows'], limit=MAX_NAMES)}, which is good"
        )
    return "; ".join(parts)


_SENTENCES = {
    "shared-slot": "the table names a slot of another chain",
    "foreign-stamp": "another chain wrote here",
    "misplaced-slot": "the slot belongs to another position of this chain",
    "former-stamp": "the stamp is of a chain that nobody holds",
    "changed-stamp": "the stamp fits no chain: it was changed where it lies",
    "unwritten-slot": "the slot was never written",
    "changed-bytes": "the KV bytes and their hash don't agree, the stamp is in order",
    "wrong-token": "the stamp holds another token than the request has",
    "slot-outside-pool": "the table names a slot that the pool doesn't have",
    "padding-slot": "the table names the padding slot",
}


_OTHERS = ("shared-slot", "foreign-stamp", "misplaced-slot", "former-stamp")
"""Kinds whose stamps are of another place."""


def _written_by(incident: dict[str, Any]) -> list[str]:
    """What the stamps say about who wrote them."""
    stamp, positions = incident["stamp"], incident["stamped_positions"]
    if incident["kind"] not in _OTHERS or stamp is None or not positions:
        return []
    is_one = incident["num_slots"] == 1
    subject = "this slot holds" if is_one else "these slots hold"
    where = f"{'position' if is_one else 'positions'} {ranges(positions, limit=MAX_NAMES)}"
    if stamp["chain_of"]:
        return [f"{subject} {where} of the chain of {holders(stamp['chain_of'])}"]
    since = stamp["since_position"]
    back = f"as far back as position {since}" if since else "from its head on"
    return [f"{subject} {where} of it, and its stamps are there {back}"]


def _status(report: Report) -> str:
    coverage, summary = report["coverage"], report["summary"]
    if report["status"] == "fail" and summary["incidents"]:
        if summary["rows"]:
            readers = names(summary["rids"])
            if not summary["rids"]:
                word = "row" if len(summary["rows"]) == 1 else "rows"
                readers = f"{word} {ranges(to_ranges(summary['rows']), limit=8)}"
            what = plural(len(summary["rows"]), "request")
            holds = "holds" if len(summary["rows"]) == 1 else "hold"
            return f"{what} {holds} damaged slots; what they produce is suspect: {readers}"
        if summary["slots"]:
            return "damaged slots were found in the prefix cache; no row holds them"
        return "the page table says what can't be"
    if report["status"] == "fail":
        return "in order apart from the warnings, which --strict treats as findings"
    if report["status"] == "incomplete":
        return "no fault found in what was checked; see `missing` for what was not"
    if coverage["not_checked"] or report["warnings"]:
        return "no fault found in what was checked; see " + (
            "`not checked`" if coverage["not_checked"] else "WARN"
        )
    return "clean: everything in the dump was checked, nothing failed"


def _notes(report: Report, verbose: bool) -> list[tuple[str, str]]:
    if report["status"] != "fail" or not report["incidents"]:
        return []
    notes = []
    if not verbose and report["violations"]:
        notes.append(("next", f"kvcanary audit {shell_word(report['inputs']['dump'])} -v"))
    found = {bit for incident in report["incidents"] for bit in incident["bits"]}
    for bit, _ in LETTERS:
        if bit in found:
            notes.append(("next", f"kvcanary explain {bit}"))
            break
    return notes


def _verdict(report: Report) -> dict[str, object]:
    coverage, summary = report["coverage"], report["summary"]
    keys: dict[str, object] = {
        "incidents": summary["incidents"],
        "slots": summary["slots"],
        "rows": coverage["rows"],
        "checked": coverage["entries"],
    }
    if report["warnings"]:
        keys["warnings"] = report["warnings"]
    if coverage["not_checked"]:
        keys["unchecked"] = [gap["check"] for gap in coverage["not_checked"]]
    if coverage["missing"]:
        keys["missing"] = [gap["check"] for gap in coverage["missing"]]
    return keys


def _annotations(report: Report) -> list[Annotation]:
    found = [
        Annotation(
            level="error",
            title=f"kvcanary audit: {incident['kind']}",
            message=f"slots {ranges(incident['slots'], limit=MAX_NAMES)} of {holders(incident['held_by'])}, "
            f"position {ranges([incident['positions']])}: {story(incident)}",
        )
        for incident in report["incidents"][:10]
    ]
    return found + [
        Annotation(
            level="error",
            title="kvcanary audit: length",
            message=f"row {row['row']} has length {count(row['length'])}, the table has {count(row['width'])} columns",
        )
        for row in report["lengths"][:10]
    ]
