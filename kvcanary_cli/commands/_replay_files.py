"""Several files of one `kvcanary replay`: one after the other, or side by side in processes."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kvcanary_cli import settings
from kvcanary_cli.commands._replay_run import RunRequest, interruptible, run_command
from kvcanary_cli.errors import KvCanaryError, UsageError
from kvcanary_cli.exits import Exit
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Report

Outcome = dict[str, Any]
OnFinding = Callable[[str, dict[str, Any]], None]


def refuse_single(flags: dict[str, bool]) -> None:
    """UsageError for a flag that is about one file; `flags` says which were given."""
    for flag, is_given in flags.items():
        if is_given:
            raise UsageError(
                f"`{flag}` is for a replay of one file, several are given",
                hint=f"`kvcanary replay FILE {flag} ...`",
            )


def run_all(
    request: RunRequest,
    groups: Sequence[tuple[str, ...]],
    jobs: int,
    progress: Progress,
    on_finding: OnFinding = lambda path, found: None,
) -> Report:
    """Replay every file; returns the report of all of them, see `run_files`."""
    from kvcanary_cli.report.replay_files import build_files

    started = time.monotonic()
    outcomes = run_files(request, groups, jobs, progress, on_finding)
    return build_files(outcomes, jobs=jobs, seconds=time.monotonic() - started)


def run_files(
    request: RunRequest,
    groups: Sequence[tuple[str, ...]],
    jobs: int,
    progress: Progress,
    on_finding: OnFinding = lambda path, found: None,
) -> list[Outcome]:
    """Replay every file; an error in one of them is its own outcome.

    Args:
        request: what all files have in common.
        groups: files; several of one recording are one trace.
        jobs: processes; 1: all in this one, file by file.
        on_finding: gets the file and each incident in short as it turns up.
    """
    requests = [request_of(request, group) for group in groups]
    if jobs > 1 and len(requests) > 1:
        from kvcanary_cli.commands._replay_jobs import run_side_by_side

        # together they take the threads that one replay would take
        threads = request.threads or max(1, (os.cpu_count() or 1) // min(jobs, len(requests)))
        requests = [replace(each, threads=threads) for each in requests]
        return run_side_by_side(requests, jobs, progress, on_finding)
    outcomes = []
    with interruptible() as stop:
        for each in requests:
            if stop.requested:
                outcomes.append(not_run(each))
                continue
            outcomes.append(outcome_of(each, progress, partial(on_finding, each.path)))
            report = outcomes[-1]["report"]
            if report is not None and report["coverage"]["stopped"] == "interrupted":
                stop.requested = True
    return outcomes


def request_of(request: RunRequest, group: tuple[str, ...]) -> RunRequest:
    """The request for one file, or for the parts of one recording."""
    return replace(request, path=" + ".join(group), parts=group if len(group) > 1 else ())


def outcome_of(
    request: RunRequest, progress: Progress, on_finding: Callable[[dict[str, Any]], None]
) -> Outcome:
    """The report of one file, or its error; nothing is raised but a second Ctrl-C."""
    try:
        report = run_command(request, progress, on_finding)
    except KvCanaryError as error:
        return error_outcome(request.path, error)
    except Exception as error:
        if settings.is_debug():
            traceback.print_exc()
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _outcome(
            request.path, "error", Exit.INTERNAL, error=_error("internal", f"a bug in kvcanary: {what}")
        )
    return _outcome(request.path, report["status"], Exit(report["exit_code"]), report=report)


def error_outcome(path: str, error: KvCanaryError) -> Outcome:
    """A file that could not be replayed."""
    found = _error(error.code, error.message, where=error.where, path=error.path, hint=error.hint)
    return _outcome(path, "error", error.exit_code, error=found)


def crashed(request: RunRequest, code: int | None) -> Outcome:
    """A file whose process died."""
    error = _error("internal", f"its process ended with {code} before it had a report")
    return _outcome(request.path, "error", Exit.INTERNAL, error=error)


def not_run(request: RunRequest) -> Outcome:
    """A file that Ctrl-C left no time for."""
    return _outcome(request.path, "incomplete", Exit.INTERRUPTED)


def _error(code: str, message: str, **more: str | None) -> dict[str, Any]:
    return {"code": code, "where": None, "path": None, "message": message, "hint": None, **more}


def _outcome(
    path: str, status: str, code: Exit, *, report: Any = None, error: dict[str, Any] | None = None
) -> Outcome:
    return {"path": path, "status": status, "exit_code": int(code), "error": error, "report": report}
