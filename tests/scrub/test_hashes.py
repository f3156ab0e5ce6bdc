"""Hashes of a dump: equal to the plain reference however the file is cut, and to those of live tensors."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.errors import MissingError
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.sweep_hash_ref import sweep_hash_ref
from kvcanary_cli.runtime.devices import DeviceChoice, pick_device
from kvcanary_cli.scrub import chunks
from kvcanary_cli.scrub.backends import device_bytes
from kvcanary_cli.scrub.chunks import ChunkReader, aligned, plan_chunks
from kvcanary_cli.scrub.compare import find_repeats
from kvcanary_cli.scrub.live import hash_slots
from kvcanary_cli.scrub.pool import Selection, natural, open_pool
from kvcanary_cli.scrub.run import ScrubRequest, host_bytes, require_host_memory, scrub
from kvcanary_cli.scrub.values import FLOATS, NEGATIVE_ZERO_IS_NAN, ValueCounter
from kvcanary_cli.trace.safetensors_writer import RawTensor, write_safetensors
from tests.scrub.dumps import arrays, dump

CPU = DeviceChoice(kind="cpu", index=0, name="cpu", reason="")


def reference(tensors: list[np.ndarray]) -> list[int]:
    """The contract in plain Python: rows padded with zeros to a multiple of 16 bytes, tensors in their order."""
    num_slots = len(tensors[0])
    sources = []
    for tensor in tensors:
        rows = tensor.reshape(num_slots, -1).view(np.uint8)
        stride = -(-rows.shape[1] // 16) * 16
        padded = aligned(num_slots * stride).reshape(num_slots, stride)
        padded[:, : rows.shape[1]] = rows
        sources.append(KvSource(padded, 1, stride, stride))
    out = np.empty(num_slots, np.int64)
    sweep_hash_ref(sources=sources, out_hashes=out)
    return out.tolist()


def in_order(tensors):
    return [tensors[name] for name in sorted(tensors, key=natural)]


def test_names_are_ordered_as_people_count():
    names = ["v.2", "k.10", "k.2", "k", "1", "k.2.b"]
    assert sorted(names, key=natural) == ["1", "k", "k.2", "k.2.b", "k.10", "v.2"]


@pytest.mark.parametrize("width", [8, 5, 1])
@pytest.mark.parametrize("rows", [40, 7, 1])
def test_hashes_are_the_references_however_the_file_is_cut(tmp_path, monkeypatch, width, rows):
    tensors = arrays(layers=2, width=width)
    tensors["v.0"] = np.random.default_rng(1).integers(0, 99, (40, 1, 23), dtype=np.uint16)  # another stride
    path = dump(tmp_path / "a", tensors)
    pool = open_pool(path, Selection())
    plan = plan_chunks(pool, rows * pool.slot_bytes)
    assert plan.rows == rows
    monkeypatch.setattr("kvcanary_cli.scrub.run.plan_chunks", lambda pool, chunk_bytes: plan)
    monkeypatch.setattr(chunks, "TASK_BYTES", 100)
    result = scrub(ScrubRequest(path=path, device=CPU, write_hashes=str(tmp_path / "h")))
    assert result.hashes.slots.tolist() == reference(in_order(tensors))
    for name, values in result.hashes.parts.items():
        assert values.tolist() == reference([tensors[name]])


def test_a_chunk_holds_at_least_one_slot(tmp_path):
    pool = open_pool(dump(tmp_path / "a", arrays()), Selection())
    assert plan_chunks(pool, 1).rows == 1
    assert plan_chunks(pool, 1 << 40).rows == 40


def test_a_buffer_is_not_filled_before_its_chunk_is_done(tmp_path):
    tensors = arrays(num_slots=60, layers=1)
    pool = open_pool(dump(tmp_path / "a", tensors), Selection())
    plan = plan_chunks(pool, 4 * pool.slot_bytes)
    buffers = [aligned(plan.num_bytes) for _ in range(chunks.BUFFERS)]
    for chunk in ChunkReader(pool, plan, buffers):
        view = plan.views(buffers[chunk.buffer], pool.parts)[0]
        want = tensors["k.0"][chunk.first : chunk.first + chunk.num_slots].reshape(chunk.num_slots, -1)
        np.testing.assert_array_equal(view[: chunk.num_slots], want.view(np.uint8))


@pytest.mark.parametrize("width", [8, 5])
def test_live_arrays_have_the_hashes_of_their_dump(tmp_path, width):
    torch = pytest.importorskip("torch")
    tensors = arrays(width=width)
    want = scrub(ScrubRequest(path=dump(tmp_path / "a", tensors), device=CPU)).hashes.slots.tolist()
    live = in_order(tensors)
    assert hash_slots(live).tolist() == want
    paged = [array.reshape(10, 4, 2, width) for array in live]
    assert hash_slots(paged, is_paged=True).tolist() == want
    on_torch = hash_slots([torch.from_numpy(array.view(np.int16)) for array in live])
    assert (on_torch.dtype, on_torch.tolist()) == (torch.int64, want)


def test_misaligned_arrays_are_hashed_all_the_same():
    memory = aligned(16 * 5 + 1)
    memory[:] = np.arange(len(memory)) % 251
    assert hash_slots([memory[1:].reshape(5, 16)]).tolist() == reference([memory[1:].copy().reshape(5, 16)])


LIVE_REFUSALS = {
    "none": ([], "hash_slots needs at least one tensor"),
    "lengths": ([np.zeros((2, 16)), np.zeros((3, 16))], r"tensors\[1\] has 3 slots, tensors\[0\] has 2"),
    "dimensions": ([np.float32(1)], r"tensors\[0\] has shape \(\), 1 dimensions count its slots"),
    "strided": ([np.zeros((4, 16))[:, ::2]], r"tensors\[0\] is not contiguous"),
    "no bytes": ([np.zeros((4, 0))], r"tensors\[0\] has shape \(4, 0\): no bytes in it"),
}


@pytest.mark.parametrize("case", LIVE_REFUSALS)
def test_live_arrays_that_are_refused(case):
    tensors, message = LIVE_REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        hash_slots(tensors)


def test_zeros_and_copies():
    hashes = np.array([7, 5, 7, 9, 5, 5, 8, 6, 6])
    found = find_repeats(hashes, zero_hash=7)
    assert found.zero.tolist() == [0, 2]
    assert (found.duplicates, found.groups) == (5, 2)
    assert [group.tolist() for group in found.largest] == [[1, 4, 5], [7, 8]]
    nothing = find_repeats(np.full(3, 7), zero_hash=7)
    assert (len(nothing.zero), nothing.duplicates, nothing.largest) == (3, 0, ())


def test_zeros_and_copies_of_a_dump(tmp_path):
    tensors = arrays(width=5)
    for array in tensors.values():
        array[[0, 9]] = 0
        array[20] = array[30]
    tensors["k.3"][1] = 0  # zero in one tensor is not zero
    found = scrub(ScrubRequest(path=dump(tmp_path / "a", tensors), device=CPU)).repeats
    assert found.zero.tolist() == [0, 9]
    assert [group.tolist() for group in found.largest] == [[20, 30]]


def test_the_digest_depends_on_every_slot_and_its_place(tmp_path):
    def digest(tensors):
        return scrub(ScrubRequest(path=dump(tmp_path / "a", tensors), device=CPU)).hashes.digest

    tensors = arrays(layers=1)
    before = digest(tensors)
    assert before == digest(tensors)
    swapped = {name: array[::-1].copy() for name, array in tensors.items()}
    tensors["v.0"][39, 1, 7] ^= 1
    assert len({before, digest(swapped), digest(tensors)}) == 3


SPECIAL = {
    "F16": ([0x7E00, 0xFC01], [0x7C00, 0xFC00], [0x7BFF, 0]),
    "BF16": ([0x7FC0, 0xFF81], [0x7F80, 0xFF80], [0x7F7F, 0x8000]),
    "F32": ([0x7FC00000], [0xFF800000], [0x7F7FFFFF]),
    "C64": ([0x7FC00000, 0], [0xFF800000, 0], [0x7F7FFFFF, 0]),
    "F64": ([0x7FF0000000000001], [0x7FF0000000000000], [0x7FEFFFFFFFFFFFFF]),
    "F8_E5M2": ([0x7D, 0xFF], [0x7C, 0xFC], [0x7B, 0x80]),
    "F8_E4M3": ([0x7F, 0xFF], [], [0x7E, 0xFE, 0x80]),
    "F8_E8M0": ([0xFF], [], [0xFE, 0x7F]),
    "F8_E4M3FNUZ": ([0x80], [], [0x7F, 0xFF]),
    "F8_E5M2FNUZ": ([0x80], [], [0x7C, 0x7F]),
}


@pytest.mark.parametrize("dtype", SPECIAL)
def test_nan_and_infinity_by_their_bits(tmp_path, dtype):
    code = FLOATS[dtype].code if dtype in FLOATS else "u1"
    nan, inf, fine = (np.array(words, code) for words in SPECIAL[dtype])
    per_value = 2 if dtype == "C64" else 1
    words = np.zeros((5, 8), code)
    words[1, : len(nan)], words[3, : len(inf)], words[4, : len(fine)] = nan, inf, fine
    shape = (5, 8 // per_value)
    write_safetensors(tmp_path / "a", {"x": RawTensor(dtype=dtype, shape=shape, data=words)})
    result = scrub(ScrubRequest(path=str(tmp_path / "a"), device=CPU, values=True))
    found = result.values.counts["x"]
    assert found.nan == np.count_nonzero(nan)
    assert found.inf == np.count_nonzero(inf)
    assert np.concatenate(found.slots).tolist() == ([1, 3] if len(inf) else [1])


def test_every_float_type_is_looked_at_or_named():
    assert set(SPECIAL) == set(FLOATS) | set(NEGATIVE_ZERO_IS_NAN)


def test_types_without_nan_are_not_counted(tmp_path):
    pool = open_pool(dump(tmp_path / "a", arrays(layers=1), "U16"), Selection())
    assert ValueCounter(pool.parts).not_checked == ["k.0", "v.0"]


def test_memory_is_told_before_it_is_taken(tmp_path):
    pool = open_pool(dump(tmp_path / "a", arrays(layers=1)), Selection())
    plan = plan_chunks(pool, 10 * 64)
    assert plan.num_bytes == 10 * 64
    assert host_bytes(plan, [pool], with_parts=False) == 2 * 640 + 40 * 8 + 40 * 64
    assert host_bytes(plan, [pool, pool], with_parts=True) == 2 * 640 + 2 * 40 * 3 * 8 + 40 * 64
    assert device_bytes(plan) == 640 + 10 * 8 * 3
    require_host_memory(4 << 20, plan, available=4 << 20)
    with pytest.raises(MissingError, match=r"takes 4.0 MiB of host memory, 3.0 MiB are free") as caught:
        require_host_memory(4 << 20, plan, available=3 << 20)
    assert "--chunk-mib" in caught.value.hint


@pytest.mark.gpu
@pytest.mark.parametrize("width", [8, 5])
def test_a_gpu_finds_the_same_hashes(tmp_path, width):
    import torch

    tensors = arrays(num_slots=3000, width=width)
    path = dump(tmp_path / "a", tensors)
    request = {"path": path, "chunk_mib": 1, "values": True}
    on_gpu = scrub(ScrubRequest(device=pick_device("cuda"), write_hashes=str(tmp_path / "g"), **request))
    on_cpu = scrub(ScrubRequest(device=CPU, write_hashes=str(tmp_path / "c"), **request))
    assert (tmp_path / "g").read_bytes() == (tmp_path / "c").read_bytes()
    assert on_gpu.times.kernel_seconds > 0
    live = [torch.from_numpy(array.view(np.int16)).cuda() for array in in_order(tensors)]
    assert hash_slots(live).tolist() == on_cpu.hashes.slots.tolist()


@pytest.mark.gpu
def test_a_gpu_without_room_is_told(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (1000, 1 << 40))
    with pytest.raises(MissingError, match=r"takes \d\.\d MiB of memory on cuda:0, 0\.0 MiB are free"):
        scrub(ScrubRequest(path=dump(tmp_path / "a", arrays(3000)), device=pick_device("cuda")))
