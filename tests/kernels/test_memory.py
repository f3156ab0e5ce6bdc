"""Plans, log, sources and stamp buffers: what they allocate, and what they refuse, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.kernels._checks import check_array, stamp_stride
from kvcanary_cli.kernels._sources import KvSource, check_sources
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.kernels.memory_cpu import flat_words
from kvcanary_cli.kernels.plans_cpu import ALIGNMENT, aligned_zeros
from tests.kernels.refusals import in_words_of


def test_verify_plan_has_room_for_its_entries(backend):
    plan = backend.verify_plan.allocate(5, backend.device)
    assert plan.verify_capacity == 5
    assert backend.get(plan.verify_prev_slot_indices).tolist() == [0] * 5
    assert str(plan.enable.dtype) == in_words_of(backend, "{int32}")


def test_write_plan_has_one_offset_more_than_lanes(backend):
    plan = backend.write_plan.allocate(5, backend.device)
    assert plan.write_req_capacity == 5
    assert (len(plan.write_offsets), len(plan.write_seed_slot_indices), len(plan.verify_offsets)) == (6, 5, 6)


def test_log_keeps_rows_up_to_its_capacity(backend):
    log = backend.log.allocate(2, backend.device)
    assert (log.count, len(log.rows())) == (0, 0)
    log.write_index[0] = 9
    assert (log.count, log.ring_capacity, len(log.rows())) == (9, 2, 2)


@pytest.mark.parametrize("capacity", [0, -4])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("verify_plan", "kv-canary: VerifyPlan verify_capacity must be positive, got {}"),
        ("write_plan", "kv-canary: WritePlan write_req_capacity must be positive, got {}"),
        ("log", "kv-canary: ViolationLog ring_capacity must be positive, got {}"),
    ],
)
def test_no_room_is_refused(name, message, capacity, backend):
    with pytest.raises(ValueError, match="kv-canary") as caught:
        getattr(backend, name).allocate(capacity, backend.device)
    assert str(caught.value) == message.format(capacity)


def test_numpy_memory_is_on_the_cpu_and_begins_on_a_cache_line():
    for size in (1, 3, 100):
        assert aligned_zeros((size, 4), "int64").ctypes.data % ALIGNMENT == 0
    with pytest.raises(ValueError, match="NumPy arrays live on device cpu, got cuda:0"):
        aligned_zeros((3,), "int64", "cuda:0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 0}, "KvSource.page_size must be positive, got 0"),
        (
            {"num_bytes_per_token": 24},
            "KvSource.num_bytes_per_token must be a positive multiple of 16, got 24",
        ),
        ({"read_bytes": 0}, "KvSource.read_bytes must be a positive multiple of 16, got 0"),
        ({"read_bytes": 64}, "KvSource.read_bytes must be at most num_bytes_per_token=32, got 64"),
        (
            {"page_size": 3},
            "KvSource.tensor must have rows of page_size * num_bytes_per_token=96 bytes, got 64",
        ),
    ],
)
def test_source_numbers_that_do_not_fit(change, message, backend):
    arguments = {"page_size": 2, "num_bytes_per_token": 32, "read_bytes": 16} | change
    with pytest.raises(ValueError, match="kv-canary") as caught:
        KvSource(backend.put(np.zeros((4, 64), dtype=np.uint8)), **arguments)
    assert str(caught.value) == f"kv-canary: {message}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rows: rows.reshape(-1), r"KvSource\.tensor must be 2-D, got shape \(448,\)"),
        (
            lambda rows: rows[:, 8:72],
            r"KvSource\.tensor must be aligned to 16 bytes, got address 0x[0-9a-f]+8",
        ),
        (lambda rows: rows[:, ::2], r"KvSource\.tensor must have contiguous rows, got a stride of 2 bytes"),
        (
            lambda rows: rows.reshape(-1)[:288].reshape(4, 72)[:, :64],
            r"KvSource\.tensor must have rows at a distance of at least 64 bytes and a multiple of 16, got 72",
        ),
    ],
    ids=["flat", "unaligned", "gaps", "odd-stride"],
)
def test_source_memory_that_does_not_fit(make, message, backend):
    rows = backend.put(np.zeros((4, 112), dtype=np.uint8))
    with pytest.raises(ValueError, match=f"^kv-canary: {message}$"):
        KvSource(make(rows), 1, 32, 16)


def test_source_dtype(backend):
    with pytest.raises(ValueError, match="dtype") as caught:
        KvSource(backend.put(np.zeros((4, 64), dtype=np.int32)), 1, 16, 16)
    assert str(caught.value) == in_words_of(
        backend, "kv-canary: KvSource.tensor must have dtype {uint8}, got {int32}"
    )


def test_a_source_needs_bytes_for_every_slot():
    source = KvSource(np.zeros((3, 64), dtype=np.uint8), 2, 32, 16)
    stamps = np.zeros((7, 4), dtype=np.int64)
    check_sources([source], HashMode.ALL, 6, stamps)
    with pytest.raises(ValueError, match="kv-canary") as caught:
        check_sources([source, source], HashMode.ALL, 7, stamps)
    message = "kv-canary: sources[0].tensor must have bytes for all 7 slots of canary_buf, got 6"
    assert str(caught.value) == message


def test_a_source_elsewhere_is_refused(backend):
    if backend.name != "triton" or backend.device == "cpu":
        import torch

        source = KvSource(np.zeros((8, 16), dtype=np.uint8), 1, 16, 16)
        buffer = torch.zeros((8, 4), dtype=torch.int64, device="meta")
        message = "kv-canary: sources[0].tensor must be on canary_buf's device meta, got cpu"
    else:
        source = KvSource(backend.put(np.zeros((8, 16), dtype=np.uint8)), 1, 16, 16)
        buffer = np.zeros((8, 4), dtype=np.int64)
        message = (
            f"kv-canary: sources[0].tensor must be on canary_buf's device cpu, got {source.tensor.device}"
        )
    with pytest.raises(ValueError, match="kv-canary") as caught:
        check_sources([source], HashMode.ALL, 8, buffer)
    assert str(caught.value) == message


@pytest.mark.parametrize("words", [4, 5, 9])
def test_a_strided_buffer_is_seen_as_flat_words(words):
    whole = np.arange(6 * words).reshape(6, words)
    view = whole[1:5, :4]
    assert stamp_stride(view) == words
    flat = flat_words(view)
    assert [flat[slot * words + 3] for slot in range(4)] == view[:, 3].tolist()
    # nothing past the last stamp: it may be somebody else's memory
    assert len(flat) == 3 * words + 4
    assert np.shares_memory(flat, whole)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (
            np.zeros((4, 8), dtype=np.int64)[:, ::2],
            "canary_buf must have contiguous rows, got a stride of 2 words",
        ),
        (np.zeros((4, 4), dtype=np.int64)[::-1], "canary_buf must have rows 4 words apart, got -4"),
        (
            np.broadcast_to(np.zeros(4, dtype=np.int64), (4, 4)),
            "canary_buf must have rows 4 words apart, got 0",
        ),
    ],
    ids=["gaps", "backwards", "broadcast"],
)
def test_stamp_buffers_that_overlap_or_have_gaps(buffer, message):
    with pytest.raises(ValueError, match="kv-canary") as caught:
        stamp_stride(buffer)
    assert str(caught.value) == f"kv-canary: {message}"


def test_arrays_of_one_launch_live_in_one_place():
    import torch

    pool = torch.zeros(3, dtype=torch.int64, device="meta")
    for flat in (np.zeros(3, dtype=np.int64), torch.zeros(3, dtype=torch.int64)):
        with pytest.raises(ValueError, match="kv-canary") as caught:
            check_array("flat", flat, "int64", reference=("pool", pool))
        assert str(caught.value) == "kv-canary: flat must be on pool's device meta, got cpu"
    check_array("flat", pool, "int64", reference=("pool", pool))
