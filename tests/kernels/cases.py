"""Inputs for the kernel tests, made from a seed, with everything in them that the contract has a rule for.

Cases are NumPy. `run_*` puts one through an implementation, with outputs that hold a sentinel beforehand and own guard
memory behind them, and returns everything that may have been written as NumPy again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels._vector_backends import Backend
from kvcanary_cli.kernels.hashing_ref import HEAD, chain, hash_slot, signed

SENTINEL = 0x5A
GUARD = (
    64  # elements behind each output: a block of the Triton tests, so that an unmasked store lands in them
)


def guarded(backend: Backend, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """A sentinel-filled array of this shape, and the memory it is the beginning of."""
    size = int(np.prod(shape))
    memory = backend.put(np.full(size + GUARD, SENTINEL, dtype=dtype))
    return memory[:size].reshape(shape), memory


def followed(backend: Backend, values: np.ndarray) -> Any:
    """An input with memory behind it that looks valid, so that reading past the end changes the outcome."""
    return backend.put(np.concatenate([values, np.ones(GUARD, dtype=values.dtype)]))[: len(values)]


def assert_agrees(got: dict[str, np.ndarray], want: dict[str, np.ndarray], true_rows: np.ndarray) -> None:
    """Everything equal but the order of rows; where the ring is too small, each kept row is one of the true ones."""
    assert got.keys() == want.keys()
    for name in want:
        if name != "rows":
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    assert len(got["rows"]) == len(want["rows"])
    assert not row_counts(got["rows"]) - row_counts(true_rows)


def row_counts(rows: np.ndarray) -> Counter[tuple[int, ...]]:
    """Violation rows without their order."""
    return Counter(tuple(row) for row in rows.tolist())


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """A stamp buffer in which every stamp is right: lanes of tokens in slots, and the bytes they were made with."""

    buffer: np.ndarray  # [num_slots, words]
    lanes: list[list[int]]  # slots of each lane in order
    sources: list[dict[str, Any]]
    hash_mode: int
    num_slots: int

    def kv_sources(self, backend: Backend) -> list[KvSource]:
        return [
            KvSource(backend.put(s["bytes"]), s["page_size"], s["token_bytes"], s["read_bytes"])
            for s in self.sources
        ]


def make_sources(rng: np.random.Generator, num_sources: int, num_slots: int) -> list[dict[str, Any]]:
    """Byte sources of various shapes, rows wider than they need to be."""
    sources = []
    for _ in range(num_sources):
        page_size = int(rng.choice([1, 3, 16]))
        token_bytes = 16 * int(rng.integers(1, 4))
        row_bytes = page_size * token_bytes + 16 * int(rng.integers(0, 3))
        pages = -(-num_slots // page_size)
        sources.append(
            {
                "bytes": rng.integers(0, 256, (pages, row_bytes), dtype=np.uint8),
                "page_size": page_size,
                "token_bytes": token_bytes,
                "read_bytes": 16 * int(rng.integers(1, token_bytes // 16 + 1)),
            }
        )
    return sources


def make_stamps(seed: int, num_tokens: int, *, words: int = 4, num_sources: int | None = None) -> Stamps:
    """Lanes that hold `num_tokens` tokens together, in slots of a random order; other stamps are noise."""
    rng = np.random.default_rng(seed)
    num_slots = num_tokens + 7
    hash_mode = int(rng.integers(0, 3))
    sources = make_sources(rng, int(rng.integers(0, 7)) if num_sources is None else num_sources, num_slots)
    buffer = rng.integers(-(2**62), 2**62, (num_slots, words))
    slots = (1 + rng.permutation(num_slots - 1))[:num_tokens].tolist()
    lanes: list[list[int]] = []
    kv_sources = [KvSource(s["bytes"], s["page_size"], s["token_bytes"], s["read_bytes"]) for s in sources]
    while slots:
        length = int(rng.integers(1, 40))
        lane, slots = slots[:length], slots[length:]
        running = HEAD
        for position, slot in enumerate(lane):
            token = int(rng.integers(0, 150_000))
            kv_hash = signed(hash_slot(kv_sources, hash_mode, slot))
            buffer[slot, :4] = token, position, signed(running), kv_hash
            running = chain(running, token, position)
        lanes.append(lane)
    return Stamps(buffer=buffer, lanes=lanes, sources=sources, hash_mode=hash_mode, num_slots=num_slots)


@dataclass(frozen=True, kw_only=True)
class VerifyCase:
    stamps: Stamps
    entries: np.ndarray  # [num_entries, 4] slot, expected token, position, predecessor
    capacity: int
    num_valid: int
    enable: int
    check_expected_token: bool
    ring_capacity: int


def make_verify_case(seed: int, num_entries: int, *, damage: float = 0.2, **changes: Any) -> VerifyCase:
    """A plan over right stamps, of which a share `damage` of entries and stamps is then made wrong."""
    rng = np.random.default_rng(1000 + seed)
    stamps = make_stamps(seed, num_entries, words=(4, 6, 5)[seed % 3])
    entries = np.zeros((num_entries, 4), dtype=np.int64)
    index = 0
    for lane in stamps.lanes:
        for position, slot in enumerate(lane):
            token = stamps.buffer[slot, 0] if rng.random() < 0.7 else -1
            entries[index] = slot, token, position, lane[position - 1] if position else -1
            index += 1
    n = stamps.num_slots
    odd = [
        (0, [0, -1, -(2**40), n, n + 3, 2**40]),  # slots
        (1, [-1, 7]),  # tokens
        (2, [-5, 2**33]),  # positions
        (3, [0, -1, -9, n, 2**40]),  # predecessors
    ]
    for index in range(num_entries):
        if rng.random() < damage:
            column, values = odd[int(rng.integers(0, 4))]
            entries[index, column] = rng.choice(values)
        if rng.random() < damage:
            stamps.buffer[rng.integers(0, n), rng.integers(0, 4)] ^= 1 << int(rng.integers(0, 40))
    options = {
        "capacity": num_entries + int(rng.integers(1, 5)),
        "num_valid": num_entries,
        "enable": 1,
        "check_expected_token": bool(seed % 2),
        "ring_capacity": (3, 4096)[seed % 2],
    }
    return VerifyCase(stamps=stamps, entries=entries, **(options | changes))


def run_verify(backend: Backend, case: VerifyCase, **launch: Any) -> dict[str, np.ndarray]:
    """Launch, and return the log, its guard memory and the stamps, which must not change."""
    plan = backend.verify_plan.allocate(case.capacity, backend.device)
    names = (
        "verify_slot_indices",
        "verify_expected_tokens",
        "verify_expected_positions",
        "verify_prev_slot_indices",
    )
    for name, column in zip(names, case.entries.T, strict=True):
        getattr(plan, name)[:] = SENTINEL
        getattr(plan, name)[: len(column)] = backend.put(column)
    plan.verify_num_valid[0] = case.num_valid
    plan.enable[0] = case.enable
    buffer = backend.put(case.stamps.buffer)
    log, memory = guarded_log(backend, case.ring_capacity)
    backend.verify(
        canary_buf=buffer,
        plan=plan,
        sources=case.stamps.kv_sources(backend),
        hash_mode=case.stamps.hash_mode,
        launch_tag=7,
        log=log,
        check_expected_token=case.check_expected_token,
        **launch,
    )
    return {"stamps": backend.get(buffer)} | read_log(backend, log, memory)


def guarded_log(backend: Backend, ring_capacity: int) -> tuple[Any, Any]:
    """A log whose counters are not zero and whose ring has guard memory behind it."""
    log = backend.log.allocate(ring_capacity, backend.device)
    ring, memory = guarded(backend, (ring_capacity, 8), "int64")
    log.slot_run_counter[0] = 1000
    log.kernel_run_counter[0] = 2000
    return type(log)(
        ring=ring,
        write_index=log.write_index,
        slot_run_counter=log.slot_run_counter,
        kernel_run_counter=log.kernel_run_counter,
    ), memory


def read_log(backend: Backend, log: Any, memory: Any) -> dict[str, np.ndarray]:
    """Rows kept, everything behind them, and the counters."""
    count = int(log.write_index[0])
    kept = min(count, log.ring_capacity)
    words = backend.get(memory)
    rows = words[: kept * 8].reshape(-1, 8)
    return {
        "rows": rows,
        "behind": words[kept * 8 :],
        "write_index": np.array(count),
        "slot_run": backend.get(log.slot_run_counter),
        "kernel_run": backend.get(log.kernel_run_counter),
    }


@dataclass(frozen=True, kw_only=True)
class WriteCase:
    stamps: Stamps
    offsets: np.ndarray
    seeds: np.ndarray
    num_valid: int
    input_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    expected: tuple[np.ndarray, np.ndarray] | None
    chain_position_assert: bool
    ring_capacity: int = 4096
    seed_buf: np.ndarray | None = field(default=None)


def make_write_case(seed: int, num_tokens: int, *, damage: float = 0.15, **changes: Any) -> WriteCase:
    """Lanes of various lengths, none of which writes a slot that another one reads or writes."""
    rng = np.random.default_rng(2000 + seed)
    stamps = make_stamps(seed, 2 * num_tokens + 8, words=(4, 6, 5)[seed % 3])
    free = rng.permutation(stamps.num_slots).tolist()
    slots, positions, seeds, offsets = [], [], [], [0]
    while offsets[-1] < num_tokens:
        length = min(int(rng.choice([0, 1, 1, 2, 9, 14])), num_tokens - offsets[-1])
        seed_slot = (
            int(rng.choice([-1, free.pop(), stamps.num_slots + 2])) if rng.random() < 0.5 else free.pop()
        )
        start = int(stamps.buffer[seed_slot, 1]) + 1 if 0 <= seed_slot < stamps.num_slots else 0
        seeds.append(seed_slot)
        positions += [np.int64(start).item() + step for step in range(length)]
        slots += [free.pop() for _ in range(length)]
        offsets.append(offsets[-1] + length)
    slots_array = np.array(slots, dtype=np.int64)
    input_ids = rng.integers(0, 150_000, num_tokens)
    positions_array = np.array(positions, dtype=np.int64)
    for index in range(num_tokens):
        if rng.random() < damage:
            slots_array[index] = rng.choice([-1, -7, stamps.num_slots, 2**40])
        if rng.random() < damage:
            positions_array[index] += int(rng.choice([-2, 1, 2**35]))
    expected = None
    if seed % 2:
        wrong = rng.random((2, num_tokens)) < damage
        expected = (input_ids + wrong[0], positions_array - wrong[1])
    options = {
        "expected": expected,
        "chain_position_assert": bool(seed % 4 < 2),
        "ring_capacity": (4096, 2)[seed % 5 == 4],
        "num_valid": len(seeds) - (seed % 3 == 2 and len(seeds) > 1),
    }
    return WriteCase(
        stamps=stamps,
        offsets=np.array(offsets, dtype=np.int64),
        seeds=np.array(seeds, dtype=np.int64),
        input_ids=input_ids,
        positions=positions_array,
        slots=slots_array,
        **(options | changes),
    )


def run_write(backend: Backend, case: WriteCase, **launch: Any) -> dict[str, np.ndarray]:
    """Launch, and return the log and the stamps with their guard memory."""
    plan = backend.write_plan.allocate(len(case.seeds) + 2, backend.device)
    plan.write_offsets[:] = SENTINEL
    plan.write_offsets[: len(case.offsets)] = backend.put(case.offsets)
    plan.write_seed_slot_indices[:] = SENTINEL
    plan.write_seed_slot_indices[: len(case.seeds)] = backend.put(case.seeds)
    plan.write_num_valid_reqs[0] = case.num_valid
    buffer, buffer_memory = guarded(backend, case.stamps.buffer.shape, "int64")
    buffer[:] = backend.put(case.stamps.buffer)
    log, memory = guarded_log(backend, case.ring_capacity)
    expected = None if case.expected is None else ExpectedInputs(*map(backend.put, case.expected))
    if case.seed_buf is not None:
        launch["seed_buf"] = backend.put(case.seed_buf)
    backend.write(
        canary_buf=buffer,
        plan=plan,
        input_ids=followed(backend, case.input_ids),
        positions=followed(backend, case.positions),
        out_cache_loc=followed(backend, case.slots),
        sources=case.stamps.kv_sources(backend),
        hash_mode=case.stamps.hash_mode,
        launch_tag=3,
        log=log,
        expected_inputs=expected,
        chain_position_assert=case.chain_position_assert,
        **launch,
    )
    return {"stamps": backend.get(buffer_memory)} | read_log(backend, log, memory)


@dataclass(frozen=True, kw_only=True)
class PlanCase:
    rows: np.ndarray
    prefix_lens: np.ndarray
    extend_lens: np.ndarray
    table: np.ndarray
    window: int
    full_to_swa: np.ndarray | None
    pool: np.ndarray | None
    valid_lens: np.ndarray | None
    token_offset: int
    capacity: int


def make_plan_case(seed: int, num_lanes: int, *, odd: bool = True, **changes: Any) -> PlanCase:
    """Lanes of a page table; with `odd` some rows, prefixes, slots and lengths lie outside of what there is."""
    rng = np.random.default_rng(3000 + seed)
    width = int(rng.integers(3, 24))
    num_rows = num_lanes + 3
    table = rng.integers(0, 500, (num_rows, width), dtype=np.int32)
    rows = 1 + rng.permutation(num_rows - 1)[:num_lanes]
    prefix_lens = rng.integers(0, width + 1, num_lanes)
    extend_lens = rng.integers(0, 5, num_lanes)
    full_to_swa = rng.integers(0, 90, 400 if odd else 500) if seed % 2 else None
    pool = valid_lens = None
    if seed % 3:
        pool = rng.integers(
            0, 150_000, (num_rows - 2 * odd, width + int(rng.integers(-2, 3))), dtype=np.int32
        )
        valid_lens = rng.integers(0, width + 4, num_lanes)
    if odd and num_lanes:
        table[rng.integers(0, num_rows), rng.integers(0, width)] = -3
        for _ in range(1 + num_lanes // 8):
            rows[rng.integers(0, num_lanes)] = rng.choice([0, -1, num_rows, 2**40, num_rows - 1])
            prefix_lens[rng.integers(0, num_lanes)] = rng.choice([-4, width + 2, 3 * width])
            extend_lens[rng.integers(0, num_lanes)] = -2
    options = {
        "window": int(rng.integers(1, width)) if full_to_swa is not None and seed % 4 == 1 else 0,
        "token_offset": seed % 2,
        "capacity": 40 * num_lanes + 64,
    }
    return PlanCase(
        rows=rows.astype(np.int64),
        prefix_lens=prefix_lens.astype(np.int64),
        extend_lens=extend_lens.astype(np.int64),
        table=table,
        full_to_swa=full_to_swa,
        pool=pool,
        valid_lens=valid_lens,
        **(options | changes),
    )


def run_plan(backend: Backend, case: PlanCase, **launch: Any) -> dict[str, np.ndarray]:
    """Launch, and return all output memory but the working memory."""
    num_lanes = len(case.rows)
    outputs = {
        "verify_slot_indices": ((case.capacity,), "int64"),
        "verify_expected_tokens": ((case.capacity,), "int64"),
        "verify_expected_positions": ((case.capacity,), "int64"),
        "verify_prev_slot_indices": ((case.capacity,), "int64"),
        "verify_num_valid": ((1,), "int32"),
        "enable": ((1,), "int32"),
        "write_offsets": ((num_lanes + 2,), "int64"),
        "write_seed_slot_indices": ((num_lanes + 1,), "int64"),
        "write_num_valid_reqs": ((1,), "int32"),
        "verify_offsets": ((num_lanes + 2,), "int64"),
    }
    arrays = {name: guarded(backend, shape, dtype) for name, (shape, dtype) in outputs.items()}
    views = {name: view for name, (view, _) in arrays.items()}
    names = list(outputs)
    backend.plan(
        verify_plan_out=backend.verify_plan(**{name: views[name] for name in names[:6]}),
        write_plan_out=backend.write_plan(**{name: views[name] for name in names[6:]}),
        req_pool_indices=followed(backend, case.rows),
        prefix_lens=followed(backend, case.prefix_lens),
        extend_seq_lens=followed(backend, case.extend_lens),
        req_to_token=backend.put(case.table),
        swa_window_size=case.window,
        full_to_swa=None if case.full_to_swa is None else followed(backend, case.full_to_swa),
        expected_tokens=None if case.pool is None else backend.put(case.pool),
        expected_valid_lens=None if case.valid_lens is None else backend.put(case.valid_lens),
        token_id_vs_position_offset=case.token_offset,
        **launch,
    )
    return {name: backend.get(memory) for name, (_, memory) in arrays.items() if name != "verify_offsets"}
