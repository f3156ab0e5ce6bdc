"""From the words of `kvcanary replay` to the audit of a KV event stream; needs neither numba nor torch."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvcanary_cli.errors import KvCanaryError, UsageError, nearest
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Report


def are_events(files: Sequence[str], input_format: str | None) -> bool:
    """Whether the files are one stream of KV events; what can't be read is left to the replay of a trace.

    Raises: UsageError where only some of them are.
    """
    from kvcanary_cli.trace.formats import KV_EVENTS, sniff

    if input_format is not None:
        return input_format == KV_EVENTS
    found = []
    for path in files:
        try:
            found.append(sniff(path) == KV_EVENTS)
        except KvCanaryError:
            found.append(False)
    if any(found) and not all(found):
        others = [path for path, is_events in zip(files, found, strict=True) if not is_events]
        raise UsageError(
            f"{others[0]} is no KV event stream, and the other files are",
            hint="replay them one by one",
        )
    return all(found)


def refuse_flags(given: dict[str, bool]) -> None:
    """UsageError for a flag that an event stream can't follow; `given` says which were given."""
    for flag, is_given in given.items():
        if is_given:
            raise UsageError(
                f"`{flag}` is for traces, a KV event stream has no slots and no forwards",
                hint="`kvcanary replay FILE --format json` has all that is found",
            )


def run_event_audit(
    files: Sequence[str],
    *,
    pool_tokens: int | None,
    capacities: str | None,
    require: str | None,
    skip_bad_lines: bool,
    input_format: str | None,
    progress: Progress,
    on_finding: Callable[[dict[str, Any]], None] = lambda found: None,
) -> Report:
    """Audit the files as one stream; returns the report.

    Args:
        files: parts in their order; those that `record-events` named may come in any.
        on_finding: gets each finding as it turns up.
    """
    from kvcanary_cli.kvevents.audit import Auditor
    from kvcanary_cli.kvevents.findings import Finding
    from kvcanary_cli.kvevents.lines import EventFile
    from kvcanary_cli.kvevents.sink import in_order
    from kvcanary_cli.report.event_audit import build_event_audit, finding_json

    files = in_order(files)
    required = _required(require)
    tokens = pool_tokens if pool_tokens is not None else _stated_tokens(capacities)
    started = time.monotonic()
    auditor = Auditor(EventFile(files, skip_bad_lines=skip_bad_lines), pool_tokens=tokens)

    def tell(finding: Finding) -> None:
        found = finding_json(None, finding)
        progress.event(f"line {found['line']:,}: {found['kind']} {found['name']}, {found['text']}")
        on_finding(found)

    with _stoppable() as is_stopped:
        result = auditor.run(
            on_progress=lambda batches, events, findings: progress.update(batches, None, events, findings),
            on_finding=tell,
            should_stop=is_stopped,
        )
    inputs = {
        "trace": {"path": files[0], "paths": list(files), "format": "KV event stream"},
        "pool_tokens": pool_tokens,
        "capacities": capacities,
        "require": list(required),
        "skip_bad_lines": skip_bad_lines,
        "input_format": input_format,
    }
    seconds = time.monotonic() - started
    return build_event_audit(result, inputs=inputs, pool_tokens=tokens, required=required, seconds=seconds)


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Ctrl-C becomes a request to stop; a second one ends the process at once."""
    pressed: list[int] = []

    def note(signum: int, frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(signum)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: whoever runs us decides
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _stated_tokens(capacities: str | None) -> int | None:
    """The pool of a config."""
    if capacities is None:
        return None
    from kvcanary_cli.capacity.config import load_capacities

    return load_capacities(capacities).pool.tokens


def _required(words: str | None) -> tuple[str, ...]:
    from kvcanary_cli.kvevents.checks import CHECKS

    checks = tuple(word.strip() for word in (words or "").split(",") if word.strip())
    for check in checks:
        if check not in CHECKS:
            close = nearest(check, CHECKS)
            raise UsageError(
                f"`--require` names {check!r}, known for a KV event stream are {', '.join(CHECKS)}",
                hint=f"did you mean {close}?" if close else None,
            )
    return checks
