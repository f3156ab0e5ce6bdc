"""Bytes and stamps outside of forwards: writes, copies, host store, remote deliveries, digests."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace import events as ev
from tests.replay.driving import DEVICES, insert, one_request, replay_events, slots, small_header

TAIL = "TAIL_K_FULL"
RUN = np.arange(8, 12)


@pytest.fixture(params=DEVICES)
def run(request):
    def replay(*added, at=2, events=None, header=None):
        stream = insert(one_request() if events is None else events, at, *added)
        return replay_events(header or small_header(), stream, request.param)

    return replay


def damaged(found) -> set[int]:
    return {slot for _, _, slot, _ in found.signature()}


@pytest.mark.parametrize("op", ["write", "zero"])
def test_replaced_bytes_differ_from_the_stamp(run, op):
    found = run(ev.Kv(op=op, slots=RUN))
    assert damaged(found) == set(RUN.tolist())
    assert {row[1] for row in found.signature()} == {TAIL}


def test_copied_bytes_belong_to_another_slot(run):
    found = run(ev.Kv(op="copy", slots=slots(9), from_=slots(8)))
    assert damaged(found) == {9}


def test_copies_read_before_they_write(run):
    swap = ev.Kv(op="copy", slots=slots(8, 9), from_=slots(9, 8))
    assert damaged(run(swap)) == {8, 9}
    assert damaged(run(swap, swap)) == set()


def test_only_named_sources_are_touched(run):
    header = small_header(
        sources=[
            ev.Source(name="k", bytes_per_slot=32, hashed_bytes=16),
            ev.Source(name="scales", bytes_per_slot=16, hashed_bytes=0),
        ]
    )
    assert damaged(run(ev.Kv(op="zero", slots=RUN, sources=["scales"]), header=header)) == set()
    assert damaged(run(ev.Kv(op="zero", slots=RUN, sources=["k"]), header=header)) == set(RUN.tolist())
    # byte 20 of k lies beyond the 16 bytes that are hashed
    assert damaged(run(ev.Kv(op="flip", slots=RUN, byte=20, xor=1), header=header)) == set()


def test_bytes_and_stamps_can_go_to_the_host_and_come_back(run):
    found = run(
        ev.Offload(key="h", slots=RUN),
        ev.Kv(op="zero", slots=RUN),
        ev.Stamp(slot=8, field="token", xor=1),
        ev.Reload(key="h", slots=RUN),
    )
    assert found.signature() == []


def test_a_partial_reload_leaves_the_rest(run):
    found = run(
        ev.Offload(key="h", slots=RUN), ev.Kv(op="zero", slots=RUN), ev.Reload(key="h", slots=RUN, count=3)
    )
    assert damaged(found) == {11}


def test_bytes_alone_may_come_back(run):
    flip = ev.Stamp(slot=9, field="kv_hash", xor=1)
    found = run(ev.Offload(key="h", slots=RUN), flip, ev.Reload(key="h", slots=RUN, stamps=False))
    assert damaged(found) == {9}


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (ev.Reload(key="other", slots=RUN), "key 'other' is reloaded, but nothing was offloaded under it"),
        (ev.Reload(key="h", slots=np.arange(8, 13)), "5 slots are reloaded from key 'h', which holds 4"),
        (ev.Xfer(id="t", op="done"), "transfer 't' is done, but neither it nor its start names slots"),
        (
            ev.Xfer(id="t", op="done", rid="A", slots=RUN, tokens=[1, 2]),
            "4 slots are delivered with 2 tokens; 4 are needed, or 4 with those before position 0",
        ),
        (
            ev.Xfer(id="t", op="done", rid="B", slots=RUN, at=3, tokens=[1, 2, 3, 4]),
            "the delivery continues at position 3, but 'B' has no row to continue from",
        ),
    ],
    ids=["unknown-key", "too-many", "no-slots", "few-tokens", "no-row"],
)
def test_events_that_mean_nothing_are_input_errors(event, message):
    events = insert(one_request(), 2, ev.Offload(key="h", slots=RUN), event)
    with pytest.raises(InputError, match=r"test\.jsonl:") as caught:
        replay_events(small_header(), events)
    assert caught.value.message == message


def delivery(**changes) -> list[ev.Event]:
    """B's first 6 tokens arrive from elsewhere, then it decodes two."""
    tokens = [300 + position for position in range(9)]
    done: dict[str, object] = {
        "id": "t",
        "op": "done",
        "rid": "B",
        "slots": np.arange(24, 30),
        "tokens": tokens[:6],
    }
    return [
        ev.Bind(row=2, rid="B"),
        ev.Truth(rid="B", at=0, tokens=tokens),
        ev.Alloc(to="B", slots=np.arange(24, 36)),
        ev.Map(row=2, at=0, slots=np.arange(24, 36)),
        ev.Xfer(id="t", op="start", rid="B", slots=np.arange(24, 30)),
        ev.Xfer(**(done | changes)),
        ev.Forward(rows=[2], prefix=[6], lens=[1]),
        ev.Forward(rows=[2], prefix=[7], lens=[1]),
    ]


def test_what_is_delivered_is_what_a_forward_would_have_made(run):
    assert run(events=delivery()).signature() == []
    assert run(events=delivery(slots=None)).signature() == []


def test_a_delivery_can_go_on_from_the_row(run):
    events = delivery(slots=np.arange(24, 27), tokens=[300, 301, 302])
    rest = ev.Xfer(id="u", op="done", rid="B", slots=np.arange(27, 30), at=3, tokens=[303, 304, 305])
    assert run(events=[*events[:6], rest, *events[6:]]).signature() == []


def test_a_delivery_can_bring_the_tokens_before_it(run):
    events = delivery(slots=np.arange(24, 27), tokens=[300, 301, 302])
    tokens = [300 + position for position in range(6)]
    rest = ev.Xfer(id="u", op="done", rid="gone", slots=np.arange(27, 30), at=3, tokens=tokens)
    assert run(events=[*events[:6], rest, *events[6:]]).signature() == []


def test_a_torn_delivery_looks_never_stamped(run):
    found = run(events=delivery(count=4))
    assert damaged(found) == {28, 29, 30}  # 30 is written from a seed that was never stamped
    assert (0, TAIL, 28, ("chain_hash", "position", "verify_token")) in found.signature()


def test_a_delivery_without_stamps_leaves_the_old_ones(run):
    found = run(events=delivery(stamps=False))
    assert damaged(found) >= set(range(24, 30))


def test_a_missing_source_shows_on_every_slot(run):
    header = small_header(
        sources=[
            ev.Source(name="k", bytes_per_slot=32, hashed_bytes=32),
            ev.Source(name="scales", bytes_per_slot=16, hashed_bytes=16),
        ]
    )
    assert run(events=delivery(), header=header).signature() == []
    found = run(events=delivery(sources=["k"]), header=header)
    assert damaged(found) == set(range(24, 30))
    assert {reasons for *_, reasons in found.signature()} == {("real_kv_hash",)}


def test_digests_of_the_real_pool_must_not_change_without_a_write():
    first, other = "0x00000000000000aa", "0x00000000000000bb"
    same = [ev.Digest(source="k", slots=slots(8), hash=[first])] * 2
    changed = ev.Digest(source="k", slots=slots(8), hash=[other])
    assert replay_events(small_header(), [*one_request(), *same]).result.digest_mismatches == []
    (mismatch,) = replay_events(small_header(), [*one_request(), *same, changed]).result.digest_mismatches
    assert (mismatch.slot, mismatch.source, mismatch.stored, mismatch.expected) == (8, "k", other, first)
    rewritten = ev.Kv(op="write", slots=slots(8), by="A")
    assert (
        replay_events(small_header(), [*one_request(), *same, rewritten, changed]).result.digest_mismatches
        == []
    )
