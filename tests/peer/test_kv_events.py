"""SGLang's own prefix cache and publisher: what they send is recorded whole, and an audit of it is clean."""

from __future__ import annotations

import json
import random
import socket
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from kvcanary_cli.kvevents.audit import Auditor, AuditResult
from kvcanary_cli.kvevents.lines import EventFile
from kvcanary_cli.kvevents.record import record
from kvcanary_cli.kvevents.sink import EventSink
from kvcanary_cli.kvevents.zmq_sockets import ReplaySocket, Subscriber
from tests.peer import stubs

BATCHES = 60


def batches_of_a_cache(*, page_size: int, seed: int, namespaces: list[Any], dynamo: bool) -> list[Any]:
    """What SGLang's RadixCache says while prompts with common prefixes are inserted and evicted."""
    stubs.torchvision_operators()
    import torch
    from sglang.srt.disaggregation.kv_events import KVEventBatch
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    rng = random.Random(seed)
    nothing = SimpleNamespace(
        device=torch.device("cpu"), free=lambda *_: None, free_segment=lambda *_, **__: None
    )
    cache = RadixCache.create_simulated(
        mock_allocator=nothing,
        page_size=page_size,
        enable_kv_cache_events=True,
        dynamo_kv_event_format=dynamo,
    )
    found = []
    for number in range(BATCHES):
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.7:
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 6) * page_size)]
                key = RadixKey(array("q", tokens), extra_key=rng.choice(namespaces))
                cache.insert(InsertParams(key=key, value=torch.arange(len(tokens))))
            else:
                cache.evict(EvictParams(num_tokens=rng.randint(1, 4) * page_size))
        if rng.random() < 0.03:
            cache.reset()
        found.append(KVEventBatch(ts=100.0 + number, events=cache.take_events()))
    return found


def audited(path: Any) -> AuditResult:
    return Auditor(EventFile([str(path)])).run()


def free_ports() -> list[int]:
    sockets = [socket.socket() for _ in range(2)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(
    ("namespaces", "dynamo"), [([None], False), ([None, "a", "b"], False), ([None, "a"], True)]
)
@pytest.mark.parametrize("seed", range(4))
def test_an_audit_of_the_prefix_cache_is_clean(tmp_path, page_size, namespaces, dynamo, seed):
    import msgspec

    batches = batches_of_a_cache(page_size=page_size, seed=seed, namespaces=namespaces, dynamo=dynamo)
    path = tmp_path / "events.jsonl"
    lines = [
        {"seq": seq, "ts": batch.ts, "rank": 0, "events": msgspec.to_builtins(batch.events)}
        for seq, batch in enumerate(batches)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    result = audited(path)
    assert [(finding.code, finding.text) for finding in result.log.findings] == []
    assert result.removed_blocks
    assert result.checked["page_hash"] > 50
    if namespaces == [None]:
        assert result.checked["page_hash"] == result.stored_blocks


def test_a_recording_of_the_publisher_is_whole(tmp_path):
    batches = batches_of_a_cache(page_size=4, seed=9, namespaces=[None], dynamo=False)
    from sglang.srt.disaggregation.kv_events import ZmqEventPublisher

    port, replay_port = free_ports()
    publisher = ZmqEventPublisher(0, f"tcp://*:{port}", replay_endpoint=f"tcp://*:{replay_port}")
    try:
        # half of them before anybody listens: only the replay socket still has them
        for batch in batches[: BATCHES // 2]:
            publisher.publish(batch)
        path = tmp_path / "events.jsonl"
        rest = iter(batches[BATCHES // 2 :])

        def go_on(facts: Any) -> None:
            batch = next(rest, None)
            if batch is not None:
                publisher.publish(batch)

        replay = ReplaySocket(f"tcp://127.0.0.1:{replay_port}")
        with Subscriber(f"tcp://127.0.0.1:{port}") as source, EventSink(str(path)) as sink:
            facts = record(source, sink, replay, duration=20, max_batches=BATCHES, on_progress=go_on)
    finally:
        publisher.shutdown()
    assert (facts.batches, facts.lost, facts.malformed, facts.missed_start) == (BATCHES, 0, 0, 0)
    # at least one: on a busy machine the publisher's thread may send some of the first half late
    assert facts.replayed > 0
    result = audited(path)
    assert (result.log.total, result.lost, result.batches) == (0, 0, BATCHES)
    assert result.checked["page_hash"] == result.stored_blocks
