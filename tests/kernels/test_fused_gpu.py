"""Verify straight from the page table, against the two steps of the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.hashing_ref import HEAD, chain, hash_slot, signed
from tests.kernels.cases import make_plan_case, make_sources, row_counts

ALL = 2


@pytest.fixture(scope="module")
def triton_backend(device):
    from kvcanary_cli.kernels._vector_backends import load_backend

    return load_backend("triton", device)


def test_runs_the_real_kernel(device):
    from kvcanary_cli.kernels import fused

    expected = "InterpretedFunction" if device == "cpu" else "JITFunction"
    assert type(fused._verify_table_kernel).__name__ == expected


def kv_sources(sources, put) -> list[KvSource]:
    return [KvSource(put(s["bytes"]), s["page_size"], s["token_bytes"], s["read_bytes"]) for s in sources]


def stamp_lanes(rng: np.random.Generator, case, num_slots: int, sources, damage: float) -> np.ndarray:
    """A buffer in which the lanes' chains are right, where they share no slot; then some words are flipped."""
    buffer = rng.integers(-(2**62), 2**62, (num_slots, 4))
    held = kv_sources(sources, np.array)
    cells = case.table.reshape(-1)
    for row, prefix in zip(case.rows.tolist(), case.prefix_lens.tolist(), strict=True):
        running = HEAD
        if not 0 < row < len(case.table):
            continue
        for position in range(max(prefix, 0)):
            cell = row * case.table.shape[1] + position
            slot = int(cells[cell]) if cell < cells.size else -1
            if case.full_to_swa is not None and slot >= 0:
                slot = int(case.full_to_swa[slot]) if slot < len(case.full_to_swa) else -1
            token = int(rng.integers(0, 9))
            if 0 <= slot < num_slots:
                buffer[slot] = token, position, signed(running), signed(hash_slot(held, ALL, slot))
            running = chain(running, token, position)
    for _ in range(int(damage * num_slots)):
        buffer[rng.integers(0, num_slots), rng.integers(0, 4)] ^= 1 << int(rng.integers(0, 40))
    return buffer


def two_steps(reference, case, buffers, sources, ring_capacity: int = 4096) -> list[dict[str, object]]:
    """Rows and counters of the reference: a plan, then one verify a buffer."""
    plan = reference.verify_plan.allocate(case.capacity, "cpu")
    reference.plan(
        verify_plan_out=plan,
        write_plan_out=reference.write_plan.allocate(max(len(case.rows), 1), "cpu"),
        req_pool_indices=case.rows,
        prefix_lens=case.prefix_lens,
        extend_seq_lens=case.extend_lens,
        req_to_token=case.table,
        swa_window_size=case.window,
        full_to_swa=case.full_to_swa,
        expected_tokens=case.pool,
        expected_valid_lens=case.valid_lens,
        token_id_vs_position_offset=case.token_offset,
    )
    assert plan.enable[0]
    results = []
    for tag, (buffer, held) in enumerate(zip(buffers, sources, strict=True)):
        log = reference.log.allocate(ring_capacity, "cpu")
        reference.verify(
            canary_buf=buffer.copy(),
            plan=plan,
            sources=kv_sources(held, np.array),
            hash_mode=ALL,
            launch_tag=tag,
            log=log,
            check_expected_token=True,
        )
        results.append(outcome(log, np.array))
    return results


def outcome(log, get) -> dict[str, object]:
    return {
        "rows": row_counts(get(log.rows())),
        "found": int(log.write_index[0]),
        "entries": int(log.slot_run_counter[0]),
        "launches": int(log.kernel_run_counter[0]),
    }


def one_step(backend, case, buffers, sources, ring_capacity: int = 4096, **launch) -> list[dict[str, object]]:
    from kvcanary_cli.kernels.fused import launch_verify_table
    from kvcanary_cli.kernels.targets import Target, Targets

    put = backend.put
    logs = [backend.log.allocate(ring_capacity, backend.device) for _ in buffers]
    held = [put(buffer) for buffer in buffers]
    items = [
        Target(canary_buf=buffer, sources=kv_sources(s, put), hash_mode=ALL, launch_tag=tag, log=log)
        for tag, (buffer, s, log) in enumerate(zip(held, sources, logs, strict=True))
    ]
    optional = {
        name: None if array is None else put(array)
        for name, array in (
            ("full_to_swa", case.full_to_swa),
            ("expected_tokens", case.pool),
            ("expected_valid_lens", case.valid_lens),
        )
    }
    launch_verify_table(
        targets=Targets(tuple(items)),
        req_pool_indices=put(case.rows),
        prefix_lens=put(case.prefix_lens),
        req_to_token=put(case.table),
        swa_window_size=case.window,
        token_id_vs_position_offset=case.token_offset,
        **optional,
        **launch,
    )
    for buffer, before in zip(held, buffers, strict=True):
        np.testing.assert_array_equal(backend.get(buffer), before)
    return [outcome(log, backend.get) for log in logs]


@pytest.mark.parametrize("num_lanes", [0, 1, 16], ids=lambda n: f"lanes{n}")
@pytest.mark.parametrize("seed", range(6))
def test_same_as_plan_and_verify(num_lanes, seed, triton_backend, reference):
    rng = np.random.default_rng(seed)
    case = make_plan_case(seed, num_lanes)
    num_slots = (480, 90)[case.full_to_swa is not None] - 3
    sources = [[], make_sources(rng, seed % 3, num_slots)]
    buffers = [stamp_lanes(rng, case, num_slots, held, 0.05) for held in sources]
    want = two_steps(reference, case, buffers, sources)
    assert one_step(triton_backend, case, buffers, sources) == want
    assert num_lanes < 5 or want[0]["found"] > 0


@pytest.mark.parametrize("longest", [None, 0, 1, 40, 10**6])
@pytest.mark.parametrize("window", [0, 33])
def test_every_entry_is_checked_whatever_is_said_about_lengths(longest, window, triton_backend, reference):
    rng = np.random.default_rng(5)
    lengths = np.array([0, 1, 31, 32, 33, 62, 63, 400])
    slots = 1 + rng.permutation(1200).astype(np.int32)
    table = np.zeros((9, 420), np.int32)
    table[1:, :100] = slots[:800].reshape(8, 100)
    table[8, 100:420] = slots[800:1120]
    case = replace(
        make_plan_case(0, 1),
        rows=np.arange(1, 9),
        prefix_lens=lengths,
        extend_lens=lengths * 0,
        table=table,
        window=window,
        full_to_swa=np.arange(1300) if window else None,
        pool=None,
        valid_lens=None,
        token_offset=0,
        capacity=4000,
    )
    buffer = stamp_lanes(rng, case, 1250, [], 0.0)
    clean = one_step(triton_backend, case, [buffer], [[]], longest_prefix=longest)[0]
    checked = int(np.minimum(lengths, window or 10**6).sum())
    assert clean == {"rows": {}, "found": 0, "entries": checked, "launches": 1}
    for slot in table[8, 330:400].tolist() + table[6, :62].tolist():
        buffer[slot, 2] += 1
    want = two_steps(reference, case, [buffer], [[]])
    assert one_step(triton_backend, case, [buffer], [[]], longest_prefix=longest) == want


def test_a_full_ring_drops_rows_and_counts_on(triton_backend):
    case = make_plan_case(0, 5, odd=False)
    done = one_step(triton_backend, case, [np.zeros((480, 4), np.int64)], [[]], ring_capacity=3)[0]
    assert sum(done["rows"].values()) == 3
    assert done["found"] > 3


def test_strided_and_odd_buffers(triton_backend, reference):
    rng = np.random.default_rng(2)
    case = make_plan_case(2, 9)
    for words in (5, 6):
        wide = rng.integers(0, 9, (480, words))
        wide[:, :4] = stamp_lanes(rng, case, 480, [], 0.05)
        want = two_steps(reference, case, [wide], [[]])
        assert one_step(triton_backend, case, [wide], [[]]) == want


REFUSALS = {
    "no-targets": ({"targets": ()}, "kv-canary: targets must have at least one buffer, got 0"),
    "window-without-map": (
        {"swa_window_size": 2},
        "requires full_to_swa_index_mapping when swa_window_size > 0",
    ),
    "rows-dtype": (
        {"req_pool_indices": np.zeros(2, np.int32)},
        "req_pool_indices must have dtype torch.int64",
    ),
    "prefix-length": ({"prefix_lens": np.zeros(3, np.int64)}, "prefix_lens length must be 2, got 3"),
    "pool-alone": ({"expected_tokens": np.zeros((2, 4), np.int32)}, "expected_valid_lens must be given with"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals(refusal, triton_backend):
    from kvcanary_cli.kernels.fused import launch_verify_table
    from kvcanary_cli.kernels.targets import Target, Targets

    changes, message = REFUSALS[refusal]
    put = triton_backend.put
    log = triton_backend.log.allocate(4, triton_backend.device)
    target = Target(canary_buf=put(np.zeros((6, 4), np.int64)), launch_tag=0, log=log)
    arguments = {
        "req_pool_indices": put(np.zeros(2, np.int64)),
        "prefix_lens": put(np.zeros(2, np.int64)),
        "req_to_token": put(np.zeros((2, 4), np.int32)),
        "swa_window_size": 0,
        "full_to_swa": None,
        "expected_tokens": None,
        "expected_valid_lens": None,
        "token_id_vs_position_offset": 0,
    }
    for name, value in changes.items():
        arguments[name] = put(value) if isinstance(value, np.ndarray) else value
    with pytest.raises(ValueError, match="kv-canary") as caught:
        launch_verify_table(targets=Targets(arguments.pop("targets", (target,))), **arguments)
    assert message in str(caught.value)
    assert int(log.kernel_run_counter[0]) == 0
