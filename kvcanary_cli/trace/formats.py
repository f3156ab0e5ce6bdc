"""Which format a file has, told from its first line and never from its name."""

from __future__ import annotations

import json
import os
import stat
from math import isfinite
from typing import Literal

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.files import open_bytes
from kvcanary_cli.trace.mooncake import KEYS

Format = Literal["trace-v1", "mooncake"]
TRACE_V1: Format = "trace-v1"
MOONCAKE: Format = "mooncake"
KNOWN: dict[Format, str] = {
    TRACE_V1: 'kvcanary\'s own, the first line has "ev"',
    MOONCAKE: "request trace, lines have " + ", ".join(KEYS),
}
SHOWN = 80  # characters of the first line that a message repeats


def sniff(path: str) -> Format:
    """The format of the file at `path`; a pipe, "-" included, can't be looked at twice and counts as trace v1.

    Raises: InputError for a file that can't be read or whose first line belongs to no known format.
    """
    if path == "-" or _is_pipe(path):
        return TRACE_V1
    name, source = open_bytes(path)
    with source:
        line = next(line for line in source if not line.isspace())
    found = _of_line(line)
    if found is None:
        text = line.decode().strip()
        shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
        raise InputError(
            f"the format is not known, the first line is: {shown}",
            where=f"{name}:{source.line}",
            hint="known formats: " + "; ".join(f"{word} ({what})" for word, what in KNOWN.items()),
        )
    return found


def _is_pipe(path: str) -> bool:
    """Whether reading from the path takes away what is read."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _of_line(line: bytes) -> Format | None:
    """The format whose keys a line has; a damaged line counts too, as its reader can say what is wrong."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = {key: None for key in ("ev", *KEYS) if b'"%s"' % key.encode() in line} if b"{" in line else None
    if not isinstance(row, dict):
        return None
    if "ev" in row:
        return TRACE_V1
    if sum(key in row for key in KEYS) < 2 or _is_other_trace(row):
        return None
    return MOONCAKE


def _is_other_trace(row: dict[str, object]) -> bool:
    """Whether a row with Mooncake's keys means something else by them.

    Bailian and Dynamo rows have keys of their own, ServeGen rows an id and no time; RAGPulse writes times as
    text and ids as an object; a time with a fraction is seconds.
    """
    time = row.get("timestamp")
    is_seconds = isinstance(time, float) and isfinite(time) and not time.is_integer()
    return (
        "chat_id" in row
        or "schema" in row
        or ("request_id" in row and "timestamp" not in row)
        or isinstance(time, str)
        or isinstance(row.get("hash_ids"), dict)
        or is_seconds
    )
