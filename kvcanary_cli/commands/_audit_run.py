"""From the words of `kvcanary audit` to its report."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from kvcanary_cli import settings
from kvcanary_cli.commands._options import refuse_overwriting
from kvcanary_cli.errors import MissingError, UsageError, nearest
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Report
from kvcanary_cli.runtime.devices import DeviceChoice, pick_device


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditWords:
    """The command line, not yet checked."""

    dump: str
    page_size: int | None
    window: int | None
    require: str | None
    device: str
    threads: int | None
    no_tokens: bool
    output: str | None

    def inputs(self) -> dict[str, Any]:
        """What the report says was asked."""
        return {key: value for key, value in asdict(self).items() if key != "output"}


def run_audit(words: AuditWords, progress: Progress) -> Report:
    """Audit as asked; returns the report."""
    refuse_overwriting([("DUMP", words.dump)], [("--output", words.output)])
    device = pick_device(words.device)
    note = _prepare(device)
    # deferred until the device is known: numba on a CPU, torch and triton on a GPU
    from kvcanary_cli.audit.dump import open_dump
    from kvcanary_cli.audit.run import CHECKS, audit
    from kvcanary_cli.report.audit import build_audit

    required = _required(words.require, CHECKS)
    started = time.monotonic()
    dump = open_dump(words.dump, page_size=words.page_size, window_size=words.window)
    num_groups = len(dump.groups)
    done: list[str] = []

    def tell(group: str) -> None:
        progress.update(len(done), num_groups, 0, 0)
        done.append(group)

    result = audit(dump, device=device, threads=words.threads, on_progress=tell)
    return build_audit(
        result,
        inputs=words.inputs(),
        backend={
            "name": "triton" if device.kind == "cuda" else "numba",
            "device": device.label,
            "reason": "; ".join(text for text in (device.reason, note) if text),
        },
        seconds=time.monotonic() - started,
        required=required,
        no_tokens=words.no_tokens,
    )


def _required(words: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if words is None:
        return ()
    checks = tuple(word.strip() for word in words.split(",") if word.strip())
    if not checks:
        raise UsageError(f"`--require` names nothing, known are {', '.join(known)}")
    for check in checks:
        if check not in known:
            close = nearest(check, known)
            raise UsageError(
                f"`--require` names {check!r}, known are {', '.join(known)}",
                hint=f"did you mean {close}?" if close else None,
            )
    return checks


def _prepare(device: DeviceChoice) -> str:
    """Make the backend importable; Numba traces stamps on the host whatever the device is."""
    try:
        notes = [settings.prepare_numba_cache()]
        import numba  # noqa: F401 -- to say what is missing before anything else is tried
    except ImportError as error:
        raise MissingError("audit needs numba, which is not installed", hint="`pip install numba`") from error
    if device.kind == "cuda":
        notes.append(settings.prepare_triton_cache())
    return "; ".join(note for note in notes if note)
