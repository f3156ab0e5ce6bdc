"""What is written is what is read, for every kind of event and compression."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.events import EVENT_TYPES, same_event
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import TraceWriter, encode_event
from tests.trace.samples import header
from tests.trace.strategies import BY_KIND, headers

any_event = st.one_of(*BY_KIND.values())
# tmp_path is shared by the examples of one test, each overwrites the file
settings.register_profile(
    "files", suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True
)
quick = settings(settings.get_profile("files"), max_examples=12)
thorough = settings(settings.get_profile("files"), max_examples=1000)


def write_and_read(path: Path, head: ev.Header, events: list[ev.Event]) -> tuple[ev.Header, list[ev.Event]]:
    with TraceWriter(str(path), head) as writer:
        for event in events:
            writer.write(event)
    with open_trace(str(path)) as reader:
        return reader.header, [event for _, event in reader]


def test_every_event_has_a_strategy():
    assert set(BY_KIND) | {"header", "note"} == set(EVENT_TYPES)


@pytest.mark.parametrize("kind", BY_KIND)
@quick
@given(data=st.data())
def test_each_kind(tmp_path, kind, data):
    events = data.draw(st.lists(BY_KIND[kind], min_size=1, max_size=3))
    head = header(
        pool=ev.Pool(slots=512, rows=9, row_width=32),
        groups=[ev.Group(kind="full"), ev.Group(kind="swa", window=8, slots=64)],
        sources=[
            ev.Source(name="k", bytes_per_slot=64, hashed_bytes=16),
            ev.Source(name="kw", bytes_per_slot=64, hashed_bytes=0, group="swa"),
        ],
    )
    before = copy.deepcopy(events)
    _, got = write_and_read(tmp_path / "t.jsonl", head, events)
    assert len(got) == len(events)
    assert all(map(same_event, events, got))
    assert all(map(same_event, events, before)), "writing changed an event"


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@quick
@given(head=headers(), events=st.lists(any_event, max_size=8), times=st.lists(st.floats(0, 9), max_size=8))
def test_whole_traces(tmp_path, suffix, head, events, times):
    check_whole_trace(tmp_path / f"t.jsonl{suffix}", head, events, times)


@pytest.mark.slow
@thorough
@given(head=headers(), events=st.lists(any_event, max_size=8), times=st.lists(st.floats(0, 9), max_size=8))
def test_many_whole_traces(tmp_path, head, events, times):
    check_whole_trace(tmp_path / "t.jsonl", head, events, times)


def check_whole_trace(path: Path, head: ev.Header, events: list[ev.Event], times: list[float]) -> None:
    for event, time in zip(events, sorted(times), strict=False):
        event.t = time
    got_head, got = write_and_read(path, head, [ev.Note(text="skip"), *events])
    assert same_event(got_head, head)
    assert len(got) == len(events)
    assert all(map(same_event, events, got))


@quick
@given(head=headers(), event=any_event)
def test_what_was_read_is_written_with_the_same_bytes(tmp_path, head, event):
    got_head, (got,) = write_and_read(tmp_path / "t.jsonl", head, [event])
    assert encode_event(got) == encode_event(event)
    assert encode_event(got_head) == encode_event(head)


@pytest.mark.parametrize("kind", BY_KIND)
@quick
@given(data=st.data())
def test_events_that_differ_in_one_field_are_not_the_same(kind, data):
    first, second = data.draw(st.tuples(BY_KIND[kind], BY_KIND[kind]))
    one_line = encode_event(first) == encode_event(second)
    assert same_event(first, second) == one_line
    assert same_event(first, copy.deepcopy(first))
    assert not same_event(first, msgspec.structs.replace(first, t=1.0))
