"""Payloads of every release, byte for byte, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from kvcanary_cli.kvevents.decode import FIELDS, EventDecoder
from kvcanary_cli.kvevents.events import Cleared, Removed, Stored
from kvcanary_cli.kvevents.payload import decode_payload, unpack
from kvcanary_cli.trace.event_marks import EVENT_NAMES
from kvcanary_cli.trace.files import LineError
from tests.kvevents.streams import OLD, SGLANG, V09, V16, V20, V24

ONE = Stored(hashes=(1,), parent=None, tokens=[5, 6], block_size=2)
GROUP = Stored(hashes=(1,), parent=None, tokens=[5, 6], block_size=2, group=0)
FULL = Stored(hashes=(1,), parent=None, tokens=[5, 6], block_size=2, group=0, kind="full_attention")
MINUS_SEVEN = Stored(hashes=((1 << 64) - 7,), parent=None, tokens=[5, 6], block_size=2)


def decode(payload: bytes):
    decoder = EventDecoder()
    batch, line = decode_payload(payload, decoder)
    return batch, line, decoder


def packed(*events, rank=0):
    return msgspec.msgpack.encode([1.5, list(events), rank])


@pytest.mark.parametrize(
    ("payload", "events", "rank"),
    [
        (V09, [ONE], 0),
        (V16, [ONE], 0),
        (V20, [GROUP], 0),
        (V24, [FULL], 0),
        (SGLANG, [MINUS_SEVEN, Cleared()], 0),
        (OLD, [ONE, Removed(hashes=(1,)), Cleared()], None),
    ],
    ids=["vllm-0.9", "vllm-0.16", "vllm-0.20", "vllm-0.24", "sglang-0.5.23", "old-three"],
)
def test_every_release_is_decoded(payload, events, rank):
    batch, line, decoder = decode(bytes.fromhex(payload))
    assert (batch.events, batch.ts, batch.source.rank) == (events, 1.5, rank)
    assert (decoder.extra_items, decoder.unknown_keys) == (0, {})
    # what a recording keeps says the same
    again = EventDecoder().batch(msgspec.json.decode(msgspec.json.encode(line)))
    assert again.events == events


def test_batches_may_be_short_or_maps():
    store = ["BlockStored", [1], None, [5, 6], 2, None]
    for value in (
        [1.5, [store]],
        {"ts": 1.5, "events": [store], "data_parallel_rank": None},
        {"ts": 1.5, "events": [store]},
    ):
        batch, _, _ = decode(msgspec.msgpack.encode(value))
        assert (batch.events, batch.ts, batch.source.rank) == ([ONE], 1.5, None)
    batch, _, _ = decode(msgspec.msgpack.encode({"ts": 1, "events": [], "attn_dp_rank": 3}))
    assert batch.source.rank == 3


def test_shorter_arrays_are_accepted_and_extra_items_counted():
    batch, line, decoder = decode(
        packed(["BlockStored", [1]], ["BlockRemoved", [1], None, None, "new", 7], ["AllBlocksCleared", 1])
    )
    assert batch.events == [Stored(hashes=(1,), parent=None), Removed(hashes=(1,)), Cleared()]
    assert decoder.extra_items == 3
    again = EventDecoder()
    again.batch(line)
    assert again.extra_items == 3


def test_unknown_keys_are_counted():
    event = {"type": "AllBlocksCleared", "why": "reset"}
    _, line, decoder = decode(packed(event))
    assert decoder.unknown_keys == {"why": 1}
    assert line["events"] == [event]


def test_hashes_are_compared_modulo_2_to_the_64():
    top = (1 << 64) - 7
    digest = bytes(24) + top.to_bytes(8, "big")
    batch, line, _ = decode(packed(["BlockStored", [digest], digest, [5, 6], 2, None]))
    assert (batch.events[0].hashes, batch.events[0].parent) == ((top,), top)
    assert line["events"][0]["block_hashes"] == [digest.hex()]
    for value in (top, -7):
        assert EventDecoder().hash(value, "$") == top
    for value in (digest.hex(), "0x" + digest.hex(), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA//////////k="):
        assert EventDecoder().hash(value, "$") == top


@pytest.mark.parametrize(
    ("medium", "found"),
    [(None, "GPU"), ("GPU", "GPU"), ("device", "GPU"), ("CPU_PINNED", "CPU_PINNED"), ("disk", "DISK")],
)
def test_media(medium, found):
    batch, _, _ = decode(packed(["BlockRemoved", [1], medium]))
    assert batch.events[0].medium == found


def test_pairs_of_tokens_and_extra_keys():
    pairs = {"type": "BlockStored", "block_hashes": [1], "token_ids": [[5, 6], [6, 7]], "block_size": 2}
    batch, _, _ = decode(packed(pairs, {**pairs, "extra_keys": [["salt"]]}, {**pairs, "extra_keys": [None]}))
    assert [event.is_bigram for event in batch.events] == [True, True, True]
    assert [event.is_plain for event in batch.events] == [True, False, True]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (["BlockStord", [1]], "`BlockStord` is no event that is known"),
        ([1, [1]], "begins with its name as text"),
        ([], "begins with its name as text"),
        ({"block_hashes": [1]}, "begins with its name as text"),
        ("BlockStored", "an event is an array or a map, this is text"),
        (["BlockRemoved", 1], "block hashes are an array"),
        (["BlockRemoved", [1.5]], "a hash is a 64-bit integer or bytes, this is a number"),
        (["BlockRemoved", [True]], "a hash is a 64-bit integer or bytes, this is a truth value"),
        (["BlockRemoved", ["no hash"]], "a hash that is text is hex or base64"),
        (["BlockRemoved", [b""]], "a hash of no bytes"),
        (["BlockRemoved", [1, b"12345678"]], "hashes are integers so far, this one is bytes"),
        (["BlockStored", [1], None, [5], -2], "`block_size` is -2, less than nothing"),
        (["BlockStored", [1], None, ["a"], 2], "token ids are integers, or pairs of them"),
        (["BlockStored", [1], None, 5, 2], "token ids are an array"),
        (["BlockRemoved", [1], 5], "`medium` is text"),
    ],
)
def test_what_is_refused(event, message):
    with pytest.raises(LineError) as caught:
        decode(packed(event))
    assert message in caught.value.message
    assert (caught.value.path or "").startswith("$.events[0]")


def test_a_name_that_is_close_is_named():
    with pytest.raises(LineError) as caught:
        decode(packed(["BlockStord", [1]]))
    assert caught.value.hint == "did you mean BlockStored?"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.5], "array of two or three items, this one has 1"),
        ([1.5, [], 0, 1], "array of two or three items, this one has 4"),
        ({"ts": 1}, "needs `events`"),
        (5, "a batch is an array or a map, this is an integer"),
        ([1.5, {}], "the events of a batch are an array"),
        (["now", []], "the time of a batch is a number"),
        ([1.5, [], "0"], "`rank` is an integer"),
    ],
)
def test_batches_that_are_refused(value, message):
    with pytest.raises(LineError, match=message):
        decode(msgspec.msgpack.encode(value))


def test_no_msgpack_names_the_offset():
    whole = bytes.fromhex(V09)
    with pytest.raises(LineError, match="is cut off, at byte"):
        unpack(whole[:20])
    with pytest.raises(LineError, match=r"is no msgpack, at byte 0"):
        unpack(b"\xc1\x00")


def test_every_cut_of_every_payload_is_refused_with_a_message():
    for payload in (V09, V16, V20, V24, SGLANG, OLD):
        whole = bytes.fromhex(payload)
        for end in range(len(whole)):
            with pytest.raises(LineError):
                decode(whole[:end])


def test_empty_stores_are_counted():
    _, _, decoder = decode(packed(["BlockStored", [], None, [], 2]))
    assert decoder.empty_stores == 1


def test_both_lists_of_names_agree():
    assert tuple(FIELDS) == EVENT_NAMES
