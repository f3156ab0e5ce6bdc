"""Request traces written for a test, and what reading them gives or says."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.formats import open_requests
from kvcanary_cli.trace.request_trace import ReadOptions


def changed(base, **changes):
    """`base` with other values; a value of ... leaves the key out."""
    return {key: value for key, value in {**base, **changes}.items() if value is not ...}


def written(tmp_path, rows, name="t.jsonl"):
    """Path of a file with these rows: texts, or values that become JSON."""
    path = tmp_path / name
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def read(tmp_path, *rows, format_name=None, **options):
    return open_requests(
        written(tmp_path, rows), format_name=format_name, options=ReadOptions(**options) if options else None
    )


def refusal(tmp_path, *rows, format_name=None, **options):
    """The message without the folder."""
    with pytest.raises(InputError) as caught:
        read(tmp_path, *rows, format_name=format_name, **options)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def notes(trace):
    return {note.text: note.count for note in trace.notes}
