"""What goes wrong in the recorder itself is said in the trace, and the scheduler does not notice."""

from __future__ import annotations

import time

import pytest

from kvcanary_cli.recorders import hooks as hooks_module
from kvcanary_cli.recorders import pool_facts, targets
from kvcanary_cli.recorders.book import Book
from tests.peer.recording import mixed_requests


def balanced(world) -> bool:
    """Whether every slot is the cache's or free, as after a run that nothing disturbed."""
    return world.allocator.available_size() + world.tree.evictable_size() == world.allocator.size


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("limit", [4, 16])
def test_full_queue_drops_whole_forwards_and_counts_them(record, monkeypatch, limit, page_size):
    launched = Book.launched

    def slow(self, *args):
        time.sleep(0.01)
        launched(self, *args)

    monkeypatch.setattr(Book, "launched", slow)
    recording = record(queue=limit, page_size=page_size, slots=224)
    mixed_requests(recording.world)
    recording.world.run()
    assert balanced(recording.world)
    report = recording.replay()
    lines = recording.lines()
    gaps = [line for line in lines if line["ev"] == "gap"]
    lost = sum(line["forwards"] for line in gaps)
    assert lost > 0
    assert {line["why"] for line in gaps} == {"queue full"}
    assert lost + sum(line["ev"] == "forward" for line in lines) == recording.world.num_forwards
    assert (report["status"], report["incidents"]) == ("incomplete", [])


def test_exception_in_a_hook_ends_the_trace_and_nothing_else(record, monkeypatch):
    recording = record(slots=224)
    calls = 0
    staged = hooks_module.Staged

    def failing(parts):
        nonlocal calls
        calls += 1
        if calls == 30:
            raise ValueError("planted")
        return staged(parts)

    monkeypatch.setattr(hooks_module, "Staged", failing)
    mixed_requests(recording.world)
    recording.world.run()
    assert calls == 30
    assert balanced(recording.world)
    *_, last, end = recording.lines()
    assert (last["ev"], end["ev"]) == ("gap", "note")
    assert "forwards" not in last
    assert last["why"].startswith("the recorder stopped: sglang.srt.")
    assert last["why"].endswith("ValueError: planted")
    report = recording.replay()
    assert (report["status"], report["incidents"]) == ("incomplete", [])


def test_exception_in_the_writer_ends_the_trace_and_nothing_else(record, monkeypatch):
    def failing(self, *args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Book, "launched", failing)
    recording = record(slots=224)
    mixed_requests(recording.world, 4)
    recording.world.run()
    assert balanced(recording.world)
    last = recording.lines()[-1]
    assert last["ev"] == "gap"
    assert "No space left" in last["why"]
    assert not recording.hooks.recorder._facts  # what waits would keep requests and tensors for good
    assert recording.replay()["status"] == "incomplete"


def test_exception_of_the_engine_passes_through(record):
    recording = record(slots=224)
    world = recording.world
    world.submit("A", world.tokens(8), 3)
    world.step()

    def broken(batch):
        raise RuntimeError("the engine's own")

    world.runner.model.forward = lambda *args: broken(args)
    with pytest.raises(RuntimeError, match="the engine's own"):
        world.step()
    assert recording.hooks.inside == hooks_module.Inside()
    assert recording.hooks.recorder.is_on


def test_folder_that_can_not_be_made_records_nothing(record, tmp_path):
    (tmp_path / "file").write_text("")
    recording = record(folder=str(tmp_path / "file"), slots=224)
    mixed_requests(recording.world, 2)
    recording.world.run()
    assert balanced(recording.world)
    assert recording.hooks.recorder is None


def test_target_that_is_not_there_is_named_and_its_events_are_not_promised(record, monkeypatch):
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    gone = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.renamed"
    HookRegistry.register(gone, lambda original, *args: original(*args), HookType.AROUND)
    HookRegistry.apply_hooks()
    HookRegistry._hooks.pop(gone)
    target = targets.Target(path=gone, gives=("publish",))
    monkeypatch.setattr(targets, "TARGETS", (*targets.TARGETS, target))
    recording = record(slots=224)
    mixed_requests(recording.world)
    recording.world.run()
    header, *lines = recording.lines()
    assert header["producer"]["missing"] == [gone]
    assert "publish" not in header["records"]
    assert not any(line["ev"] == "publish" for line in lines)
    report = recording.replay()
    assert report["status"] != "fail"
    assert report["coverage"]["ledger"]["not_judged"]


def test_features_that_no_hook_follows_leave_rows_and_forwards(record):
    recording = record(slots=224, server_disaggregation_mode="prefill")
    mixed_requests(recording.world, 4)
    recording.world.run()
    header, *lines = recording.lines()
    assert header["producer"]["not_followed"] == ["disaggregation"]
    assert header["records"] == ["bind", "unbind", "map", "end", "truth"]
    assert {line["ev"] for line in lines} == {
        "bind",
        "unbind",
        "map",
        "end",
        "truth",
        "forward",
        "gap",
        "note",
    }
    report = recording.replay()
    assert (report["status"], report["incidents"]) == ("incomplete", [])


@pytest.mark.parametrize(
    "name", ["alloc_for_extend", "ReqToTokenPool.alloc", "checkpoint_into_tree", "ModelRunner.forward"]
)
def test_nothing_but_a_gap_is_recorded_when_rows_can_not_be_followed(record, monkeypatch, name):
    gone = [target for target in targets.TARGETS if target.path.endswith(f".{name}")]
    monkeypatch.setattr(pool_facts, "unresolved", lambda patched: gone)
    recording = record(slots=224)
    mixed_requests(recording.world)
    recording.world.run()
    _, gap, end = recording.lines()
    assert (gap["ev"], end["ev"]) == ("gap", "note")
    assert gone[0].path in gap["why"]
    assert recording.replay()["status"] == "incomplete"
