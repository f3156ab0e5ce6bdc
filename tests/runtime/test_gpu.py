"""What is the Triton backend's own: its kernels, its copies of the host's tables, its memory and its refusals."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from kvcanary_cli.errors import MissingError
from kvcanary_cli.kernels.hashing_ref import chain, mix
from kvcanary_cli.replay.state import RunState, new_state
from kvcanary_cli.runtime import ahead_gpu, bytes_cpu, bytes_gpu, gpu, mirrors
from kvcanary_cli.runtime.calls import ForwardCall
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.runtime.gpu import GpuRuntime
from kvcanary_cli.runtime.layout import Layout, layout_of
from kvcanary_cli.runtime.mirrors import Mirrors
from kvcanary_cli.runtime.staging import Staging, last_of_each
from kvcanary_cli.trace import events as ev
from tests.runtime.contract_traces import FULL, WINDOW_K, K, V, forward, header, run, slots, two_requests
from tests.runtime.test_runtime_contract import Side, as_multiset

SENTINEL = 0x5A5A
TILE = 256
EDGE_SIZES = [0, 1, TILE - 1, TILE, 3 * TILE + 5]
KERNELS = {
    "fill_slots": bytes_gpu._fill_slots_kernel,
    "stamp_contexts": bytes_gpu._stamp_contexts_kernel,
    "store_cells": mirrors._store_cells_kernel,
}


def on(device: str, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(device)


def guarded(device: str, rows: int, words: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of `rows` rows, and the whole buffer of which it is the middle."""
    buffer = torch.full((rows + 2 * TILE, words), SENTINEL, dtype=torch.int64, device=device)
    return buffer[TILE : TILE + rows], buffer


def is_guard_intact(buffer: torch.Tensor) -> bool:
    return bool((buffer[:TILE] == SENTINEL).all() and (buffer[-TILE:] == SENTINEL).all())


# ---- kernels


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_runs_the_real_kernel(name, device):
    wanted = "InterpretedFunction" if device == "cpu" else "JITFunction"
    assert type(KERNELS[name]).__name__ == wanted


def test_bytes_computed_by_hand(device):
    words = torch.zeros((4, 2), dtype=torch.int64, device=device)
    context = chain(0xABC, 17, 5)
    keys = on(device, bytes_cpu.word_keys(3, 2).view(np.int64))
    bytes_gpu.launch_fill_slots(
        out_words=words,
        slots=on(device, slots(2)),
        contexts=on(device, np.array([context], np.uint64).view(np.int64)),
        keys=keys,
    )
    stored = words.cpu().numpy().view(np.uint64)
    assert stored[2].tolist() == [mix(context ^ mix(3 << 32)), mix(context ^ mix(3 << 32 ^ 1))]
    assert not stored[[0, 1, 3]].any()


@pytest.mark.parametrize(
    ("num_writes", "num_words"), [*((n, 2) for n in EDGE_SIZES), (1, 130), (3, 130), (70, 34)]
)
def test_fill_matches_numba(num_writes, num_words, device):
    draw = np.random.default_rng(num_words)
    num_slots = num_writes + 3
    places = draw.permutation(num_slots + 8)[:num_writes] - 4  # some are outside, at both ends
    contexts = draw.integers(0, 2**63, num_writes).astype(np.uint64) * np.uint64(2)
    keys = bytes_cpu.word_keys(1, num_words)
    memory, buffer = guarded(device, num_slots, num_words)
    want = np.full((num_slots, num_words), SENTINEL, np.uint64)
    bytes_cpu.fill_slots(want, places, contexts, keys, np.uint64(0))
    bytes_gpu.launch_fill_slots(
        out_words=memory,
        slots=on(device, places),
        contexts=on(device, contexts.view(np.int64)),
        keys=on(device, keys.view(np.int64)),
        tile=TILE,
    )
    np.testing.assert_array_equal(memory.cpu().numpy().view(np.uint64), want)
    assert is_guard_intact(buffer)


@pytest.mark.parametrize("is_affine", [False, True], ids=["mixed", "affine"])
@pytest.mark.parametrize("num_reads", EDGE_SIZES, ids=lambda n: f"n{n}")
def test_contexts_match_numba(num_reads, is_affine, device):
    draw = np.random.default_rng(num_reads)
    stamps = draw.integers(-(2**63), 2**63, (40, 4))
    places = draw.integers(-3, 43, num_reads)
    out, buffer = guarded(device, num_reads, 1)
    bytes_gpu.launch_stamp_contexts(
        stamps=on(device, stamps),
        slots=on(device, places),
        out_contexts=out.view(-1),
        is_affine=is_affine,
        block=TILE,
    )
    want = bytes_cpu.stamp_contexts(stamps, places, is_affine)
    np.testing.assert_array_equal(out.view(-1).cpu().numpy().view(np.uint64), want)
    assert is_guard_intact(buffer)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_stores", EDGE_SIZES, ids=lambda n: f"n{n}")
def test_cells_are_stored(num_stores, dtype, device):
    draw = np.random.default_rng(num_stores)
    cells = draw.permutation(num_stores + 10)[:num_stores] - 3
    values = draw.integers(-(2**31), 2**31, num_stores)
    _, whole = guarded(device, num_stores + 2, 1)
    buffer = whole.view(-1).to(dtype)
    memory = buffer[TILE:-TILE]
    want = np.full(memory.shape[0], SENTINEL)
    inside = (cells >= 0) & (cells < want.size)
    want[cells[inside]] = values[inside]
    mirrors.launch_store_cells(
        cells=on(device, cells), values=on(device, values), out_memory=memory, block=TILE
    )
    np.testing.assert_array_equal(memory.cpu().numpy(), want)
    assert is_guard_intact(buffer.view(-1, 1))


def test_kernels_compile_for_the_gpus_that_are_supported():
    script = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kvcanary_cli.runtime import bytes_gpu, mirrors

POINTER, SCALAR = "*i64", "i32"
for kernel, types, constants in (
    (bytes_gpu._fill_slots_kernel, [POINTER] * 4 + [SCALAR] * 3, {"BLOCK_SLOTS": 16, "BLOCK_WORDS": 64}),
    (bytes_gpu._stamp_contexts_kernel, [POINTER] * 3 + [SCALAR] * 2, {"STRIDE": 4, "AFFINE": True, "BLOCK": 128}),
    (mirrors._store_cells_kernel, [POINTER] * 2 + ["*i32"] + [SCALAR] * 2, {"BLOCK": 128}),
    (mirrors._store_cells_kernel, [POINTER] * 3 + [SCALAR] * 2, {"BLOCK": 128}),
):
    names = kernel.arg_names
    signature = dict(zip(names, types + ["constexpr"] * len(constants), strict=True))
    for capability in (80, 90):
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]
print("compiled")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=compile_environment(), check=False
    )
    assert (done.stdout, done.returncode) == ("compiled\n", 0), done.stderr


def compile_environment() -> dict[str, str]:
    """This environment without Triton's interpreter, which replaces what is to be compiled."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


# ---- host to device


def test_staging_sends_arrays_of_any_length(device):
    staging = Staging(torch.device(device))
    draw = np.random.default_rng(1)
    for size in (0, 1, 15, 16, 17, 40_000, 3):
        arrays = {"a": draw.integers(-(2**63), 2**63, size), "b": np.arange(size), "none": slots()}
        sent = staging.send(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(sent[name].cpu().numpy(), array)
        if size:
            # counted from where the buffer begins
            assert (sent["b"].data_ptr() - sent["a"].data_ptr()) % 128 == 0
    assert staging.send({}) == {}


def test_last_of_each_slot():
    places = last_of_each(slots(5, -1, 7, 5, 9, 7, 10, 5), 10)
    assert places.tolist() == [7, 5, 4]
    assert last_of_each(slots(), 10).tolist() == []


def masters(groups: list[ev.Group] | None = None) -> tuple[Layout, RunState]:
    layout = layout_of(header(groups=groups or [FULL], sources=[]))
    return layout, new_state(layout, track_changes=True)


def test_copies_follow_the_masters(device):
    layout, state = masters([FULL, ev.Group(kind="swa", window=4, slots=20)])
    state.table.map(2, 3, run(9, 4))
    state.expected.set("early", 0, np.arange(5), 3)
    state.swa_map[5] = 6
    copies = Mirrors(layout, state.table, state.swa_map, state.expected, torch.device(device))
    staging = Staging(torch.device(device))
    assert_copies_equal(copies, state)
    assert copies.take_changes() == {}
    draw = np.random.default_rng(5)
    for step in range(8):
        for _ in range(step):
            change(state, copies, draw)
        if step == 6:  # more cells than the table has
            for _ in range(10):
                state.table.map(1, 0, draw.integers(0, 60, 7 * 32))
        copies.store(staging.send(copies.take_changes()))
        assert_copies_equal(copies, state)
        assert copies.take_changes() == {}


def change(state: RunState, copies: Mirrors, draw: np.random.Generator) -> None:
    row, column = int(draw.integers(1, 8)), int(draw.integers(0, 28))
    rid = f"r{row}"
    state.table.bind(row, rid)
    state.table.map(row, column, draw.integers(-5, 80, 7))
    state.table.resolve(slots(row), slots(column), slots(2), slots(33, 34))
    state.table.move(rid, row % 7 + 1)
    state.expected.set(rid, int(draw.integers(0, 2)) * 9, draw.integers(0, 50, 6), row)
    state.expected.place(rid, row % 7 + 1)
    full = draw.integers(0, 64, 3)
    state.swa_map[full] = draw.integers(0, 20, 3)
    copies.note_swa_map(full)


def assert_copies_equal(copies: Mirrors, state: RunState) -> None:
    np.testing.assert_array_equal(copies.table.cpu().numpy().reshape(-1), state.table.entries)
    np.testing.assert_array_equal(copies.expected.cpu().numpy(), state.expected.pool)
    assert copies.swa_map is not None
    np.testing.assert_array_equal(copies.swa_map.cpu().numpy(), state.swa_map)


def test_masters_must_track_their_changes(device):
    layout, _ = masters()
    state = new_state(layout, track_changes=False)
    with pytest.raises(ValueError, match="both must track their changes"):
        GpuRuntime(layout, state.table, state.swa_map, state.expected, torch_device=device)


# ---- a run


def test_single_window_pool_is_its_own_map(device):
    """A pool with a window and nothing else does what the window group of a pool with both does."""
    events = [
        *two_requests(),
        ev.Stamp(group="swa", slot=8, field="position", xor=2),
        forward([1], [6], slots(10)),
    ]
    window = ev.Group(kind="swa", window=3)
    alone = Side(header(groups=[window], sources=[WINDOW_K]), device)
    both = Side(header(groups=[FULL, window], sources=[WINDOW_K]), None)
    both.replay.apply(1, ev.SwaMap(full=run(0, 64), swa=run(0, 64)))
    for line, event in enumerate(events, start=2):
        alone.replay.apply(line, event)
        both.replay.apply(line, event)
    got = np.concatenate([batch.rows for batch in alone.take_batches()])
    want = np.concatenate([batch.rows for batch in both.take_batches()])
    assert as_multiset(got) == as_multiset(want[want[:, 0] >= 6])
    assert got.shape[0] > 2


def test_rows_that_the_log_has_no_room_for_are_counted(device, monkeypatch):
    monkeypatch.setattr(gpu, "RING_ROWS", 3)
    runtime = Side(header(), device).runtime
    outside = ForwardCall(
        rows=slots(1), prefix=slots(0), lens=slots(4), tokens=run(0, 4), positions=run(0, 4), slots=run(64, 4)
    )
    runtime.forward(outside)
    rows, lost = runtime.drain()
    assert (rows.shape, lost) == ((3, 8), 5)
    runtime.forward(outside)
    assert runtime.drain()[1] == 5


def test_operations_refuse_slots_outside_of_the_memory(device):
    side = Side(header(sources=[K, V]), device)
    for line, event in enumerate(two_requests(), start=2):
        side.replay.apply(line, event)
    runtime, before = side.runtime, side.memory()["full"]
    for bad in (slots(5, 64), slots(-1), slots(2**62)):
        for operation in (
            lambda bad=bad: runtime.zero_bytes("full", bad),
            lambda bad=bad: runtime.flip_byte("full", bad, 0, 1),
            lambda bad=bad: runtime.copy_bytes("full", slots(*[4] * bad.size), bad),
            lambda bad=bad: runtime.save("full", bad),
            lambda bad=bad: runtime.flip_stamp("full", int(bad[-1]), 0, 1, ["tail"]),
            lambda bad=bad: runtime.read_stamp("full", int(bad[-1])),
        ):
            with pytest.raises(IndexError, match="the memory has 0 to 63"):
                operation()
        contexts = np.zeros(bad.size, np.uint64)
        outside = bad[-1:]
        runtime.write_bytes("full", outside, contexts[-1:], salt=0)
        runtime.load("full", outside, before, sources=None, stamps=True)
        runtime.deliver("full", outside, outside, outside, contexts[-1:], sources=None, stamps=True)
        runtime.copy_bytes("full", outside, slots(5))
    after = side.memory()["full"]
    assert all((after.stamps[key] == before.stamps[key]).all() for key in before.stamps)
    assert all((after.kv[number] == before.kv[number]).all() for number in before.kv)


# ---- device memory


def test_memory_of_a_run_has_the_parts_that_only_a_device_needs():
    layout, _ = masters([FULL, ev.Group(kind="swa", window=4, slots=20)])
    parts, own = ahead_gpu.device_layout(layout).memory_bytes(), layout.memory_bytes()
    assert {name: parts[name] for name in own if name != "ring"} == {n: own[n] for n in own if n != "ring"}
    assert parts["ring"] == 65_536 * 64
    assert parts["seeds"] == 64 * 32


def test_a_run_that_does_not_fit_is_refused_with_numbers(monkeypatch):
    layout, state = masters()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**40))
    choice = DeviceChoice(kind="cuda", index=3, name="a GPU", reason="")
    with pytest.raises(MissingError) as caught:
        ahead_gpu.open_gpu(choice, layout, state.table, state.swa_map, state.expected)
    assert str(caught.value) == (
        "this run needs 0.00 GiB of cuda:3, 0.00 GiB are free; the largest part is ring with 0.00 GiB"
    )
