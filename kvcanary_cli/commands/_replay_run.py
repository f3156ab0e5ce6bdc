"""From the words of `kvcanary replay` to its report: choices checked, trace opened, Ctrl-C caught."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvcanary_cli import settings
from kvcanary_cli.commands._options import refuse_overwriting
from kvcanary_cli.errors import MissingError, UsageError, nearest
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.progress import Progress
from kvcanary_cli.replay.capacities import Limits
from kvcanary_cli.replay.options import CHAINS, CHECKS, ReplayOptions
from kvcanary_cli.report.frame import Report
from kvcanary_cli.runtime.devices import DeviceChoice, pick_device

if TYPE_CHECKING:
    from kvcanary_cli.replay.incidents import Incident  # loads numba, which may be missing


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The command line of one replay, not yet checked."""

    path: str
    device: str = "auto"
    threads: int | None = None
    hash_name: str = "all"
    verify: str | None = None
    chain: str = "mixed"
    sweep_interval: int = 0
    capacities: str | None = None
    ring: int | None = None
    limit_requests: int | None = None
    limit_steps: int | None = None
    stop_on_violation: bool = False
    require: str | None = None
    save_trace: str | None = None
    skip_bad_lines: bool = False
    seed: int = 0
    scheduler: str | None = None
    no_tokens: bool = False
    history: tuple[str | None, int] | None = None
    expect: str | None = None
    incident: int | None = None
    parts: tuple[str, ...] = ()
    input_format: str | None = None
    block_size: int | None = None


def run_command(
    request: RunRequest,
    progress: Progress,
    on_finding: Callable[[dict[str, Any]], None] = lambda found: None,
) -> Report:
    """Replay as asked; returns the report.

    Args:
        on_finding: gets each incident in short as it turns up: step, kind, name, group, slots, pages.
    """
    device = pick_device(request.device)
    cache_note = prepare_backend(device)
    # deferred until the device is known: numba on a CPU, torch and triton on a GPU
    from kvcanary_cli.faults.answers import read_answers
    from kvcanary_cli.replay.parts import open_parts
    from kvcanary_cli.replay.run import run_replay
    from kvcanary_cli.replay.source import open_source
    from kvcanary_cli.report.incident_text import finding_line
    from kvcanary_cli.report.incidents import finding_json
    from kvcanary_cli.report.replay import build_replay

    options = replay_options(request, device)
    answers = read_answers(request.expect) if request.expect is not None else None
    started = time.monotonic()
    open_input = partial(open_parts, request.parts) if request.parts else partial(open_source, request.path)
    with (
        open_input(
            skip_bad_lines=request.skip_bad_lines,
            limit_requests=request.limit_requests,
            save_trace=request.save_trace,
            seed=request.seed,
            scheduler=request.scheduler,
            capacities=request.capacities,
            input_format=request.input_format,
            block_size=request.block_size,
        ) as source,
        interruptible() as stop,
    ):
        page_size = source.header.pool.page_size

        def tell(step: int, incident: Incident) -> None:
            found = finding_json(step, incident, page_size)
            progress.event(finding_line(found))
            on_finding(found)

        result = run_replay(
            source.header,
            source.events,
            options,
            path=source.path,
            on_progress=lambda step, entries, incidents: progress.update(step, None, entries, incidents),
            on_incident=tell,
            on_event=source.keep,
            should_stop=lambda: stop.requested,
        )
        ended_early = result.stopped is not None or bool(result.limited)
        bad_lines = source.bad_lines_to(result.last_line) if ended_early else source.bad_lines
        result.limited = result.limited or source.limited
        reason = "; ".join(text for text in (device.reason, cache_note) if text)
        return build_replay(
            result,
            options,
            source=source.describe(),
            bad_lines=bad_lines,
            truncated=source.truncated if source.truncated in bad_lines else None,
            backend={
                "name": "triton" if device.kind == "cuda" else "numba",
                "device": device.label,
                "reason": reason,
            },
            seconds=time.monotonic() - started,
            no_tokens=request.no_tokens,
            answers=answers,
            page_of=request.incident,
            asked={
                "capacities": request.capacities,
                "skip_bad_lines": request.skip_bad_lines,
                "stop_on_violation": request.stop_on_violation,
                "seed": request.seed,
                **({"scheduler": request.scheduler} if request.scheduler is not None else {}),
                "expect": request.expect,
                "input_format": request.input_format,
                "block_size": request.block_size,
            },
        )


def prepare_backend(device: DeviceChoice) -> str:
    """Make the backend of a device importable; returns a note for the report, empty when all is usual."""
    if device.kind == "cuda":
        return settings.prepare_triton_cache() or ""
    try:
        note = settings.prepare_numba_cache()
        import numba  # noqa: F401 -- to say what is missing before anything else is tried
    except ImportError as error:
        raise MissingError(
            "replay needs numba, which is not installed", hint="`pip install numba`"
        ) from error
    return note or ""


def replay_options(request: RunRequest, device: DeviceChoice) -> ReplayOptions:
    """Checked options; UsageError for words that are not known."""
    return ReplayOptions(
        device=device,
        hash_mode=_hash_mode(request.hash_name),
        incremental=_incremental(request.verify, device),
        is_affine=_is_affine(request.chain),
        sweep_interval=request.sweep_interval,
        limits=load_limits(request.capacities),
        ring=request.ring,
        limit_steps=request.limit_steps,
        limit_requests=request.limit_requests,
        stop_on_violation=request.stop_on_violation,
        required=_required(request.require),
        threads=request.threads,
        history=request.history,
    )


def load_limits(path: str | None) -> Limits:
    """Capacities of a config file; none without one."""
    if path is None:
        return Limits()
    from kvcanary_cli.capacity.config import load_capacities

    stated = load_capacities(path)
    return Limits(
        write_req_capacity=stated.write_req_capacity,
        write_entry_capacity=stated.write_entry_capacity,
        verify_capacity=stated.verify_capacity,
    )


def _hash_mode(word: str) -> HashMode:
    modes = {mode.name.lower(): mode for mode in HashMode}
    if word not in modes:
        raise UsageError(f"`--hash` is {word!r}, known are {', '.join(modes)}")
    return modes[word]


def _incremental(word: str | None, device: DeviceChoice) -> bool:
    """Whether to check only what was touched; on a GPU every check also tests the memory, so it checks all."""
    if word not in (None, "full", "incremental"):
        raise UsageError(f"`--verify` is {word!r}, known are full, incremental")
    if word == "incremental" and device.kind == "cuda":
        raise UsageError(
            "`--verify incremental` is for the CPU, a run on a GPU verifies in full",
            hint="`--device cpu --verify incremental`",
        )
    return word == "incremental" or (word is None and device.kind == "cpu")


def _is_affine(word: str) -> bool:
    if word not in CHAINS:
        raise UsageError(f"`--chain` is {word!r}, known are {', '.join(CHAINS)}")
    return word == "affine"


def _required(words: str | None) -> tuple[str, ...]:
    if words is None:
        return ()
    checks = tuple(word.strip() for word in words.split(",") if word.strip())
    if not checks:
        raise UsageError(f"`--require` names nothing, known are {', '.join(CHECKS)}")
    for check in checks:
        if check not in CHECKS:
            close = nearest(check, CHECKS)
            raise UsageError(
                f"`--require` names {check!r}, known are {', '.join(CHECKS)}",
                hint=f"did you mean {close}?" if close else None,
            )
    return checks


def check_files(request: RunRequest, output: str | None) -> None:
    """Refuse to write a report or a trace over a file that is read, or both into one file.

    Raises: UsageError that names both; also for a name that is empty.
    """
    refuse_overwriting(
        [("FILE", request.path), ("--expect", request.expect), ("--capacities", request.capacities)],
        [("--save-trace", request.save_trace), ("--output", output)],
    )


class StopRequest:
    """Whether Ctrl-C was pressed; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, signum: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible() -> Iterator[StopRequest]:
    """Ctrl-C becomes a request to stop, so that a report of the work so far can be written."""
    stop = StopRequest()
    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # not the main thread: whoever runs us decides
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
