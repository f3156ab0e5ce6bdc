"""Which format a file has, told from its first line and never from its name."""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Iterator, Mapping
from importlib import import_module
from math import isfinite
from typing import Any

from kvcanary_cli.errors import InputError, UsageError, nearest
from kvcanary_cli.trace.csv_formats import CSV_FORMATS, csv_format
from kvcanary_cli.trace.files import LineError, open_bytes
from kvcanary_cli.trace.request_trace import Format, ReadOptions, RequestTrace

TRACE_V1 = "trace-v1"
MOONCAKE = "mooncake"
SHOWN = 80  # characters of the first line that a message repeats
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE_ALIASES = ("created_time", "input_tokens", "output_tokens", "text_input", "messages", "payload")
_JSON_FORMATS = {
    MOONCAKE: "mooncake:FORMAT",
}


class _Formats(Mapping[str, Format]):
    """Formats by name; the module of one is imported when it is asked for."""

    def __init__(self) -> None:
        self._places = _JSON_FORMATS | CSV_FORMATS

    def __getitem__(self, name: str) -> Format:
        module, _, attribute = self._places[name].partition(":")
        path = module if "." in module else f"kvcanary_cli.trace.{module}"
        found: Format = getattr(import_module(path), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


REQUEST_FORMATS: Mapping[str, Format] = _Formats()


def open_requests(
    path: str, *, format_name: str | None = None, options: ReadOptions | None = None
) -> RequestTrace:
    """The checked requests of a file.

    Args:
        path: "-" is standard input, whose format has to be named.
        format_name: a name of `REQUEST_FORMATS`; None: by content.

    Raises:
        InputError: the file can't be read, is no request trace, or has a bad row.
        UsageError: the format has no such name.
    """
    name = sniff(path) if format_name is None else known_format(format_name)
    if name == TRACE_V1:
        is_pipe = format_name is None and reads_once(path)
        raise InputError(
            "the format of a pipe has to be named" if is_pipe else "is a trace v1, a request trace is needed",
            where="<stdin>" if path == "-" else path,
            hint="`--input-format NAME`, one of " + ", ".join(REQUEST_FORMATS) if is_pipe else None,
        )
    return RequestTrace(path, REQUEST_FORMATS[name], options)


def known_format(name: str) -> str:
    """`name` itself; UsageError that names the closest if there is no such format."""
    names = (TRACE_V1, *REQUEST_FORMATS)
    if name in names:
        return name
    close = nearest(name, names)
    raise UsageError(
        f"`--input-format` is {name!r}, known are {', '.join(names)}",
        hint=f"did you mean {close}?" if close else None,
    )


def sniff(path: str) -> str:
    """The format of the file at `path`; a pipe, "-" included, can't be looked at twice and counts as trace v1.

    Raises: InputError for a file that can't be read or whose first line belongs to no known format.
    """
    if reads_once(path):
        return TRACE_V1
    name, source = open_bytes(path)
    with source:
        line = _first_line(source)
        number = source.line
        try:
            found = _of_line(line, source)
        except LineError as error:
            error.where = error.where or f"{name}:{number}"
            raise
    if found is None:
        text = line.decode(errors="replace").strip()
        shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
        raise InputError(
            f"the format is not known, the first line is: {shown}",
            where=f"{name}:{number}",
            hint=f"`--input-format NAME` forces one of {', '.join(REQUEST_FORMATS)}",
        )
    return found


def reads_once(path: str) -> bool:
    """Whether reading from the path takes away what is read."""
    if path == "-":
        return True
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _first_line(source: Iterator[bytes]) -> bytes:
    """The first line that is not blank."""
    return next(line for line in source if not line.isspace())


def _of_line(line: bytes, source: Any) -> str | None:
    """The format whose keys a line has; a damaged line counts too, as its reader can say what is wrong."""
    if b"{" not in line:
        return _of_header(line)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        keys = ("ev", *MOONCAKE_KEYS)
        row = {key: None for key in keys if b'"%s"' % key.encode() in line}
    return _of_object(row) if isinstance(row, dict) else None


def _of_header(line: bytes) -> str | None:
    """The CSV format whose header this is."""
    try:
        cells = next(csv.reader([line.decode().strip()]), [])
    except csv.Error:
        return None
    return csv_format(cells)


def _of_object(row: dict[str, Any]) -> str | None:
    if "ev" in row:
        return TRACE_V1
    keys = (*MOONCAKE_KEYS, *MOONCAKE_ALIASES)
    if sum(key in row for key in keys) < 2 or _is_other_trace(row):
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
        or ("request_id" in row and "type" in row and "timestamp" not in row)
        or isinstance(time, str)
        or isinstance(row.get("hash_ids"), dict)
        or is_seconds
    )
