"""The report of `inspect` as data; `inspect_text.py` makes text of it."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Report, base_report, finish
from kvcanary_cli.trace.files import reads_once

if TYPE_CHECKING:
    from kvcanary_cli.trace.inspect_requests import Prefixes, RequestFacts
    from kvcanary_cli.trace.inspect_trace import TraceFacts
    from kvcanary_cli.trace.request_trace import RequestTrace

MAX_LINES = 1_000
"""Skipped lines listed in the JSON; the count is always of all."""

TIMES = {
    "mooncake": "milliseconds",
    "mooncake-delta": "milliseconds",
    "azure": "date and clock, UTC where no zone is given",
    "llmservingsim": "nanoseconds, or seconds since 1970 in a measured run",
    "dynamo": "milliseconds since 1970",
    "dynamo-agentic": "milliseconds",
    "lmcache-lookup": "seconds since 1970",
}
"""What the times of a format count, where it is not seconds."""

SIMULATED_POOL = 400_000  # tokens that `simulate` takes if nothing else is said
EXAMPLE_POOL = 425_984
EXAMPLE_CONTEXT = 131_072


def build_requests(
    trace: RequestTrace, facts: RequestFacts, *, inputs: dict[str, Any], seconds: float
) -> Report:
    """The report of a request trace; skipped lines make it incomplete, quirks are warnings."""
    report = _base(inputs, trace.format.name, trace.format.title)
    report["coverage"] = _coverage(trace.bad_lines, None, inputs, facts.requests)
    report["requests"] = _requests(trace, facts)
    report["trace"] = None
    report["quirks"] = _request_quirks(trace, facts)
    report["assumed"] = _assumed(trace, facts)
    report["hints"] = _request_hints(trace, inputs, facts)
    return _finish(report, seconds)


def build_trace(facts: TraceFacts, *, inputs: dict[str, Any], seconds: float) -> Report:
    """The report of a trace v1."""
    report = _base(inputs, "trace-v1", "trace v1")
    header = facts.header
    page = header.pool.page_size
    report["pool"] = {
        "slots": header.pool.slots,
        "pages": header.pool.slots // page,
        "page_size": page,
        "groups": [group.kind for group in header.groups],
    }
    report["coverage"] = _coverage(facts.bad_lines, facts.truncated, inputs, facts.requests)
    report["requests"] = None
    report["trace"] = _trace(facts)
    report["quirks"] = _trace_quirks(facts)
    report["assumed"] = []
    report["hints"] = [] if reads_once(inputs["file"]) else [_command("replay", inputs)]
    return _finish(report, seconds)


def _base(inputs: dict[str, Any], name: str, title: str) -> Report:
    report = base_report("inspect", inputs=inputs)
    by = "--input-format" if inputs["input_format"] is not None else "content"
    report["format"] = {"name": name, "title": title, "from": by}
    return report


def _finish(report: Report, seconds: float) -> Report:
    report["timing"] = {"seconds": round(seconds, 3)}
    coverage = report["coverage"]
    is_partial = coverage["bad_lines"] or coverage["truncated"] is not None
    return finish(report, Exit.INCOMPLETE if is_partial else Exit.PASS, warnings=len(report["quirks"]))


def _coverage(
    bad_lines: list[int], truncated: int | None, inputs: dict[str, Any], requests: int
) -> dict[str, Any]:
    limit = inputs["limit_requests"]
    return {
        "bad_lines": len(bad_lines),
        "bad_line_numbers": bad_lines[:MAX_LINES],
        "truncated": truncated,
        "limited": {"requests": limit} if limit is not None and requests >= limit else {},
    }


def _requests(trace: RequestTrace, facts: RequestFacts) -> dict[str, Any]:
    has_times = trace.format.has_times and "arrival times" not in trace.lacks
    has_outputs = "output lengths" not in trace.lacks
    return {
        "requests": facts.requests,
        "lacks": list(trace.lacks),
        "span_seconds": facts.last_arrival_s if has_times else None,
        "prompt_tokens": asdict(facts.prompt),
        "output_tokens": asdict(facts.output) if has_outputs else None,
        "request_tokens": asdict(facts.both) if has_outputs else None,
        "without_output": facts.without_output if has_outputs else None,
        "arrivals_in_one_second": asdict(facts.in_one_second) if has_times else None,
        "arrivals_at_once": asdict(facts.at_once) if has_times else None,
        "outstanding_tokens": _outstanding(facts) if has_times and has_outputs else None,
        "waiting_for_another": facts.waiting,
        "sessions": {
            "sessions": facts.sessions,
            "requests": facts.in_sessions,
            "most_turns": facts.most_turns,
        },
        "with_token_ids": facts.with_tokens,
        "prefixes": None if facts.prefixes is None else _prefixes(trace, facts.prefixes, facts.prompt.total),
    }


def _outstanding(facts: RequestFacts) -> dict[str, Any]:
    """Bounds of the most tokens of requests that have arrived and not ended; no trace says when they end."""
    return {
        "at_least": facts.tokens_at_once.most,
        "at_least_at_s": facts.tokens_at_once.at_s,
        "at_most": facts.both.total,
    }


def _prefixes(trace: RequestTrace, prefixes: Prefixes, prompt_tokens: int) -> dict[str, Any]:
    return {
        **asdict(prefixes),
        "block_size": trace.block_size,
        "prompt_tokens": prompt_tokens,
        "reused_share": round(prefixes.reused_tokens / prompt_tokens, 6),
    }


def _request_quirks(trace: RequestTrace, facts: RequestFacts) -> list[dict[str, Any]]:
    quirks = [asdict(note) for note in trace.notes]
    if trace.reordered:
        quirks.append(_quirk("has an earlier time than the row before", trace.reordered))
    if trace.moved_ids:
        text = "block id stands at two places, so ids name content, not prefixes"
        quirks.append(_quirk(text, trace.moved_ids))
    for key, number in sorted(trace.unknown_keys.items()):
        quirks.append(_quirk(f'has "{key}", which is not used', number))
    return quirks


def _quirk(text: str, count: int, line: int | None = None) -> dict[str, Any]:
    return {"text": text, "count": count, "line": line}


def _assumed(trace: RequestTrace, facts: RequestFacts) -> list[dict[str, Any]]:
    """What a replay takes for granted, and who says so."""
    title = trace.format.title
    rows: list[dict[str, Any]] = []
    if not facts.requests:
        return rows
    if trace.block_ids:
        rows.append({"what": "block size", "value": trace.block_size, "from": trace.block_size_from})
    if "arrival times" not in trace.lacks:
        rows.append({"what": "times", "value": TIMES.get(trace.format.name, "seconds"), "from": title})
        order = "sorted by time, stably" if trace.reordered else "as in the file, times never go back"
        rows.append({"what": "order", "value": order, "from": "the rows"})
    if facts.prefixes is None and not facts.with_tokens:
        rows.append(
            {
                "what": "prompts",
                "value": "no two share a prefix",
                "from": "the file has no block ids or tokens",
            }
        )
    return rows


def _command(command: str, inputs: dict[str, Any]) -> str:
    """A command line for the same file, read in the same way."""
    words = ["kvcanary", command, _operand(inputs["file"])]
    for flag in ("input_format", "block_size", "limit_requests"):
        if inputs[flag] is not None:
            words += [f"--{flag.replace('_', '-')}", str(inputs[flag])]
    if inputs["skip_bad_lines"]:
        words.append("--skip-bad-lines")
    return shlex.join(words)


def _operand(path: str) -> str:
    """A path that no command takes for an option."""
    return f"./{path}" if path.startswith("-") and path != "-" else path


def _request_hints(trace: RequestTrace, inputs: dict[str, Any], facts: RequestFacts) -> list[str]:
    """Command lines that go on from here; none for a file that no scheduler can serve, or a pipe."""
    if trace.lacks or not facts.requests or reads_once(inputs["file"]):
        return []
    hints = [_command("replay", inputs), _command("simulate", inputs)]
    if facts.both.most > SIMULATED_POOL:
        hints[1] += f" --pool-tokens {facts.both.most}"
    if inputs["input_format"] is None and inputs["block_size"] is None and not inputs["skip_bad_lines"]:
        pool = str(max(EXAMPLE_POOL, facts.both.most))
        context = str(max(EXAMPLE_CONTEXT, facts.both.most))
        words = ["kvcanary", "check-capacities", "--workload", _operand(inputs["file"]), "--gpu", "H100"]
        words += ["--pool-tokens", pool, "--context-length", context, "--from-args", "--"]
        words += ["python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B"]
        hints.append(shlex.join(words))
    return hints


def _trace(facts: TraceFacts) -> dict[str, Any]:
    checks = facts.checks()
    return {
        "header": msgspec.to_builtins(facts.header),
        "events": sum(facts.events.values()),
        "events_by_kind": dict(sorted(facts.events.items())),
        "forwards": sum(facts.forwards.values()),
        "forwards_by_mode": dict(sorted(facts.forwards.items())),
        "requests": facts.requests,
        "first_t": facts.first_t,
        "last_t": facts.last_t,
        "most_lanes": facts.most_lanes._asdict(),
        "most_written_tokens": facts.most_tokens._asdict(),
        "most_prefix_tokens": facts.most_prefix._asdict(),
        "records": facts.header.records,
        "lost_forwards": facts.lost_forwards,
        "gaps": facts.events["gap"],
        "checks": [check for check, why in checks.items() if not why],
        "not_possible": [{"check": check, "why": why} for check, why in checks.items() if why],
    }


def _trace_quirks(facts: TraceFacts) -> list[dict[str, Any]]:
    header = facts.header
    quirks = [
        _quirk(f'has "{kind}" events, which the header\'s `records` leaves out', facts.events[kind])
        for kind in facts.undeclared()
    ]
    if facts.events["gap"]:
        lost = "an unknown number of" if facts.lost_forwards is None else f"{facts.lost_forwards:,}"
        quirks.append(_quirk(f"gap in the recording, {lost} forwards are lost", facts.events["gap"]))
    if header.state == "unknown":
        quirks.append(_quirk("recorder joined a running engine: what slots held before is not known", 1))
    if header.continues is not None:
        text = f'part {header.continues.part} of "{header.continues.of}": what came before is another file'
        quirks.append(_quirk(text, 1))
    return quirks
