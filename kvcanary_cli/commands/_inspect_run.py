"""From the words of `kvcanary inspect` to its report."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from kvcanary_cli.commands._options import refuse_overwriting
from kvcanary_cli.errors import UsageError
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Report


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectWords:
    """The command line, not yet checked."""

    file: str
    input_format: str | None
    block_size: int | None
    limit_requests: int | None
    skip_bad_lines: bool
    output: str | None

    def inputs(self) -> dict[str, Any]:
        """What the report says was asked."""
        return {key: value for key, value in asdict(self).items() if key != "output"}


def run_inspect(words: InspectWords, progress: Progress) -> Report:
    """Inspect as asked; returns the report.

    Raises: InputError for a file that can't be read or a row that can't be used, UsageError for flags that do
        not fit.
    """
    refuse_overwriting([("FILE", words.file)], [("--output", words.output)])
    # deferred: formats load NumPy where they need it
    from kvcanary_cli.trace.formats import KV_EVENTS, TRACE_V1, known_format, sniff

    started = time.monotonic()
    name = sniff(words.file) if words.input_format is None else known_format(words.input_format)
    if name == KV_EVENTS:
        return _events(words, progress, started)
    if name == TRACE_V1:
        return _trace(words, progress, started)
    return _requests(words, name, progress, started)


def _trace(words: InspectWords, progress: Progress, started: float) -> Report:
    from kvcanary_cli.report.inspect import build_trace
    from kvcanary_cli.trace.files import LineError, reads_once
    from kvcanary_cli.trace.inspect_trace import inspect_trace
    from kvcanary_cli.trace.reader import open_trace

    if words.block_size is not None:
        raise UsageError("`--block-size` is for request traces, a trace v1 has its page size in its header")
    try:
        opened = open_trace(words.file, skip_bad_lines=words.skip_bad_lines)
    except LineError as error:
        if words.input_format is None and reads_once(words.file):
            error.hint = error.hint or "a request trace that comes through a pipe needs `--input-format NAME`"
        raise
    with opened as reader:
        facts = inspect_trace(
            reader,
            limit_requests=words.limit_requests,
            on_progress=lambda events, tokens: progress.update(events, None, tokens, 0),
        )
    return build_trace(facts, inputs=words.inputs(), seconds=time.monotonic() - started)


def _events(words: InspectWords, progress: Progress, started: float) -> Report:
    from kvcanary_cli.kvevents.audit import Auditor
    from kvcanary_cli.kvevents.lines import EventFile
    from kvcanary_cli.report.inspect_events import build_events

    for flag, value in (("--block-size", words.block_size), ("--limit-requests", words.limit_requests)):
        if value is not None:
            raise UsageError(f"`{flag}` is for request traces, {words.file} is a KV event stream")
    file = EventFile([words.file], skip_bad_lines=words.skip_bad_lines)
    result = Auditor(file).run(
        on_progress=lambda batches, events, findings: progress.update(batches, None, events, 0)
    )
    return build_events(result, inputs=words.inputs(), seconds=time.monotonic() - started)


def _requests(words: InspectWords, name: str, progress: Progress, started: float) -> Report:
    from kvcanary_cli.report.inspect import build_requests
    from kvcanary_cli.trace.formats import open_requests
    from kvcanary_cli.trace.inspect_requests import inspect_requests
    from kvcanary_cli.trace.reader import SKIP_HINT
    from kvcanary_cli.trace.request_trace import ReadOptions

    options = ReadOptions(
        block_size=words.block_size,
        limit=words.limit_requests,
        skip_bad_lines=words.skip_bad_lines,
        hint=SKIP_HINT,
    )
    trace = open_requests(words.file, format_name=name, options=options)
    facts = inspect_requests(
        trace, on_progress=lambda requests, tokens: progress.update(requests, None, tokens, 0)
    )
    return build_requests(trace, facts, inputs=words.inputs(), seconds=time.monotonic() - started)
