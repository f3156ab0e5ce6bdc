"""The text of an inspection's report, made from its dict alone."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.report.frame import Report, Sections
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import WIDTH, count, name, names, percent, plural, wrap

MAX_QUIRKS = 20
MAX_LINES = 10


def render_inspect(report: Report, *, verbose: bool = False) -> Sections:
    """The text report; `verbose` does not cut the list of quirks and of skipped lines."""
    requests, trace = report["requests"], report["trace"]
    body: list[str | Table] = [_table(_request_rows(requests) if trace is None else _trace_rows(trace))]
    if report["quirks"]:
        body += ["", *_quirks(report["quirks"], None if verbose else MAX_QUIRKS)]
    if report["assumed"]:
        body += ["", "what will be assumed", _assumed(report["assumed"])]
    if report["coverage"]["bad_lines"]:
        body += ["", _bad_lines(report["coverage"], None if verbose else MAX_LINES)]
    return Sections(
        header=_header(report),
        body=body,
        status=_sentence(report),
        notes=[("next", hint) for hint in report["hints"]],
        verdict=_verdict(report),
    )


def _header(report: Report) -> list[tuple[str, str]]:
    format, pool = report["format"], report["pool"]
    by = "" if format["from"] == "content" else f", as {format['from']} says"
    rows = [("inspect", name(report["inputs"]["file"])), ("format", f"{format['title']}{by}")]
    if pool is not None:
        pages = f", {plural(pool['pages'], 'page')} of {pool['page_size']}" if pool["page_size"] > 1 else ""
        rows.append(("pool", f"{plural(pool['slots'], 'slot')}{pages}, groups: {names(pool['groups'])}"))
    return rows


def _table(rows: list[list[str]]) -> Table:
    return Table([Column("WHAT"), Column("FOUND")], rows, header=False)


def _request_rows(found: dict[str, Any]) -> list[list[str]]:
    if not found["requests"]:
        return [["requests", "0"]]
    span = found["span_seconds"]
    over = "the file has no times" if span is None else f"over {span:,.3f} s"
    rows = [
        ["requests", f"{count(found['requests'])}, {over}"],
        ["prompt", _lengths(found["prompt_tokens"], found["requests"])],
    ]
    if found["output_tokens"] is None:
        rows.append(["output", "the file has no output lengths"])
    else:
        rows.append(["output", _lengths(found["output_tokens"], found["requests"])])
        longest = found["request_tokens"]
        rows.append(
            [
                "longest",
                f"{plural(longest['most'], 'token')}, prompt and output of {name(longest['longest'])}:",
            ]
        )
        # its last token is sampled and never written
        rows.append(["", f"no pool below {plural(longest['most'] - 1, 'token')} can serve it"])
        if found["without_output"]:
            rows.append(["no output", plural(found["without_output"], "request")])
    rows += _arrival_rows(found)
    rows += _sharing_rows(found)
    return rows


def _lengths(lengths: dict[str, Any], requests: int) -> str:
    mean = lengths["total"] / requests if requests else 0
    return (
        f"{plural(lengths['total'], 'token')}, {count(lengths['least'])} to {count(lengths['most'])} a request, "
        f"{mean:,.1f} on average"
    )


def _arrival_rows(found: dict[str, Any]) -> list[list[str]]:
    rows = []
    second, once, bounds = (
        found[key] for key in ("arrivals_in_one_second", "arrivals_at_once", "outstanding_tokens")
    )
    if second is not None:
        rows.append(["arrivals", f"at most {count(second['most'])} within one second, from {_at(second)} on"])
        if once["most"] > 1:
            rows.append(["", f"at most {count(once['most'])} at the same time, {_at(once)}"])
    if bounds is not None:
        together = f"which arrive together at {bounds['at_least_at_s']:,.3f} s"
        rows.append(["outstanding", f"at least {plural(bounds['at_least'], 'token')}, {together}"])
        rows.append(
            ["", f"at most {plural(bounds['at_most'], 'token')}, if none ended before the last arrived"]
        )
    if found["waiting_for_another"]:
        number = found["waiting_for_another"]
        verb = "waits" if number == 1 else "wait"
        rows.append(["waiting", f"{plural(number, 'request')} {verb} for an earlier one to end:"])
        rows.append(["", "not counted in the rows above, but in the upper bound"])
    return rows


def _at(peak: dict[str, Any]) -> str:
    return f"{peak['at_s']:,.3f} s"


def _sharing_rows(found: dict[str, Any]) -> list[list[str]]:
    rows = []
    sessions, prefixes = found["sessions"], found["prefixes"]
    if sessions["sessions"]:
        text = f"{plural(sessions['sessions'], 'session')} of {plural(sessions['requests'], 'request')}"
        rows.append(["sessions", f"{text}, at most {count(sessions['most_turns'])} in one"])
    if found["with_token_ids"]:
        rows.append(["token ids", f"of {plural(found['with_token_ids'], 'prompt')}"])
    if prefixes is not None:
        share = percent(prefixes["reused_tokens"], prefixes["prompt_tokens"])
        of = f"{count(prefixes['references'])} ids of {count(prefixes['block_size'])} tokens"
        rows.append(["blocks", f"{of} in {plural(prefixes['requests'], 'prompt')}"])
        verb = "names a partial block" if prefixes["partial"] == 1 else "name partial blocks"
        parts = f"{count(prefixes['distinct'])} different; {count(prefixes['partial'])} {verb}"
        rows.append(["", f"{parts}, not reused"])
        rows.append(
            [
                "reuse",
                f"{share} of prompt tokens ({count(prefixes['reused_tokens'])}), if a cache never evicts:",
            ]
        )
        rows.append(
            [
                "",
                f"{plural(prefixes['reusing'], 'prompt')} {'begins' if prefixes['reusing'] == 1 else 'begin'} "
                "with whole blocks of an earlier one",
            ]
        )
    return rows


def _trace_rows(found: dict[str, Any]) -> list[list[str]]:
    rows = [
        *_counts("forwards", found["forwards"], found["forwards_by_mode"]),
        ["requests", count(found["requests"])],
        *_counts("events", found["events"], found["events_by_kind"]),
        ["span", _span(found["first_t"], found["last_t"])],
    ]
    for key, label in (
        ("most_lanes", "lanes"),
        ("most_written_tokens", "written"),
        ("most_prefix_tokens", "prefix"),
    ):
        what = {"lanes": "lane", "written": "token", "prefix": "prefix token"}[label]
        peak = found[key]
        if peak["line"] is not None:
            rows.append(
                [label, f"at most {plural(peak['value'], what)} in a forward, line {count(peak['line'])}"]
            )
    records = found["records"]
    rows.append(["records", "all kinds of events" if records is None else names(records, limit=len(records))])
    rows.append(["checks", " ".join(found["checks"])])
    rows += [["not possible", f"{row['check']}: {row['why']}"] for row in found["not_possible"]]
    return rows


def _counts(label: str, total: int, parts: dict[str, int]) -> list[list[str]]:
    """A total and what it is made of, on as many lines as it takes."""
    if not parts:
        return [[label, count(total)]]
    text = ", ".join(f"{part} {count(number)}" for part, number in parts.items())
    lines = wrap(f"{count(total)}: {text}", width=WIDTH - 16)
    return [[label if at == 0 else "", line] for at, line in enumerate(lines)]


def _span(first: float | None, last: float | None) -> str:
    if first is None or last is None:
        return "events have no times"
    return f"{last - first:,.3f} s, from {first:,.3f} to {last:,.3f}"


def _quirks(quirks: list[dict[str, Any]], limit: int | None) -> list[str | Table]:
    columns = [Column("ROWS", "right"), Column("FIRST LINE", "right"), Column("QUIRK")]
    cells = [
        [count(quirk["count"]), "-" if quirk["line"] is None else count(quirk["line"]), quirk["text"]]
        for quirk in quirks[:limit]
    ]
    lines: list[str | Table] = [Table(columns, cells)]
    if len(quirks) > len(cells):
        lines.append(f"  ... {plural(len(quirks) - len(cells), 'more quirk')} (-v, or --format json)")
    return lines


def _assumed(rows: list[dict[str, Any]]) -> Table:
    cells = [
        [row["what"], count(row["value"]) if isinstance(row["value"], int) else row["value"], row["from"]]
        for row in rows
    ]
    return Table([Column("WHAT"), Column("VALUE"), Column("FROM")], cells, header=False)


def _bad_lines(coverage: dict[str, Any], limit: int | None) -> str:
    shown = coverage["bad_line_numbers"][:limit]
    more = coverage["bad_lines"] - len(shown)
    lines = ", ".join(count(line) for line in shown) + (f", ... {count(more)} more" if more else "")
    return f"  skipped {plural(coverage['bad_lines'], 'line')}: {lines}"


def _sentence(report: Report) -> str:
    requests, coverage = report["requests"], report["coverage"]
    if coverage["bad_lines"]:
        what = plural(coverage["bad_lines"], "line")
        return f"{what} could not be used and are in no number above"
    if coverage["truncated"] is not None:
        return f"the file ends inside line {count(coverage['truncated'])}"
    part = " up to the limit" if coverage["limited"] else ""
    if requests is not None and requests["lacks"]:
        return f"every row{part} can be read; without {' and '.join(requests['lacks'])} it can't be served"
    quirks = f", {plural(len(report['quirks']), 'quirk')}" if report["quirks"] else ""
    return f"every {'row' if requests is not None else 'event'}{part} can be used{quirks}"


def _verdict(report: Report) -> dict[str, object]:
    requests, trace, coverage = report["requests"], report["trace"], report["coverage"]
    verdict: dict[str, object] = {"format": report["format"]["name"]}
    if trace is not None:
        verdict |= {key: trace[key] for key in ("requests", "forwards", "events")}
    else:
        output, longest = requests["output_tokens"], requests["request_tokens"]
        verdict |= {
            "requests": requests["requests"],
            "prompt_tokens": requests["prompt_tokens"]["total"],
            "output_tokens": None if output is None else output["total"],
            "longest": None if longest is None else longest["most"],
        }
    verdict |= {"quirks": len(report["quirks"]), "bad_lines": coverage["bad_lines"]}
    if coverage["limited"]:
        verdict["limited"] = f"requests:{coverage['limited']['requests']}"
    return verdict
