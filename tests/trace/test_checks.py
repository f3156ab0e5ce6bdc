"""Events against the header: what is an error, and what is left to ledger and kernels."""

from __future__ import annotations

import pytest

from tests.trace.samples import HEADER, read_trace, trace_error, write_trace


def event(ev, **keys):
    return {"ev": ev, **keys}


LEGAL = [
    event("bind", row=0, rid="A"),
    event("bind", row=4, rid="A"),
    event("end", rid="unknown", why="cancel"),
    event("truth", rid="A", at=0, tokens=[]),
    event("share", rid="not-bound", at=0, slots=[1, 1]),
    event("alloc", to="A", slots=[0, 63]),
    event("alloc", to="cache", slots=[1]),
    event("alloc", to="xfer:t1", slots=[15], group="swa"),
    event("hold", to="xfer:t1", slots=[5]),
    event("publish", at=3, slots=[0, 9], tokens=[1, 2], after=63),
    event("free", by="nobody", slots=[7, 7]),
    event("evict", slots=[[0, 64]]),
    event("map", row=4, at=31, slots=[1, 0, 2]),
    event("map", row=4, at=100_000, slots=[1]),
    event("swa_map", full=[63, 1], swa=[15, 0]),
    event("gap", forwards=None),
    event("gap", forwards=3, why="queue full"),
    event("kv", op="write", slots=[1]),
    event("kv", op="flip", slots=[1], byte=63, xor=255),
    event("kv", op="flip", slots=[1], byte=31, xor=1, group="swa"),
    event("kv", op="copy", slots=[[1, 3]], **{"from": [9, 9, 9]}),
    event("kv", op="zero", slots=[1], sources=["k"], by="A"),
    event("stamp", slot=0, field="kv_hash", xor=-1, buffer="head"),
    event("stamp", slot=15, field="token", xor=1, group="swa"),
    event("offload", key="h1", slots=[1], page_size=64, dtype="fp8", item_bytes=1, scale="v2"),
    event("reload", key="h1", slots=[1, 2], count=2, sources=["k"], stamps=False),
    event("reload", key="h1", slots=[1], count=0),
    event("xfer", id="t", op="start", rid="A", slots=[1, 2]),
    event("xfer", id="t", op="start", slots=[1], scale=2),
    event("xfer", id="t", op="done", tokens=[1, 2]),
    event("xfer", id="t", op="done", rid="A", at=2, slots=[1], tokens=[7], count=1),
    event("xfer", id="t", op="done", at=2, slots=[1], tokens=[5, 6, 7], stamps=False, sources=["k"]),
    event("xfer", id="t", op="cancel", rid="A"),
    event("digest", source="k", slots=[1, 2], hash=["0x1f0c52d7a93e66b4", "0x0"]),
    event("digest", source="kw", group="swa", slots=[15], hash=["0xAB"]),
    event("sweep"),
]


@pytest.mark.parametrize("line", LEGAL, ids=lambda line: f"{line['ev']}-{len(str(line))}")
def test_what_an_engine_may_have_done_is_no_error(tmp_path, line):
    assert len(read_trace(write_trace(tmp_path, line))) == 1


BAD = [
    (event("alloc", to="A", slots=[1, 2, 3, 64]), "$.slots[3]: slot 64 is outside the pool (0 to 63)"),
    (event("alloc", to="A", slots=[1, [60, 10], 99]), "$.slots[1]: slot 64 is outside the pool (0 to 63)"),
    (event("alloc", to="A", slots=[[1, 4], -1]), "$.slots[1]: slot -1 is outside the pool (0 to 63)"),
    (event("alloc", to="A", slots=[-3]), "$.slots[0]: slot -3 is outside the pool (0 to 63)"),
    (event("alloc", to="A", slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (
        event("alloc", to="A", slots=[16], group="swa"),
        "$.slots[0]: slot 16 is outside the window pool (0 to 15)",
    ),
    (event("free", by="A", slots=[1, 64]), "$.slots[1]: slot 64 is outside the pool (0 to 63)"),
    (
        event("free", by="A", slots=[1, 16], group="swa"),
        "$.slots[1]: slot 16 is outside the window pool (0 to 15)",
    ),
    (event("evict", slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("evict", slots=[16], group="swa"), "$.slots[0]: slot 16 is outside the window pool (0 to 15)"),
    (event("hold", to="A", slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("share", rid="A", at=0, slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("publish", at=0, slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("publish", at=0, slots=[1], after=64), "$.after: slot 64 is outside the pool (0 to 63)"),
    (
        event("publish", at=0, slots=[[1, 4]], tokens=[1, 2]),
        "$.tokens: tokens has length 2, slots has length 4",
    ),
    (event("map", row=1, at=0, slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("map", row=5, at=0, slots=[1]), "$.row: row 5 is outside the page table (0 to 4)"),
    (event("bind", row=5, rid="A"), "$.row: row 5 is outside the page table (0 to 4)"),
    (event("unbind", row=5), "$.row: row 5 is outside the page table (0 to 4)"),
    (event("move", row=5, rid="A"), "$.row: row 5 is outside the page table (0 to 4)"),
    (event("bind", row=1, rid="cache"), '$.rid: "cache" names a holder that is no request'),
    (event("move", row=1, rid="cache"), '$.rid: "cache" names a holder that is no request'),
    (event("truth", at=0, tokens=[1], rid="xfer:1"), '$.rid: "xfer:1" names a holder that is no request'),
    (event("end", why="done", rid="cache"), '$.rid: "cache" names a holder that is no request'),
    (event("share", at=0, slots=[1], rid="cache"), '$.rid: "cache" names a holder that is no request'),
    (event("publish", at=0, slots=[1], rid="cache"), '$.rid: "cache" names a holder that is no request'),
    (
        event("xfer", id="t", op="cancel", rid="xfer:t"),
        '$.rid: "xfer:t" names a holder that is no request',
    ),
    (event("swa_map", full=[1, 2], swa=[1]), "$.swa: swa has length 1, full has length 2"),
    (event("swa_map", full=[64], swa=[1]), "$.full[0]: slot 64 is outside the pool (0 to 63)"),
    (
        event("swa_map", full=[[1, 4]], swa=[[1, 3], 16]),
        "$.swa[1]: slot 16 is outside the window pool (0 to 15)",
    ),
    (event("kv", op="write", slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("kv", op="flip", slots=[1], xor=1), '$: key "byte" is missing, op "flip" needs it'),
    (event("kv", op="flip", slots=[1], byte=1), '$: key "xor" is missing, op "flip" needs it'),
    (event("kv", op="zero", slots=[1], byte=1), '$.byte: op "zero" has no key "byte"'),
    (event("kv", op="write", slots=[1], xor=1), '$.xor: op "write" has no key "xor"'),
    (event("kv", op="write", slots=[1], **{"from": [2]}), '$.from: op "write" has no key "from"'),
    (event("kv", op="copy", slots=[1]), '$: key "from" is missing, op "copy" needs it'),
    (
        event("kv", op="copy", slots=[1], **{"from": [2, 3]}),
        "$.from: from has length 2, slots has length 1",
    ),
    (
        event("kv", op="copy", slots=[1, 2], **{"from": [3, 64]}),
        "$.from[1]: slot 64 is outside the pool (0 to 63)",
    ),
    (
        event("kv", op="flip", slots=[1], byte=64, xor=1),
        '$.byte: byte 64 is outside source "k" (0 to 63)',
    ),
    (
        event("kv", op="flip", slots=[1], byte=32, xor=1, group="swa", sources=["kw"]),
        '$.byte: byte 32 is outside source "kw" (0 to 31)',
    ),
    (
        event("kv", op="zero", slots=[1], sources=["k", "kk"]),
        '$.sources[1]: unknown source "kk", did you mean "k"?',
    ),
    (event("kv", op="zero", slots=[1], sources=["zzz"]), '$.sources[0]: unknown source "zzz"'),
    (
        event("kv", op="zero", slots=[1], sources=[]),
        "$.sources: the list is empty, it needs at least 1 source",
    ),
    (
        event("kv", op="zero", slots=[1], sources=["kw"]),
        '$.sources[0]: source "kw" is of group "swa", the event is of group "full"',
    ),
    (event("stamp", slot=64, field="token", xor=1), "$.slot: slot 64 is outside the pool (0 to 63)"),
    (
        event("stamp", slot=16, field="token", xor=1, group="swa"),
        "$.slot: slot 16 is outside the window pool (0 to 15)",
    ),
    (event("stamp", slot=1, field="token", xor=0), "$.xor: xor is 0, which changes nothing"),
    (event("offload", key="h", slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("reload", key="h", slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (event("reload", key="h", slots=[1, 2], count=3), "$.count: count is 3, slots has length 2"),
    (event("reload", key="h", slots=[1], sources=["v"]), '$.sources[0]: unknown source "v"'),
    (event("xfer", id="t", op="start", rid="A"), '$: key "slots" is missing, op "start" needs it'),
    (event("xfer", id="t", op="start", slots=[64]), "$.slots[0]: slot 64 is outside the pool (0 to 63)"),
    (
        event("xfer", id="t", op="start", slots=[1], tokens=[1]),
        '$.tokens: op "start" has no key "tokens"',
    ),
    (event("xfer", id="t", op="start", slots=[1], at=1), '$.at: op "start" has no key "at"'),
    (
        event("xfer", id="t", op="start", slots=[1], stamps=False),
        '$.stamps: op "start" has no key "stamps"',
    ),
    (event("xfer", id="t", op="done"), '$: key "tokens" is missing, op "done" needs it'),
    (
        event("xfer", id="t", op="done", slots=[3, 4], tokens=[1]),
        "$.tokens: tokens has length 1, 2 is expected (one a slot)",
    ),
    (
        event("xfer", id="t", op="done", slots=[3, 4], tokens=[1], at=3),
        "$.tokens: tokens has length 1, 2 is expected (one a slot, or 5 with those before at)",
    ),
    (
        event("xfer", id="t", op="done", slots=[3], tokens=[1], count=2),
        "$.count: count is 2, slots has length 1",
    ),
    (
        event("xfer", id="t", op="done", slots=[3], tokens=[1], sources=["kw"]),
        '$.sources[0]: source "kw" is of group "swa", the event is of group "full"',
    ),
    (event("xfer", id="t", op="cancel", slots=[1]), '$.slots: op "cancel" has no key "slots"'),
    (
        event("digest", source="q", slots=[1], hash=["0x1"]),
        '$.source: unknown source "q"',
    ),
    (
        event("digest", source="kw", slots=[1], hash=["0x1"]),
        '$.source: source "kw" is of group "swa", the event is of group "full"',
    ),
    (
        event("digest", source="k", slots=[1, 2], hash=["0x1"]),
        "$.hash: hash has length 1, slots has length 2",
    ),
    (
        event("digest", source="k", slots=[64], hash=["0x1"]),
        "$.slots[0]: slot 64 is outside the pool (0 to 63)",
    ),
    (HEADER, "$.ev: a second header"),
]


@pytest.mark.parametrize(
    ("line", "message"), BAD, ids=[f"{line['ev']}-{n}" for n, (line, _) in enumerate(BAD)]
)
def test_errors(tmp_path, line, message):
    error = trace_error(write_trace(tmp_path, event("sweep"), line))
    assert str(error) == f"trace.jsonl:3: {message}"


def test_the_hint_lists_the_sources(tmp_path):
    error = trace_error(write_trace(tmp_path, event("kv", op="zero", slots=[1], sources=["v"])))
    assert error.hint == "sources of the header: k, kw"


FULL_ONLY = {key: value for key, value in HEADER.items() if key not in ("groups", "sources")}


@pytest.mark.parametrize(
    "line",
    [
        event("alloc", to="A", slots=[1], group="swa"),
        event("evict", slots=[1], group="swa"),
        event("kv", op="zero", slots=[1], group="swa"),
        event("stamp", slot=1, field="token", xor=1, group="swa"),
        event("reload", key="h", slots=[1], group="swa"),
        event("xfer", id="t", op="cancel", group="swa"),
        event("digest", source="k", slots=[1], hash=["0x1"], group="swa"),
    ],
    ids=lambda line: line["ev"],
)
def test_window_slots_without_a_window_group(tmp_path, line):
    error = trace_error(write_trace(tmp_path, line, head=FULL_ONLY))
    assert str(error) == 'trace.jsonl:2: $.group: the header has no group "swa"'


def test_a_window_map_without_a_window_group(tmp_path):
    error = trace_error(write_trace(tmp_path, event("swa_map", full=[1], swa=[1]), head=FULL_ONLY))
    assert str(error) == 'trace.jsonl:2: $.ev: the header has no group "swa" to map to'


def test_a_window_group_alone_has_the_slots_of_the_pool(tmp_path):
    head = FULL_ONLY | {"groups": [{"kind": "swa", "window": 4}]}
    assert read_trace(write_trace(tmp_path, event("alloc", to="A", slots=[63], group="swa"), head=head))
    error = trace_error(write_trace(tmp_path, event("alloc", to="A", slots=[64], group="swa"), head=head))
    assert str(error) == "trace.jsonl:2: $.slots[0]: slot 64 is outside the pool (0 to 63)"


def test_without_sources_every_byte_may_flip(tmp_path):
    assert read_trace(
        write_trace(tmp_path, event("kv", op="flip", slots=[1], byte=999, xor=1), head=FULL_ONLY)
    )
    error = trace_error(
        write_trace(tmp_path, event("kv", op="zero", slots=[1], sources=["k"]), head=FULL_ONLY)
    )
    assert error.hint == "sources of the header: none"


def test_time_does_not_run_backwards(tmp_path):
    steady = [event("sweep", t=1), event("sweep"), event("sweep", t=1.0), event("sweep", t=1.5)]
    assert len(read_trace(write_trace(tmp_path, *steady))) == 4
    error = trace_error(write_trace(tmp_path, *steady, event("unbind", row=1, t=1.25)))
    assert str(error) == "trace.jsonl:6: $.t: time is 1.25, the event before it has 1.5"


def test_the_time_of_the_header_counts(tmp_path):
    error = trace_error(write_trace(tmp_path, event("sweep", t=4), head=HEADER | {"t": 5}))
    assert str(error) == "trace.jsonl:2: $.t: time is 4.0, the event before it has 5.0"


def test_the_time_of_a_skipped_line_does_not_count(tmp_path):
    path = write_trace(tmp_path, event("unbind", row=9, t=7), event("sweep", t=3))
    assert [number for number, _ in read_trace(path, skip_bad_lines=True)] == [3]
