"""Healthy runs of SGLang's classes are recorded completely and replay clean."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.recorders.targets import KINDS
from tests.peer.recording import mixed_requests, replayed

LAYOUTS = [(1, True), (1, False), (16, True), (16, False)]


def run_with_an_abort(world):
    mixed_requests(world)
    for _ in range(20):
        world.step()
    world.abort(world.running.reqs[0])
    world.run()


@pytest.mark.parametrize(("page_size", "radix"), LAYOUTS)
@pytest.mark.parametrize("tokens", ["plain", "hash"])
def test_sharing_chunks_eviction_retraction_and_abort_replay_clean(record, page_size, radix, tokens):
    recording = record(page_size=page_size, radix=radix, slots=224, tokens=tokens)
    world = recording.world
    run_with_an_abort(world)
    report = recording.replay()
    assert (report["status"], report["incidents"]) == ("pass", [])
    assert report["coverage"]["steps"] == world.num_forwards
    assert report["coverage"]["not_checked"] == []
    assert report["coverage"]["entries"] == report["coverage"]["entries_planned"] > 10_000
    # the workload did what it is for
    assert world.retracted
    seen = {line["ev"] for line in recording.lines()}
    expected = {*KINDS, "header", "forward"} - ({"share", "publish", "evict"} if not radix else set())
    assert expected - {"map"} <= seen


def test_recorder_balances_every_slot(record):
    recording = record(page_size=16, slots=224)
    world = recording.world
    run_with_an_abort(world)
    held: dict[int, set[str]] = {}
    for line in recording.lines():
        for slot in expand(line.get("slots", [])):
            holders = held.setdefault(slot, set())
            match line["ev"]:
                case "alloc":
                    holders.add(line["to"])
                case "share":
                    holders.add(line["rid"])
                case "publish":
                    holders.add("cache")
                case "free":
                    holders.remove(line["by"])
                case "evict":
                    holders.remove("cache")
    cached = {slot for slot, holders in held.items() if holders}
    assert all(held[slot] == {"cache"} for slot in cached)
    assert cached == set(world.tree.all_values_flatten().tolist())


def expand(slots):
    for element in slots:
        if isinstance(element, list):
            yield from range(element[0], element[0] + element[1])
        else:
            yield element


def test_header_tells_the_pool_and_that_nothing_is_hidden(record):
    recording = record(page_size=16, slots=224)
    mixed_requests(recording.world, 2)
    recording.world.run()
    header = recording.lines()[0]
    assert header["pool"] == {"slots": 240, "page_size": 16, "rows": 7, "row_width": 160}
    assert header["records"] == list(KINDS)
    assert header["producer"]["missing"] == header["producer"]["not_followed"] == []
    assert header["producer"]["engine"] == "sglang 0.5.23"
    assert "state" not in header


def test_flushed_cache_replays_clean(record):
    recording = record(slots=224)
    world = recording.world
    mixed_requests(world, 4)
    world.run()
    world.tree.reset()
    world.pool.clear()
    world.allocator.clear()
    mixed_requests(world, 4)
    world.run()
    assert recording.replay()["status"] == "pass"


def test_a_recorder_that_comes_late_says_so(record):
    recording = record(slots=224)
    world = recording.world
    recording.hooks._is_over = True
    mixed_requests(world, 6)
    for _ in range(8):
        world.step()
    recording.hooks._is_over = False
    world.run()
    report = recording.replay()
    assert recording.lines()[0]["state"] == "unknown"
    assert (report["status"], report["incidents"]) == ("incomplete", [])


def test_hashed_tokens_hide_the_ids_and_their_frequency(record):
    recording = record(tokens="hash")
    world = recording.world
    prompt = [4242] * 40
    world.submit("A", prompt, 3)
    world.submit("B", prompt, 3)
    world.run()
    lines = recording.lines()
    truths = {line["rid"]: line["tokens"] for line in lines if line["ev"] == "truth" and line["at"] == 0}
    assert truths["A"] == truths["B"]
    assert len(set(truths["A"])) == 40
    assert all(0 <= token < 1 << 31 for token in truths["A"])
    assert "4242" not in {str(token) for line in lines for token in line.get("tokens", [])}
    assert recording.replay()["status"] == "pass"


def test_parts_are_replayed_together_as_one_recording(record):
    recording = record(max_bytes=20_000)
    mixed_requests(recording.world)
    recording.world.run()
    recording.close()
    assert len(recording.paths) >= 3
    assert all(path.stat().st_size < 30_000 for path in recording.paths)
    headers = [json.loads(path.open().readline()) for path in recording.paths]
    assert [header["continues"]["part"] for header in headers] == list(range(1, len(headers) + 1))
    assert len({header["continues"]["of"] for header in headers}) == 1
    report = replayed(*recording.paths)
    assert (report["status"], report["coverage"]["steps"]) == ("pass", recording.world.num_forwards)


def test_a_later_part_alone_is_incomplete_and_a_first_part_alone_is_not(record):
    recording = record(max_bytes=20_000)
    mixed_requests(recording.world)
    recording.world.run()
    recording.close()
    first, *_, last = (replayed(path) for path in recording.paths)
    assert (first["status"], first["incidents"]) == ("pass", [])
    assert (last["status"], last["incidents"]) == ("incomplete", [])


def test_file_that_was_cut_off_can_be_read_up_to_there(record):
    recording = record()
    mixed_requests(recording.world, 4)
    recording.world.run()
    recording.close()
    (path,) = recording.paths
    path.write_bytes(path.read_bytes()[:-15])
    report = replayed(path, "--skip-bad-lines")
    assert (report["status"], report["incidents"]) == ("incomplete", [])


def test_bytes_in_the_pool_are_compared_with_what_was_written(record):
    recording = record(real_kv=1, radix=False)
    world = recording.world
    mixed_requests(world, 4)
    world.run()
    report = recording.replay()
    assert (report["status"], report["digest_mismatches"]) == ("pass", [])
    assert any(line["ev"] == "digest" for line in recording.lines())
