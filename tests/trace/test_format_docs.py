"""`docs/trace-format.md` against the code: every event and key, every example, every message it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.decode import LineDecoder
from kvcanary_cli.trace.events import EVENT_TYPES
from tests.trace.samples import read_trace, trace_error, write_trace

PAGE = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text(encoding="utf-8")
BLOCKS = [block.splitlines() for block in re.findall(r"```jsonl\n(.*?)```", PAGE, re.DOTALL)]
MESSAGES = re.findall(r"^\| `(\{.*\})` \| `(.*)` \|$", PAGE, re.MULTILINE)
PARTS = (ev.Pool, ev.Group, ev.Source, ev.Capacities, ev.Continues)


@pytest.mark.parametrize("name", [name for name in EVENT_TYPES if name not in ("header", "note")])
def test_every_event_has_an_example_with_all_its_keys(name):
    """Together the examples of an event show each of its keys but `t`, which all events share."""
    lines = [line for block in BLOCKS for line in block if f'"ev":"{name}"' in line]
    assert lines
    kind = EVENT_TYPES[name]
    shown = {key for key in kind.__struct_encode_fields__ if any(f'"{key}":' in line for line in lines)}
    told = {key for key in kind.__struct_encode_fields__ if f"`{key}`" in PAGE}
    layout = {"page_size", "dtype", "item_bytes", "scale", "group", "by", "t", "sources", "stamps"}
    assert set(kind.__struct_encode_fields__) - told <= {"t"}
    assert set(kind.__struct_encode_fields__) - shown <= layout


@pytest.mark.parametrize("kind", [ev.Header, *PARTS], ids=lambda kind: kind.__name__)
def test_every_key_of_a_header_is_in_the_example_and_in_a_table(kind):
    keys = set(kind.__struct_encode_fields__) - {"t"}
    assert {key for key in keys if f'"{key}":' not in BLOCKS[1][0]} == set()
    assert {key for key in keys if f"`{key}`" not in PAGE} == set()


def test_all_examples_are_events():
    decode = LineDecoder().decode
    for line in (line for block in BLOCKS for line in block):
        assert decode(line.encode())


def test_the_header_example_has_no_contradiction(tmp_path):
    assert read_trace(write_trace(tmp_path, head=BLOCKS[1][0])) == []


def test_the_whole_trace_is_read(tmp_path):
    events = read_trace(write_trace(tmp_path, *BLOCKS[0][1:], head=BLOCKS[0][0]))
    assert len(events) == len(BLOCKS[0]) - 1


def test_there_are_messages_to_compare():
    assert len(MESSAGES) == 8


@pytest.mark.parametrize(("line", "message"), MESSAGES, ids=[message[:30] for _, message in MESSAGES])
def test_messages_are_those_of_the_reader(tmp_path, line, message):
    error = trace_error(write_trace(tmp_path, line, head=BLOCKS[0][0]))
    assert str(error) == f"trace.jsonl:2: {message}"


def test_literals_are_told():
    for words in (
        "done cancel retract full swa k v empty unknown extend decode mixed verify draft idle",
        "write flip zero copy token position prev_hash kv_hash head tail start",
    ):
        assert [word for word in words.split() if f"`{word}`" not in PAGE] == []
