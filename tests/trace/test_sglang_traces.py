"""Traces recorded from SGLang's own classes are read without error, and nothing of them is lost."""

from __future__ import annotations

import collections
import gzip
import json
from pathlib import Path

import pytest

from kvcanary_cli.trace.events import Header
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import encode_event

FOLDER = Path(__file__).parents[1] / "traces" / "sglang-classes"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())


@pytest.mark.parametrize("name", MANIFEST)
def test_events_are_those_of_the_manifest(name):
    with open_trace(str(FOLDER / f"{name}.jsonl.gz")) as reader:
        counts = collections.Counter(event.__struct_config__.tag for _, event in reader)
    assert counts == MANIFEST[name]["events"]
    assert reader.bad_lines == []


@pytest.mark.parametrize("name", MANIFEST)
def test_our_writer_gives_the_recorded_lines(name):
    path = FOLDER / f"{name}.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).split(b"\n")
    with open_trace(str(path)) as reader:
        for number, event in reader:
            assert encode_event(event) == lines[number - 1], f"line {number}"


def test_header_of_a_paged_pool():
    with open_trace(str(FOLDER / "clean_p16.jsonl.gz")) as reader:
        head = reader.header
    assert isinstance(head, Header)
    assert (head.pool.slots, head.pool.page_size, head.pool.rows, head.pool.row_width) == (240, 16, 7, 160)
    assert head.capacities is not None
    assert head.capacities.verify_capacity == 672
    assert head.producer is not None
    assert head.producer["name"] == "sglang"
