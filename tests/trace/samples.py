"""Small traces and events that several tests of the trace package use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import open_trace

# 64 full slots and 16 window slots of page size 1, rows 0 to 4, one byte source for each group
HEADER: dict[str, Any] = {
    "ev": "header",
    "format": "kvcanary-trace",
    "version": 1,
    "pool": {"slots": 64, "page_size": 1, "rows": 5, "row_width": 32},
    "groups": [{"kind": "full"}, {"kind": "swa", "window": 4, "slots": 16}],
    "sources": [
        {"name": "k", "bytes_per_slot": 64, "hashed_bytes": 16},
        {"name": "kw", "bytes_per_slot": 32, "hashed_bytes": 0, "group": "swa"},
    ],
}


def header(**changes: Any) -> ev.Header:
    """A header struct as HEADER, without window group and sources."""
    keys: dict[str, Any] = {"format": "kvcanary-trace", "version": 1}
    keys["pool"] = ev.Pool(slots=64, rows=5, row_width=32)
    return ev.Header(**(keys | changes))


def write_trace(folder: Path, *lines: object, head: object = HEADER) -> str:
    """A trace of these lines; what is not text is written as JSON. Line 1 is the header."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in (head, *lines)]
    path = folder / "trace.jsonl"
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return str(path)


def read_trace(path: str, **options: Any) -> list[tuple[int, ev.Event]]:
    with open_trace(path, **options) as reader:
        return list(reader)


def trace_error(path: str) -> InputError:
    """The error of reading a trace, with the folder taken out of its place."""
    with pytest.raises(InputError) as caught:
        read_trace(path)
    caught.value.where = (caught.value.where or "").replace(path, Path(path).name)
    return caught.value


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)
