"""SGLang's own canary, dumped between two forwards by the code that the docs show, and audited."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import pytest

from tests.cli import ROOT, spawn
from tests.peer import stubs
from tests.peer.recording import mixed_requests
from tests.peer.test_canary import CANARY


@pytest.fixture
def dumped(record, tmp_path):
    """`(page_size) -> (world, dump)`: requests in the middle of their work, and what dumps and audits them."""

    def start(page_size: int):
        recording = record(page_size=page_size, slots=224, **CANARY)
        world = recording.world
        manager = stubs.real_canary(world.runner, world.tree, recording.server_args)
        world.complete_batch = stubs.note_all_ids
        mixed_requests(world, 6)
        for _ in range(12):
            world.step()
        reqs = world.running.reqs
        assert len(reqs) > 1

        def written_lengths() -> np.ndarray:
            lens = np.zeros(len(world.pool.req_to_token), np.int64)
            for req in reqs:
                lens[req.kv.req_pool_idx] = req.kv.kv_committed_len
            return lens

        text = (ROOT / "docs" / "dump-format.md").read_text(encoding="utf-8")
        (shown,) = re.findall(r"```python\n(import os\n.*?)\ndumps = install", text, re.DOTALL)
        shown = shown.replace('"/tmp/', f'"{tmp_path}/')
        names = {
            "manager": manager,
            "tree": world.tree,
            "page_size": page_size,
            "written_lengths": written_lengths,
        }
        exec(compile(shown, "dump-format.md", "exec"), names)

        def audit(code: int) -> dict:
            names["dump"](1, "test")
            (path,) = tmp_path.glob("kv-*.safetensors")
            done = spawn("audit", str(path), "--device", "cpu", "--format", "json")
            assert done.code == code, done.err + done.out
            path.unlink()
            return json.loads(done.out)

        return world, manager, audit

    return start


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_healthy_server_is_clean(dumped, page_size):
    world, _, audit = dumped(page_size)
    report = audit(0)
    assert report["coverage"]["rows"] == len(world.running.reqs)
    assert set(report["coverage"]["checks"]) >= {"chain_hash", "position", "real_kv_hash", "rows", "head"}
    assert report["server_log"]["violations"] == 0
    assert report["coverage"]["entries"] > 100
    assert report["coverage"]["cached_entries"] > 50
    unchecked = {gap["check"] for gap in report["coverage"]["not_checked"]}
    assert unchecked == {"verify_token", "head_v_full", "tail_v_full"}


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_wrong_table_entry_is_found(dumped, page_size):
    world, _, audit = dumped(page_size)
    one, other = (req.kv.req_pool_idx for req in world.running.reqs[-2:])
    last = world.running.reqs[-1].kv.kv_committed_len - 1
    table = world.pool.req_to_token
    slot = int(table[other, last])
    table[one, 3] = slot
    (incident,) = audit(1)["incidents"]
    assert (incident["kind"], incident["rows"], incident["slots"]) == ("shared-slot", [one], [[slot, slot]])
    assert incident["stamp"]["chain_of"][0]["row"] == other
    assert incident["stamp"]["position"] == last


def test_damage_in_memory_is_found(dumped):
    world, manager, audit = dumped(1)
    req = world.running.reqs[0]
    slots = world.pool.req_to_token[req.kv.req_pool_idx]
    stamped, byte = int(slots[req.kv.kv_committed_len - 3]), int(slots[req.kv.kv_committed_len - 8])
    for buffer in (manager._buffer_groups[0].k_head, manager._buffer_groups[0].k_tail):
        buffer[stamped, 8] ^= 0x40
    world.kv_pool.k_buffer[0][byte] += 1
    report = audit(1)
    found = Counter((incident["kind"], incident["slots"][0][0]) for incident in report["incidents"])
    assert found == {("changed-stamp", stamped): 1, ("changed-bytes", byte): 1}
