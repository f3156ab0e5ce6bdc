"""The text of an event stream's report, made from its dict alone."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.kinds import STREAM_KINDS
from kvcanary_cli.report.frame import Annotation, Report, Sections
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, name, names, plural, wrap

MOST_ROWS = 50
MOST_GAPS = 10


def render_event_audit(report: Report, *, show_all: bool = False, verbose: bool = False) -> Sections:
    """The text report."""
    body: list[str | Table] = [
        *_coverage_lines(report, verbose=verbose),
        "",
        residency_table(report["ranks"]),
    ]
    if report["incidents"]:
        body += ["", *_incidents(report, None if show_all else MOST_ROWS)]
    return Sections(
        header=_header(report),
        body=body,
        status=_status(report),
        notes=[*_why(report), *[("next", hint) for hint in report["hints"]]],
        verdict=_verdict(report),
        annotations=_annotations(report),
    )


def _header(report: Report) -> list[tuple[str, str]]:
    coverage = report["coverage"]
    files = report["inputs"]["trace"]["paths"]
    what = (
        f"{name(files[0])}"
        if len(files) == 1
        else f"{plural(len(files), 'file')}, one stream: {names(files)}"
    )
    rows = [
        (
            "replay",
            f"{what}, KV event stream: {plural(coverage['batches'], 'batch', 'batches')}, "
            f"{plural(coverage['events'], 'event')}",
        )
    ]
    if report["pool"] is not None:
        rows.append(("pool", plural(report["pool"]["tokens"], "token")))
    return rows


def _coverage_lines(report: Report, *, verbose: bool) -> list[str | Table]:
    coverage = report["coverage"]
    rows = [["form", ", ".join(f"{form} {count(n)}" for form, n in report["format"]["forms"].items()) or "-"]]
    kinds = ", ".join(f"{kind} {count(number)}" for kind, number in coverage["events_by_kind"].items())
    rows.append(["events", kinds or "-"])
    again = f", {count(coverage['stored_again'])} of them again" if coverage["stored_again"] else ""
    rows.append(
        [
            "blocks",
            f"{count(coverage['stored_blocks'])} stored{again}, {count(coverage['removed_blocks'])} removed",
        ]
    )
    made = [f"{check} {count(number)}" for check, number in coverage["checks"].items()]
    rows += _labelled("checked", ", ".join(made) or "nothing")
    for gap in coverage["not_checked"]:
        rows += _labelled("not checked", f"{gap['check']}: {gap['why']}")
    rows += _missing_rows(coverage)
    if coverage["restarts"]:
        rows.append(["restarts", f"{count(coverage['restarts'])}: the cache began empty again"])
    if coverage["repeated_batches"]:
        rows.append(["repeated", f"{plural(coverage['repeated_batches'], 'batch', 'batches')}, used once"])
    for reason, number in coverage["passed"].items():
        rows += _labelled("let pass", f"{count(number)}: {reason}")
    if coverage["empty_stores"]:
        rows.append(["empty", plural(coverage["empty_stores"], "store") + " without a block"])
    if coverage["extra_items"]:
        rows.append(
            ["newer", f"{plural(coverage['extra_items'], 'item')} behind the last known field, not used"]
        )
    if coverage["unknown_keys"]:
        rows.append(["newer", "keys that are not known: " + names(list(coverage["unknown_keys"]))])
    return [Table([Column("WHAT"), Column("FOUND")], rows, header=False)]


def _labelled(label: str, text: str) -> list[list[str]]:
    return [[label if at == 0 else "", line] for at, line in enumerate(wrap(text, width=64))]


def _missing_rows(coverage: dict[str, Any]) -> list[list[str]]:
    """What makes the audit incomplete."""
    rows = []
    if coverage["lost_batches"]:
        rows.append(
            [
                "missing",
                f"{plural(coverage['lost_batches'], 'batch', 'batches')} in {plural(coverage['gap_count'], 'gap')} "
                f"(S09): {_gap_text(coverage)}",
            ]
        )
    if coverage["malformed"]:
        rows.append(
            ["missing", f"{plural(coverage['malformed'], 'frame')} that the recorder could not decode"]
        )
    if coverage["bad_lines"]:
        lines = names([row["line"] for row in coverage["bad_line_numbers"]])
        rows.append(["missing", f"{plural(coverage['bad_lines'], 'line')} skipped: {lines}"])
    if coverage["truncated"] is not None:
        rows.append(["missing", f"the file ends inside line {count(coverage['truncated']['line'])}"])
    if coverage["required_missing"]:
        rows.append(["missing", "required: " + names(coverage["required_missing"])])
    if coverage["unproven"]:
        codes = ", ".join(f"{code} {count(number)}" for code, number in coverage["unproven"].items())
        rows.append(["not judged", f"{codes}: lost or earlier batches may explain them"])
    return rows


def _gap_text(coverage: dict[str, Any]) -> str:
    shown = coverage["gaps"][:MOST_GAPS]
    parts = [
        str(gap["first"]) if gap["first"] == gap["last"] else f"{gap['first']}-{gap['last']}" for gap in shown
    ]
    more = coverage["gap_count"] - len(shown)
    return ", ".join(parts) + (f", ... {count(more)} more" if more else "")


def residency_table(ranks: list[dict[str, Any]]) -> Table:
    """What was resident, by rank, cache group and medium."""
    columns = [Column("RANK", "right"), Column("GROUP", "right"), Column("MEDIUM"), Column("BLOCK", "right")]
    columns += [Column("PEAK BLOCKS", "right"), Column("PEAK TOKENS", "right"), Column("LINE", "right")]
    columns += [Column("AT THE END", "right")]
    rows = [
        [
            rank_text(rank),
            _or_dash(place["group"]),
            place["medium"],
            _or_dash(place["block_size"]),
            count(place["peak_blocks"]),
            _or_dash(place["peak_tokens"]),
            count(place["peak_line"]) if place["peak_line"] else "-",
            count(place["end_blocks"]),
        ]
        for rank in ranks
        for place in rank["places"]
    ]
    return Table(columns, rows or [["-"] * len(columns)])


def rank_text(found: dict[str, Any]) -> str:
    """`0`, `-` for none, `3/0` with the worker in front."""
    rank = "-" if found["rank"] is None else str(found["rank"])
    return rank if found["worker"] is None else f"{found['worker']}/{rank}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else count(value)


def _incidents(report: Report, limit: int | None) -> list[str | Table]:
    found, total = report["incidents"], report["summary"]["incidents"]
    headline = f"{plural(total, 'incident')}, {plural(report['summary']['blocks'], 'block')}"
    columns = [Column("#", "right"), Column("KIND"), Column("RANK", "right"), Column("GROUP", "right")]
    columns += [Column("MEDIUM"), Column("HASH"), Column("BLOCKS", "right"), Column("LINE", "right")]
    rows = [
        [
            str(each["id"]),
            f"{each['kind']} {each['name']}",
            rank_text(each),
            _or_dash(each["group"]),
            each["medium"] or "-",
            each["hash"] or "-",
            count(each["blocks"]),
            count(each["line"]),
        ]
        for each in found[:limit]
    ]
    files = len(report["inputs"]["trace"]["paths"])
    detail: list[str | None] = [
        f"    {each['text']}" + (f" ({name(each['file'])})" if files > 1 else "") for each in found[:limit]
    ]
    lines: list[str | Table] = [headline, "", Table(columns, rows, detail=detail, indent=1)]
    if total > len(rows):
        lines.append(f"... {count(total - len(rows))} more incidents (--all, or --format json)")
    return lines


def _status(report: Report) -> str:
    coverage, summary = report["coverage"], report["summary"]
    if report["status"] == "fail":
        codes = ", ".join(f"{code} {STREAM_KINDS[code]}" for code in summary["by_code"])
        weak = any(incident["strength"] != "certain" for incident in report["incidents"])
        text = f"the events contradict each other or the pool: {codes}"
        return text + ("; strong, not certain: the file has no numbers" if weak else "")
    if report["status"] == "incomplete":
        return "no fault found in what was checked; see `missing` for what was not"
    if coverage["not_checked"]:
        return "no fault found in what was checked; see `not checked`"
    return "clean: everything that was asked was checked, nothing failed"


def _why(report: Report) -> list[tuple[str, str]]:
    if report["coverage"]["lost_batches"]:
        return [("why", "batches that a publisher drops, or a recorder misses, are gaps in its numbers")]
    return []


def _verdict(report: Report) -> dict[str, object]:
    """The keys of every replay first; a stream names no slots."""
    coverage, summary = report["coverage"], report["summary"]
    keys: dict[str, object] = {
        "incidents": summary["incidents"],
        "slots": None,
        "checked": coverage["events"],
        "skipped": coverage["malformed"] + coverage["bad_lines"],
    }
    if coverage["not_checked"]:
        keys["unchecked"] = [gap["check"] for gap in coverage["not_checked"]]
    if coverage["stopped"]:
        keys["stopped"] = coverage["stopped"]
    if coverage["bad_lines"]:
        keys["bad_lines"] = coverage["bad_lines"]
    if coverage["gap_count"]:
        keys["gaps"] = coverage["gap_count"]
    keys |= {"format": report["format"]["name"], "blocks": summary["blocks"], "ranks": summary["ranks"]}
    if coverage["lost_batches"]:
        keys["lost_batches"] = coverage["lost_batches"]
    return keys


def _annotations(report: Report) -> list[Annotation]:
    return [
        Annotation(
            level="error",
            title=f"{each['kind']} {each['name']}",
            message=f"{each['file']}:{each['line']}: rank {rank_text(each)}: {each['hash'] or ''} {each['text']}",
        )
        for each in report["incidents"][:MOST_ROWS]
    ]
