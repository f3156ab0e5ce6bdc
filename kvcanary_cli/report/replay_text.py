"""Text of a replay report, made from its dict alone."""

from __future__ import annotations

from typing import Any, Literal

from kvcanary_cli.kinds import KINDS, title
from kvcanary_cli.report.capacity_tables import capacity_table, digest_table
from kvcanary_cli.report.frame import Annotation, Report, Sections
from kvcanary_cli.report.request_file import request_file_lines
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import count, names, percent, plural, ranges, size, to_ranges, window, wrap

MAX_ROWS = 50  # rows of a table before the rest is a count; totals are always the true ones
RIGHT: Literal["right"] = "right"


def render_replay(report: Report, *, show_all: bool = False) -> Sections:
    """Text of a replay report; `show_all` prints every row of its tables."""
    most = len(report["incidents"]) if show_all else MAX_ROWS
    body: list[str | Table] = [*_coverage_lines(report), ""]
    body += capacity_table(report, MAX_ROWS)
    body += digest_table(report["digest_mismatches"], MAX_ROWS)
    body += incident_table(report, most)
    while body and body[-1] == "":
        body.pop()
    return Sections(
        header=header(report),
        body=body,
        status=_status(report),
        notes=_notes(report),
        verdict=verdict(report),
        annotations=_annotations(report),
    )


def header(report: Report) -> list[tuple[str, str]]:
    """What was replayed, in which pool, by what."""
    coverage, pool, backend = report["coverage"], report["pool"], report["backend"]
    trace = report["inputs"]["trace"]
    what = (
        f"{trace['path']}, {trace['format']}: {plural(coverage['steps'], 'step')}, "
        f"{plural(coverage['requests'], 'request')}, {plural(coverage['events'], 'event')}"
    )
    reason = f" ({backend['reason']})" if backend["reason"] else ""
    shape = f"{plural(pool['slots'], 'slot')}, {count(pool['pages'])} pages of {count(pool['page_size'])}, "
    lines = [
        ("replay", what),
        *request_file_lines(trace),
        ("pool", shape + f"groups: {' '.join(pool['groups'])}"),
        ("backend", f"{backend['name']} on {backend['device']}{reason}"),
    ]
    if report["inputs"]["chain"] != "mixed":
        lines.append(("chain", f"{report['inputs']['chain']}, whose hashes are not those of a server"))
    return lines


def _coverage_lines(report: Report) -> list[str]:
    c = report["coverage"]
    lines = [f"  steps      {c['steps']:>13,}{_steps_note(c)}", f"  stamps     {c['stamps']:>13,} written"]
    first = f"  entries    {c['entries']:>13,} of {count(c['entries_planned'])} verified: "
    lines += wrap(" ".join(_check_words(c)), first=first, indent=" " * 27)
    lines += _server_lines(report)
    if c["sweeps"]:
        lines.append(f"  sweeps     {c['sweeps']:>13,}{_sweeps_note(c, report['inputs']['sweep_interval'])}")
    breaches = plural(report["summary"]["breaches"], "breach", "breaches")
    lines.append(f"  ledger     {c['ledger']['events']:>13,} events followed, {breaches}")
    for gap in c["not_checked"]:
        lines.append(f"  not checked             {gap['check']}: {gap['why']}")
    for what in c["ledger"]["not_judged"]:
        lines += wrap(f"ledger: {what}", first="  not judged              ")
    for source in c["sources"]:
        if source["hashed_bytes"] == 0:
            lines.append(f"  not covered             source {source['name']}: none of its bytes are hashed")
    for text in c["incomplete"]:
        lines += wrap(text, first="  missing    ", indent=" " * 13)
    if c["bad_lines"]:
        shown = ranges([[line, line] for line in c["bad_lines"]], limit=8)
        lines.append(f"  bad lines  {len(c['bad_lines']):>13,} skipped (--skip-bad-lines): {shown}")
    return lines


def _server_lines(report: Report) -> list[str]:
    """What the server's own check would not have looked at (C4)."""
    blind = [found for found in report["capacity_violations"] if found["capacity"] == "verify_capacity"]
    if not blind:
        return []
    planned = report["coverage"]["entries_planned"]
    seen = report["coverage"]["server_entries"]
    worst = max(blind, key=lambda found: found["need"])
    steps = ranges(to_ranges(report["coverage"]["server_skipped_steps"]), limit=4)
    return [
        f"  server     {seen:>13,} of these entries ({percent(seen, planned)}): it skips steps {steps} whole",
        f"             C4 verify-blackout: up to {count(worst['need'])} entries asked, "
        f"capacity {count(worst['limit'])}",
    ]


def _sweeps_note(coverage: dict[str, Any], interval: int) -> str:
    asked, own = coverage["sweeps_in_trace"], coverage["sweeps"] - coverage["sweeps_in_trace"]
    if not own:
        return ", where the trace asks for one"
    return f", every {plural(interval, 'step')}" + (
        f", and {count(asked)} that the trace asks for" if asked else ""
    )


def _steps_note(coverage: dict[str, Any]) -> str:
    if coverage["limited"]:
        key, value = next(iter(coverage["limited"].items()))
        return f", limited to {count(value)} {key}"
    if coverage["stopped"] == "violation":
        return ", stopped at the first finding"
    if coverage["stopped"] == "interrupted":
        return ", stopped by Ctrl-C"
    if coverage["truncated_line"] is not None:
        return f": trace ends inside line {count(coverage['truncated_line'])}"
    return ""


def _check_words(coverage: dict[str, Any]) -> list[str]:
    words = []
    for check in coverage["checks"]:
        if check == "real_kv_hash":
            hashed = sum(source["hashed_bytes"] for source in coverage["sources"])
            whole = sum(source["bytes_per_slot"] for source in coverage["sources"])
            check = f"real_kv_hash ({count(hashed)} of {count(whole)} bytes a slot)"
        words.append(check)
    return words


def incident_table(report: Report, most: int = MAX_ROWS) -> list[str | Table]:
    """One row an incident, in the order of the earliest thing known of each."""
    incidents = report["incidents"]
    if not incidents:
        return []
    summary = report["summary"]
    headline = f"{plural(summary['incidents'], 'incident')}, {plural(summary['slots'], 'slot')} damaged"
    if summary["shadows"]:
        headline += f", {plural(summary['shadows'], 'shadow')}"
    columns = [
        Column("#", RIGHT),
        Column("KIND"),
        Column("SLOTS", RIGHT),
        Column("PAGES"),
        Column("BREACH", RIGHT),
        Column("DAMAGED", RIGHT),
        Column("SEEN", RIGHT),
        Column("LATENCY", RIGHT),
    ]
    rows = [_incident_row(incident) for incident in incidents[:most]]
    extra = []
    if len(incidents) > most:
        extra.append(f"... {count(len(incidents) - most)} more incidents (--all, or --format json)")
    if summary["cut_steps"]:
        steps = plural(summary["cut_steps"], "step")
        extra.append(f"too many slots failed at once in {steps}: the numbers of slots are lower bounds")
    if summary["violations"] > report["violation_log_rows"]:
        kept, total = count(report["violation_log_rows"]), count(summary["violations"])
        extra.append(f"the log keeps {kept} of {total} violations in full (--ring)")
    return [headline, "", Table(columns, rows, indent=1), *extra]


def _incident_row(incident: dict[str, Any]) -> list[str]:
    return [
        str(incident["id"]),
        incident_title(incident),
        count(incident["num_slots"]),
        ranges(incident["pages"], limit=2),
        "-" if incident["breach"] is None else str(incident["breach"]["step"]),
        window(incident["damaged_step"]),
        "never" if incident["seen"] is None else str(incident["seen"]["step"]),
        latency_text(incident["latency_steps"]),
    ]


def incident_title(incident: dict[str, Any]) -> str:
    """`K07 late-remote-write`, `unknown-cause`."""
    return f"{incident['kind']} {incident['name']}" if incident["kind"] in KINDS else incident["name"]


def span_text(pair: list[int | None]) -> str:
    """First and last step of something that began and ended: step 0 is as good as any other."""
    first, last = pair
    return window(pair) if first is None or last is None else ranges([[first, last]])


def latency_text(latency: list[int | None] | None) -> str:
    """Steps between damage and first failed check: `12`, `<=87`, `-`."""
    if latency is None or latency[1] is None:
        return "-"
    return str(latency[1]) if latency[0] == latency[1] else f"<={latency[1]}"


def _annotations(report: Report) -> list[Annotation]:
    """One a finding; with an answer sheet only the frame's own, where it is not met."""
    if report["expectation"] is not None:
        return []
    capacity = {item["kind"]: item for item in reversed(report["capacity_violations"])}
    return [_annotation(incident) for incident in report["incidents"]] + [
        Annotation(
            level="error",
            title=title(kind),
            message=f"step {item['step']}: {item['capacity']} needs {count(item['need'])}, "
            f"limit {count(item['limit'])} ({item['flag']})",
        )
        for kind, item in capacity.items()
    ]


def _annotation(incident: dict[str, Any]) -> Annotation:
    breach, seen = incident["breach"], incident["seen"]
    where = f"slots {ranges(incident['slots'], limit=4)}, pages {ranges(incident['pages'], limit=4)}"
    if not incident["slots"]:
        where = f"{breach['rule']} by {breach['actor'] or 'nobody named'}" if breach else "no slot is named"
    when = f"breach at step {breach['step']}" if breach else f"seen at step {seen['step']}" if seen else ""
    return Annotation(level="error", title=incident_title(incident), message=f"{where}; {when}")


def _status(report: Report) -> str:
    coverage, summary = report["coverage"], report["summary"]
    if report["expectation"] is not None:
        return _expectation_status(report["expectation"])
    if report["status"] == "fail":
        if summary["rids"]:
            readers = plural(len(summary["rids"]), "request")
            what = "read damaged slots" if summary["slots"] else "ran on wrong slots or tokens"
            return f"{readers} {what}; what they produced is suspect: {names(summary['rids'])}"
        if summary["slots"] or report["digest_mismatches"]:
            return "damaged slots were found; no request was seen to read them"
        if report["incidents"]:
            return "the rules of ownership were broken; no slot is damaged yet"
        return "the server's canary has less room than these steps need"
    if report["status"] == "incomplete":
        return "no fault found in what was checked; see `missing` for what was not"
    if coverage["not_checked"]:
        return "no fault found in what was checked; see `not checked`"
    return "clean: everything that was asked was checked, nothing failed"


def _expectation_status(expectation: dict[str, Any]) -> str:
    planted = plural(expectation["planted"], "planted fault")
    found, named = count(expectation["found"]), count(expectation["named_right"])
    text = f"of {planted} {found} found, {named} named right"
    if expectation["not_planted"]:
        text += f"; {plural(expectation['not_planted'], 'incident')} that nobody planted"
    return text


def _notes(report: Report) -> list[tuple[str, str]]:
    notes = []
    message = next((i["server_message"] for i in report["capacity_violations"] if i["server_message"]), None)
    if message:
        notes.append(("why", message))
    elif report["coverage"]["server_skipped_steps"]:
        notes.append(("why", "the server skips verification of such a step and only warns"))
    notes += [("next", hint) for hint in report["hints"]]
    return notes


def setting_lines(report: Report) -> list[str]:
    """What `-v` adds: the settings that decided the run, and the memory that it took."""
    inputs, rows = report["inputs"], report["violation_log_rows"]
    ring = "as --ring says" if inputs["ring"] is not None else "as the trace says; --ring changes it"
    memory = ", ".join(
        f"{part.replace('_', ' ')} {size(used)}" for part, used in report["memory_bytes"].items()
    )
    return [
        f"  hash       {inputs['hash']}",
        f"  verify     {inputs['verify']}",
        f"  log        {count(rows)} rows, {ring}",
        *wrap(memory, first="  memory     "),
        *[f"  {key:<10} {value}" for key, value in sorted(report["tool"].items()) if value is not None],
    ]


def verdict(report: Report) -> dict[str, object]:
    """Keys of the last line, in their order."""
    coverage, summary = report["coverage"], report["summary"]
    keys: dict[str, object] = {
        "incidents": summary["incidents"],
        "slots": summary["slots"],
        "checked": coverage["entries"],
        "skipped": coverage["entries_skipped"],
    }
    if summary["cut_steps"]:
        keys["cut_steps"] = summary["cut_steps"]
    if summary["capacity_violations"]:
        keys["capacity"] = summary["capacity_violations"]
    if coverage["not_checked"]:
        keys["unchecked"] = ",".join(gap["check"] for gap in coverage["not_checked"])
    if coverage["limited"]:
        keys["limited"] = ",".join(f"{key}:{value}" for key, value in coverage["limited"].items())
    if coverage["stopped"]:
        keys["stopped"] = coverage["stopped"]
    if coverage["bad_lines"]:
        keys["bad_lines"] = len(coverage["bad_lines"])
    if coverage["gaps"]:
        keys["gaps"] = len(coverage["gaps"])
    return keys
