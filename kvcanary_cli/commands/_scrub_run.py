"""From the words of `kvcanary scrub` to its report."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from kvcanary_cli import settings
from kvcanary_cli.commands._options import check_output, refuse_overwriting
from kvcanary_cli.errors import MissingError, UsageError
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Report
from kvcanary_cli.runtime.devices import DeviceChoice, pick_device


@dataclass(frozen=True, kw_only=True, slots=True)
class ScrubWords:
    """The command line, not yet checked."""

    file: str
    against: str | None
    tensors: tuple[str, ...]
    page_size: int
    flat: bool
    written: tuple[str, ...]
    only_slots: tuple[str, ...]
    values: bool
    write_hashes: str | None
    chunk_mib: int | None
    device: str
    threads: int | None
    output: str | None

    def inputs(self) -> dict[str, Any]:
        """What the report says was asked."""
        return {key: value for key, value in asdict(self).items() if key != "output"}


def run_scrub(words: ScrubWords, progress: Progress) -> Report:
    """Scrub as asked; returns the report."""
    check_words(words)
    device = pick_device(words.device)
    note = _prepare(device)
    # deferred until the device is known: numba on a CPU, torch and triton on a GPU
    from kvcanary_cli.report.scrub import build_scrub
    from kvcanary_cli.scrub.pool import Selection
    from kvcanary_cli.scrub.run import ScrubRequest, scrub

    started = time.monotonic()
    request = ScrubRequest(
        path=words.file,
        device=device,
        selection=Selection(globs=words.tensors, page_size=words.page_size, is_flat=words.flat),
        threads=words.threads,
        chunk_mib=words.chunk_mib,
        values=words.values,
        against=words.against,
        only=words.only_slots,
        written=words.written,
        write_hashes=words.write_hashes,
    )
    result = scrub(request, on_progress=lambda done, total, slots: progress.update(done, total, slots, 0))
    backend = {
        "name": "triton" if device.kind == "cuda" else "numba",
        "device": device.label,
        "reason": "; ".join(text for text in (device.reason, note) if text),
    }
    return build_scrub(result, inputs=words.inputs(), backend=backend, seconds=time.monotonic() - started)


def check_words(words: ScrubWords) -> None:
    """Refuse what does not fit together, and to write over a file that is read."""
    for flag, given in (("--written", words.written), ("--only-slots", words.only_slots)):
        if given and words.against is None:
            raise UsageError(
                f"`{flag}` needs something to compare with", hint="`--against FILE`, a dump or saved hashes"
            )
    if words.flat and words.page_size == 1:
        raise UsageError("`--flat` needs `--page-size`: without pages every first dimension counts slots")
    if words.write_hashes is not None:
        if not words.write_hashes:
            raise UsageError("the file name of `--write-hashes` is empty")
        check_output(words.write_hashes, flag="--write-hashes")
    refuse_overwriting(
        [("FILE", words.file), ("--against", words.against)],
        [("--write-hashes", words.write_hashes), ("--output", words.output)],
    )


def _prepare(device: DeviceChoice) -> str:
    """Make the backend of a device importable; returns a note for the report, empty when all is usual."""
    if device.kind == "cuda":
        return settings.prepare_triton_cache() or ""
    try:
        note = settings.prepare_numba_cache()
        import numba  # noqa: F401 -- to say what is missing before anything else is tried
    except ImportError as error:
        raise MissingError("scrub needs numba, which is not installed", hint="`pip install numba`") from error
    return note or ""
