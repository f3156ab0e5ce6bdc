"""Which format a file has, told from its first line and never from its name."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from math import isfinite
from typing import Any

from kvcanary_cli.errors import InputError, UsageError, nearest
from kvcanary_cli.trace.csv_formats import CSV_FORMATS, csv_format
from kvcanary_cli.trace.event_marks import looks_like_events
from kvcanary_cli.trace.files import ByteReader, LineError, open_bytes
from kvcanary_cli.trace.files import reads_once as reads_once
from kvcanary_cli.trace.request_trace import Format, ReadOptions, RequestTrace

TRACE_V1 = "trace-v1"
KV_EVENTS = "kv-events"
MOONCAKE = "mooncake"
SHOWN = 80  # characters of the first line that a message repeats
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE_ALIASES = ("created_time", "input_tokens", "output_tokens", "text_input", "messages", "payload")
_JSON_FORMATS = {
    MOONCAKE: "mooncake:FORMAT",
    "mooncake-delta": "mooncake_delta:FORMAT",
    "bailian": "bailian:FORMAT",
    "llmservingsim": "llmservingsim:FORMAT",
    "ragpulse": "ragpulse:FORMAT",
    "weka": "weka:FORMAT",
    "servegen": "servegen:FORMAT",
    "dynamo": "dynamo_trace:FORMAT",
    "dynamo-agentic": "dynamo_agentic:FORMAT",
    "applied-compute": "applied_compute:FORMAT",
    "lmcache-lookup": "lmcache_log:FORMAT",
}
# one of these sets of keys in the first row tells the format; tried in this order
_MARKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("ev",), TRACE_V1),
    (("requests", "block_size"), "weka"),
    (("chat_id", "parent_chat_id"), "bailian"),
    (("input_toks",), "llmservingsim"),
    (("sub_requests",), "llmservingsim"),
    (("num_turns", "input_prompt_length"), "applied-compute"),
    (("seq_len", "chunk_hashes"), "lmcache-lookup"),
)
_SCHEMAS = ("dynamo.agentic_mooncake", "dynamo.request.trace")
_TEXTS = ("conversations", "prompt", "messages", "text_input")
_LENGTHS = ("input_length", "input_tokens", "output_length", "output_tokens", "timestamp", "ev")
_ALL_KEYS = (
    *dict.fromkeys(key for keys, _ in _MARKS for key in keys),
    *MOONCAKE_KEYS,
    *MOONCAKE_ALIASES,
    "schema",
)


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
    if name == KV_EVENTS:
        raise InputError(
            "is a KV event stream, a request trace is needed",
            where="<stdin>" if path == "-" else path,
            hint="`kvcanary replay FILE` audits a KV event stream",
        )
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
    names = (TRACE_V1, *REQUEST_FORMATS, KV_EVENTS)
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


def _first_line(source: Iterator[bytes]) -> bytes:
    """The first line that is not blank."""
    return next(line for line in source if not line.isspace())


def _of_line(line: bytes, source: ByteReader) -> str | None:
    """The format whose keys a line has; a damaged line counts too, as its reader can say what is wrong."""
    if line.lstrip().startswith(b"["):
        # files that begin otherwise are refused as soon as they are opened
        return KV_EVENTS
    if not line.lstrip().startswith(b"{"):
        return _of_header(line)
    is_longer = line.strip() == b"{"
    if is_longer:
        line += source.read()
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = _visible_keys(line)
    found = _of_object(row) if isinstance(row, dict) else None
    # an object over several lines is a whole file
    return found if not is_longer or found in ("weka", KV_EVENTS) else None


def _visible_keys(line: bytes) -> dict[str, Any]:
    """What can be seen of an object that is no JSON text."""
    row: dict[str, Any] = dict.fromkeys(key for key in _ALL_KEYS if b'"%s"' % key.encode() in line)
    if "schema" in row:
        found = [schema for schema in _SCHEMAS if b'"%s' % schema.encode() in line]
        row["schema"] = found[0] if found else None
    return row


def _of_header(line: bytes) -> str | None:
    """The CSV format whose header this is."""
    try:
        cells = next(csv.reader([line.decode().strip()]), [])
    except csv.Error:
        return None
    return csv_format(cells)


def _of_object(row: dict[str, Any]) -> str | None:
    """The format of the first row; LineError for what is known to be no request trace."""
    if looks_like_events(row):
        return KV_EVENTS
    for keys, name in _MARKS:
        if all(key in row for key in keys):
            return name
    schema = row.get("schema")
    if isinstance(schema, str) and schema.startswith("dynamo."):
        return "dynamo-agentic" if schema.startswith(_SCHEMAS[0]) else "dynamo"
    if row.get("event_type") == "request_payload":
        return "dynamo"
    if "session_id" in row and isinstance(row.get("hash_ids"), dict):
        return "ragpulse"
    if "request_id" in row and "type" in row and "timestamp" not in row and "input_length" in row:
        return "servegen"
    if "token_length" in row and any(key.endswith("_id") for key in row):
        raise LineError(
            "is a side table of RAGPulse, with the lengths of pieces",
            hint="the trace itself has the requests; its side tables are found beside it",
        )
    if row.get("type") == "master_rpc_trace":
        raise LineError("is a log of Mooncake's store, whose operations are no requests")
    if any(key in row for key in _TEXTS) and not any(key in row for key in _LENGTHS):
        raise LineError("is a data set of texts: it has no arrival times and no lengths in tokens")
    if sum(key in row for key in (*MOONCAKE_KEYS, *MOONCAKE_ALIASES)) < 2 or _is_other_trace(row):
        return None
    return MOONCAKE


def _is_other_trace(row: dict[str, object]) -> bool:
    """Whether a row with Mooncake's keys means something else by them: text and fractions are no whole ms."""
    time = row.get("timestamp")
    is_seconds = isinstance(time, float) and isfinite(time) and not time.is_integer()
    is_foreign = any(key in row for key in ("chat_id", "schema", "event"))
    return is_foreign or is_seconds or isinstance(time, str) or isinstance(row.get("hash_ids"), dict)
