"""What a long run says on stderr while it works: is it moving, when is it done, has it found anything."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any, TextIO

from kvcanary_cli.report.text import ascii_lines, count

REFRESH_SECONDS = 0.1
"""On a terminal: at most ten refreshes a second."""

FIRST_LINES_SECONDS = (10.0, 60.0)
"""In a log: a line after these, then one each `LATER_LINES_SECONDS`, so that logs stay short."""
LATER_LINES_SECONDS = 300.0

MAX_EVENTS = 10
"""Findings announced one by one; the rest is a count, the report has them all."""


# what a command counts: steps, work done, findings; those of others find nothing while they run
_REPLAY = ("step", "entries", "incidents")
_WORDS: dict[str, tuple[str, str, str | None]] = {
    "audit": ("group", "entries", None),
    "check-capacities": ("step", "entries", None),
    "inspect": ("record", "tokens", None),
    "record-events": ("batch", "events", "gaps"),
    "scrub": ("chunk", "slots", None),
    "simulate": ("step", "entries", None),
}


class Progress:
    """Receives the state of a run and decides what of it is worth a line.

    On a terminal one line is rewritten and removed at the end, and findings are announced at once. In a log
    nothing is written for a run under ten seconds: its report says it all.

    Args:
        command: first word of each line.
        stream: where lines go; None for no progress at all.
        is_live: whether the stream is a terminal that understands escape codes.
        on_record: gets the state as a dict whenever a line would be written to a log, for `--format jsonl`.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        command: str,
        *,
        stream: TextIO | None,
        is_live: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._stream = stream
        self._is_live = is_live
        self._on_record = on_record
        self._clock = clock
        self._start = clock()
        self._next_refresh = 0.0
        self._next_line = FIRST_LINES_SECONDS[0]
        self._is_drawn = False
        self._held: list[str] = []
        self._num_events = 0
        self._is_silent = stream is None and on_record is None

    def update(self, step: int, total: int | None, entries: int, findings: int) -> None:
        """Called after each step; cheap when nothing is to be written.

        Args:
            step: steps done.
            total: steps there will be; None when the input is a pipe.
            entries: entries checked so far.
            findings: incidents so far.
        """
        if self._is_silent:
            return
        elapsed = self._clock() - self._start
        if self._is_live and elapsed >= self._next_refresh:
            self._next_refresh = elapsed + REFRESH_SECONDS
            self._draw(self._text(step, total, entries, findings, elapsed))
        if elapsed < self._next_line:
            return
        self._next_line = _next_line(elapsed)
        if self._on_record is not None:
            self._on_record(
                {"step": step, "steps_planned": total, "entries": entries, "findings": findings}
                | {"timing": {"seconds": round(elapsed, 1)}}
            )
        if self._stream is not None and not self._is_live:
            self._release()
            self._write(self._text(step, total, entries, findings, elapsed) + "\n")

    def event(self, line: str) -> None:
        """Announce a finding: `step 853: K07 late-remote-write, 16 slots of page 294`."""
        self._num_events += 1
        if self._stream is None or self._num_events > MAX_EVENTS:
            return
        self._held.append(ascii_lines(line))
        if self._is_live or self._clock() - self._start >= FIRST_LINES_SECONDS[0]:
            self._release()

    def close(self) -> None:
        """Remove the line of a terminal; say how many findings were not announced."""
        if self._stream is None:
            return
        self._erase()
        is_long = self._is_live or self._clock() - self._start >= FIRST_LINES_SECONDS[0]
        if is_long:
            self._release()
        if is_long and self._num_events > MAX_EVENTS:
            self._write(f"... {count(self._num_events - MAX_EVENTS)} more findings\n")

    def _text(self, step: int, total: int | None, entries: int, findings: int, elapsed: float) -> str:
        unit, work, found = _WORDS.get(self._command, _REPLAY)
        parts = [self._command, f"{unit} {count(step)}" + (f" of {count(total)}" if total else "")]
        if total:
            parts.append(f"{step * 100 // total}%")
        rate = entries / elapsed if elapsed > 0 else 0.0
        if entries:
            parts.append(f"{_rate(rate)} {work}/s")
        if found is not None:
            parts.append(f"{found} {count(findings)}")
        if total and step and elapsed > 0:
            parts.append(f"eta {_duration(elapsed / step * (total - step))}")
        return "  ".join(parts)

    def _draw(self, text: str) -> None:
        # a line that wraps could not be taken back
        columns = shutil.get_terminal_size().columns
        self._write("\r\x1b[K" + text[: columns - 1])
        self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    def _release(self) -> None:
        if self._held:
            self._erase()
            self._write("".join(line + "\n" for line in self._held))
            self._held.clear()

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


def _next_line(elapsed: float) -> float:
    """When the next line of a log is due, in seconds since the start."""
    for seconds in FIRST_LINES_SECONDS:
        if elapsed < seconds:
            return seconds
    return (elapsed // LATER_LINES_SECONDS + 1) * LATER_LINES_SECONDS


def _rate(per_second: float) -> str:
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= scale:
            return f"{per_second / scale:.1f} {letter}"
    return f"{per_second:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
