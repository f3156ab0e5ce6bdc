"""Dumps that the plugin writes inside SGLang, at its own canary's violations and on a signal, audited."""

from __future__ import annotations

import json
import logging
import os
import signal
from types import SimpleNamespace

import pytest

from kvcanary_cli.kernels.consts import BIT_WRITE_POSITION, BIT_WRITE_TOKEN, RING_BITS, RING_SLOT
from kvcanary_cli.recorders import dump_contents, dumps
from kvcanary_cli.trace.safetensors import open_safetensors
from tests.cli import spawn
from tests.peer import faults, stubs
from tests.peer.recording import mixed_requests, rules
from tests.peer.test_canary import CANARY
from tests.peer.test_failures import balanced


@pytest.fixture
def served(record, dump_into, monkeypatch):
    """`(canary, page_size, limit, …) -> (recording, manager, folder)`: a world with dumps on."""
    monkeypatch.setenv("SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT", "1")

    def start(*, canary="log", data="none", page_size=1, slots=224, radix=True, **settings):
        folder = dump_into(**settings)
        options = CANARY | {"server_kv_canary": canary, "server_kv_canary_real_data": data}
        recording = record(page_size=page_size, slots=slots, radix=radix, **options)
        world = recording.world
        manager = None
        if canary != "none":
            manager = stubs.real_canary(world.runner, world.tree, recording.server_args)
            world.complete_batch = stubs.note_all_ids
        return recording, manager, folder

    return start


def audited(path, code, *options):
    """The report of `kvcanary audit`, which has to end with this code."""
    done = spawn("audit", str(path), "--device", "cpu", "--format", "json", *options)
    assert done.code == code, done.err + done.out
    return json.loads(done.out)


def signalled(world):
    os.kill(os.getpid(), signal.SIGUSR2)
    assert world.step()


def unchecked(report):
    return {gap["check"] for gap in report["coverage"]["not_checked"]}


AT_REST = ~(BIT_WRITE_TOKEN | BIT_WRITE_POSITION)
V_STAMPS = {"head_v_full", "tail_v_full"}  # SGLang has the buffers, and stamps K alone


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("steps", [1, 2, 5, 12, 20])
def test_a_signal_in_a_clean_run_gives_a_dump_that_passes(served, page_size, steps):
    recording, _, folder = served(page_size=page_size, data="partial", with_kv=True)
    world = recording.world
    mixed_requests(world, 6)
    for _ in range(steps):
        world.step()
    signalled(world)
    world.run()
    (path,) = folder.iterdir()
    assert path.name.startswith(f"dp0-tp0-pp0-{os.getpid()}-")
    report = audited(path, 0)
    assert unchecked(report) <= V_STAMPS
    assert set(report["coverage"]["checks"]) >= {
        "chain_hash",
        "position",
        "real_kv_hash",
        "verify_token",
        "head",
    }
    assert report["coverage"]["entries"] > 50
    assert report["coverage"]["rows"] >= 1
    assert balanced(world)


def test_rows_outside_of_the_batch_and_those_of_the_batch_are_as_long_as_they_are_written(served):
    recording, _, folder = served(radix=False)
    world = recording.world
    faults.plain_requests(world, 3)
    running = faults.decode_until(world, 3)
    world.submit("late", world.tokens(20), 2)
    written = {req.rid: req.kv.kv_committed_len for req in running}
    signalled(world)  # the prefill of `late`, of which nothing is written yet
    (path,) = folder.iterdir()
    lens = dict(lengths(path))
    assert lens == written
    signalled(world)  # a decode of all
    (last,) = set(folder.iterdir()) - {path}
    assert dict(lengths(last)) == written | {"late": 20}


def lengths(path):
    """(rid, length) of each row in a dump."""
    from kvcanary_cli.audit.dump import open_dump

    dump = open_dump(str(path))
    rids = json.loads(open_safetensors(str(path)).metadata["rids"])
    for row, length in enumerate(dump.ints("seq_lens").tolist()):
        if length:
            yield rids[str(row)], length


def slots_of(ring):
    """Slots that SGLang's canary found wrong where it verified; what it found while it wrote is not in a dump."""
    return {row[RING_SLOT] for row in ring.tolist() if row[RING_BITS] & AT_REST}


def slots_of_rows(report):
    """Slots of rows that the audit found wrong; SGLang checks the cache in sweeps only, which are off."""
    return {each["slot"] for each in report["violations"] if each["row"] is not None}


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("canary", ["log", "raise"])
def test_the_first_violation_is_dumped_and_the_audit_finds_its_slots(served, page_size, canary):
    recording, manager, folder = served(page_size=page_size, canary=canary, radix=False)
    if canary == "raise":
        with pytest.raises(RuntimeError, match="KV cache canary violation"):
            faults.entry_elsewhere_unseen(recording)
    else:
        faults.entry_elsewhere_unseen(recording)
    (path,) = folder.iterdir()
    assert path.name.startswith("violation-dp0-tp0-pp0-")
    report = audited(path, 1)
    log = report["server_log"]
    theirs = slots_of(manager._device_state.violation_log.violation_ring[: log["violations"]])
    assert slots_of_rows(report) == theirs
    assert len(theirs) == 2
    assert log["confirmed"] == log["violations"]
    (incident,) = report["incidents"]
    assert (incident["kind"], incident["positions"]) == ("shared-slot", [7, 7])
    assert incident["stamp"]["position"] == 9


@pytest.mark.parametrize("fault", [faults.wrong_slot, faults.stale_row, faults.forget_a_lock])
def test_other_faults_are_dumped_with_the_violations_slots(served, fault):
    recording, manager, folder = served(slots=176, radix=fault is not faults.wrong_slot)
    fault(recording)
    (path,) = folder.iterdir()
    report = audited(path, 1)
    log = manager._device_state.violation_log
    found = slots_of_rows(report)
    assert slots_of(log.violation_ring[: report["server_log"]["violations"]]) <= found
    # what the last step did, SGLang's canary sees when the next one verifies
    assert found <= slots_of(log.violation_ring[: int(log.violation_write_index)])


def test_without_the_servers_canary_there_is_the_table_alone(served):
    recording, _, folder = served(canary="none")
    world = recording.world
    mixed_requests(world, 6)
    for _ in range(12):
        world.step()
    num_running = len(world.running.reqs)
    signalled(world)
    (path,) = folder.iterdir()
    report = audited(path, 4)
    assert "stamps" in {gap["check"] for gap in report["coverage"]["missing"]}
    assert report["incidents"] == []
    assert report["coverage"]["rows"] == num_running


def test_stamps_that_cover_bytes_need_the_bytes(served):
    recording, _, folder = served(data="partial")
    world = recording.world
    mixed_requests(world, 6)
    for _ in range(12):
        world.step()
    signalled(world)
    (path,) = folder.iterdir()
    report = audited(path, 4)
    assert {gap["check"] for gap in report["coverage"]["missing"]} == {"real_kv_hash"}
    assert not [name for name in open_safetensors(str(path)).tensors if name.startswith("kv.")]


def test_changed_bytes_are_found_in_what_was_dumped(served):
    recording, _, folder = served(data="all", with_kv=True, page_size=16)
    world = recording.world
    mixed_requests(world, 6)
    for _ in range(12):
        world.step()
    req = world.running.reqs[0]
    slot = int(world.pool.req_to_token[req.kv.req_pool_idx, 3])
    world.kv_pool.k_buffer[0][slot, -1, -1] += 1
    signalled(world)
    names = sorted(path.name for path in folder.iterdir())
    path = folder / names[0]
    report = audited(path, 1)
    (incident,) = report["incidents"]
    assert (incident["kind"], incident["slots"]) == ("changed-bytes", [[slot, slot]])


def test_the_limit_holds_for_all_dumps_together(served, caplog):
    recording, _, folder = served(canary="none", limit=2)
    world = recording.world
    faults.plain_requests(world, 2)
    for _ in range(4):
        signalled(world)
    assert len(list(folder.iterdir())) == 2
    assert "no dump" in caplog.text


@pytest.mark.parametrize("name", ["write_dump", "read_contents"])
def test_a_dump_that_fails_is_logged_and_the_scheduler_goes_on(served, monkeypatch, caplog, name):
    def failing(*args, **options):
        raise OSError(28, "No space left on device")

    recording, _, folder = served()
    monkeypatch.setattr(dumps, name, failing)
    faults.entry_elsewhere_unseen(recording)
    world = recording.world
    faults.plain_requests(world, 2, name="more")
    signalled(world)
    world.run()
    assert list(folder.iterdir()) == []
    assert "No space left" in caplog.text
    monkeypatch.undo()
    faults.plain_requests(world, 2, name="again")
    signalled(world)
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_can_not_be_made_dumps_nothing(served, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    recording, _, _ = served(folder=str(tmp_path / "file"))
    mixed_requests(recording.world, 3)
    recording.world.run()
    assert "no more dumps" in caplog.text
    assert balanced(recording.world)


def test_a_canary_that_can_not_be_read_leaves_the_table(served, monkeypatch, caplog):
    def failing(*args, **options):
        raise AttributeError("renamed")

    monkeypatch.setattr(dump_contents, "_of_canary", failing)
    recording, _, folder = served()
    faults.plain_requests(recording.world, 2)
    recording.world.step()
    signalled(recording.world)
    (path,) = folder.iterdir()
    report = audited(path, 4)
    assert "renamed" in json.dumps(report)
    assert "renamed" in caplog.text


def test_recorder_and_dumps_work_side_by_side(served, caplog):
    caplog.set_level(logging.INFO)
    recording, _, folder = served(radix=False)
    faults.entry_elsewhere(recording)
    assert len(list(folder.iterdir())) == 1
    assert f"SIGUSR2 to process {os.getpid()}" in caplog.text
    assert rules(recording.replay())


def test_requests_are_let_go_with_their_rows(served, installed):
    recording, _, _ = served(canary="none")
    mixed_requests(recording.world, 4)
    recording.world.step()
    assert installed[1]._rows
    recording.world.run()
    assert installed[1]._rows == {}


@pytest.mark.parametrize(("mode", "width"), [("partial", 16), ("all", 32)])
def test_the_bytes_that_are_hashed_are_copied_from_pages_with_holes(monkeypatch, mode, width):
    import torch

    monkeypatch.setattr(dump_contents, "COPY_BYTES", 3 * width)
    pages = torch.randint(0, 256, (5, 2 * 48 + 16), dtype=torch.uint8)
    piece = SimpleNamespace(tensor=pages, page_size=2, num_bytes_per_token=48, read_bytes=32)
    source = dump_contents.hashed_bytes(piece, mode, name="k0.full", half="k", group="full")
    assert (source.page_size, source.num_bytes_per_token, source.read_bytes) == (2, width, width)
    for slot in range(10):
        at, first = slot // 2, slot % 2
        kept = source.tensor[at, first * width : (first + 1) * width]
        assert kept.tolist() == pages[at, first * 48 : first * 48 + width].tolist()
