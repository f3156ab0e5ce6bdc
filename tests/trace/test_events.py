"""Event structs: names, equality, and what a header answers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.events import EVENT_TYPES, same_event
from tests.trace.samples import array, header


def test_the_events_of_format_1():
    assert list(EVENT_TYPES) == [
        "header", "bind", "unbind", "move", "end", "truth", "alloc", "hold", "share", "publish", "free",
        "evict", "map", "swa_map", "forward", "gap", "kv", "stamp", "offload", "reload", "xfer", "digest",
        "sweep", "note",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_every_event_is_documented_and_carries_a_time(kind):
    assert kind.__doc__
    assert kind is ev.Note or "t" in kind.__struct_fields__


def test_slot_lists_are_compared_by_value():
    a = ev.Alloc(to="A", slots=array(1, 2))
    assert same_event(a, ev.Alloc(to="A", slots=array(1, 2)))
    assert not same_event(a, ev.Alloc(to="A", slots=array(1, 3)))
    assert not same_event(a, ev.Alloc(to="A", slots=array(1)))
    assert not same_event(a, ev.Hold(to="A", slots=array(1, 2)))
    assert not same_event(ev.Forward(rows=[1], prefix=[0]), ev.Forward(rows=[1], prefix=[0], slots=array(1)))


@pytest.mark.parametrize(
    ("groups", "full", "swa"),
    [
        ([ev.Group(kind="full")], 64, 64),
        ([ev.Group(kind="full"), ev.Group(kind="swa", window=4, slots=16)], 64, 16),
        ([ev.Group(kind="swa", window=4)], 64, 64),
    ],
)
def test_slots_of_a_group(groups, full, swa):
    head = header(groups=groups)
    assert (head.num_slots("full"), head.num_slots("swa")) == (full, swa)
    assert head.group("swa") is next((group for group in groups if group.kind == "swa"), None)


def test_headers_do_not_share_their_default_lists():
    first, second = header(), header()
    first.groups.append(ev.Group(kind="swa", window=4))
    first.sources.append(ev.Source(name="k", bytes_per_slot=16, hashed_bytes=0))
    assert (len(second.groups), len(second.sources)) == (1, 0)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("kvcanary_cli.trace.files", ["numpy", "torch", "triton", "numba", "typer", "rich", "zstandard"]),
        ("kvcanary_cli.trace.reader", ["torch", "triton", "numba", "typer", "rich", "zstandard"]),
        ("kvcanary_cli.trace.writer", ["torch", "triton", "numba", "typer", "rich", "zstandard"]),
    ],
)
def test_reading_loads_no_heavy_package(module, absent):
    code = f"import sys, {module}; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
