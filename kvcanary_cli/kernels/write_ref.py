"""Stamp the slots of a forward's tokens, in plain Python. Twins: `write_cpu.py`, `write.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from kvcanary_cli.kernels._checks import check_write
from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels._sources import KvSource, check_sources
from kvcanary_cli.kernels.chains_ref import chain_step
from kvcanary_cli.kernels.consts import BIT_OUT_OF_RANGE, BIT_WRITE_POSITION, BIT_WRITE_TOKEN, STAMP_WORDS
from kvcanary_cli.kernels.hashing_ref import HEAD, MASK, hash_slot, signed
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.plans_cpu import WritePlan


def write_ref(
    *,
    canary_buf: np.ndarray,
    plan: WritePlan,
    input_ids: np.ndarray,
    positions: np.ndarray,
    out_cache_loc: np.ndarray,
    sources: Sequence[KvSource],
    hash_mode: int,
    launch_tag: int,
    log: ViolationLog,
    expected_inputs: ExpectedInputs | None,
    chain_position_assert: bool,
    seed_buf: np.ndarray | None = None,
    is_affine: bool = False,
) -> None:
    """`launch_write` on NumPy arrays: all seeds are read first, then lanes are written one after another."""
    check_write(
        canary_buf=canary_buf,
        seed_buf=seed_buf,
        plan=plan,
        input_ids=input_ids,
        positions=positions,
        out_cache_loc=out_cache_loc,
        log=log,
        expected_inputs=expected_inputs,
    )
    num_slots = len(canary_buf)
    check_sources(sources, hash_mode, num_slots, canary_buf)
    log.kernel_run_counter[0] += 1
    num_lanes = max(0, min(int(plan.write_num_valid_reqs[0]), plan.write_req_capacity))
    offsets = np.clip(plan.write_offsets[: num_lanes + 1], 0, len(input_ids)).tolist()
    seeds = plan.write_seed_slot_indices[:num_lanes].tolist()
    seed_stamps = canary_buf if seed_buf is None else seed_buf
    starts = [_start(seed_stamps, seed, is_affine) for seed in seeds]
    kv_hash = partial(hash_slot, sources, hash_mode)
    inputs = (out_cache_loc, input_ids, positions)
    for lane, (running, previous) in enumerate(starts):
        if seeds[lane] >= num_slots:
            log.append((launch_tag, seeds[lane], -1, 0, -1, 0, num_slots, BIT_OUT_OF_RANGE))
        for entry in range(offsets[lane], offsets[lane + 1]):
            slot, token, position = (int(array[entry]) for array in inputs)
            if slot < 0:
                continue
            wanted = (
                None if expected_inputs is None else tuple(int(array[entry]) for array in expected_inputs)
            )
            # the position assert is off where there is no seed to begin from
            before = previous if chain_position_assert else None
            for row in _entry_rows(slot, token, position, signed(running), wanted, before, num_slots):
                log.append((launch_tag, *row))
            if slot < num_slots:
                canary_buf[slot, :STAMP_WORDS] = (token, position, signed(running), signed(kv_hash(slot)))
                log.slot_run_counter[0] += 1
            previous = None if previous is None else position
            running = chain_step(running, token, position, is_affine)


def _entry_rows(
    slot: int,
    token: int,
    position: int,
    stored_prev: int,
    wanted: tuple[int, ...] | None,
    previous: int | None,
    num_slots: int,
) -> Iterator[tuple[int, ...]]:
    """Violation rows of one token, without the launch tag: a row a reason, but one for both inputs."""
    if wanted is not None:
        wanted_token, wanted_position = wanted
        bits = (BIT_WRITE_TOKEN if token != wanted_token else 0) | (
            BIT_WRITE_POSITION if position != wanted_position else 0
        )
        if bits:
            yield slot, position, token, wanted_token, stored_prev, wanted_position, bits
    if previous is not None:
        next_position = signed((previous + 1) & MASK)
        if position != next_position:
            yield slot, position, token, token, stored_prev, next_position, BIT_WRITE_POSITION
    if slot >= num_slots:
        yield slot, position, token, token, stored_prev, num_slots, BIT_OUT_OF_RANGE


def _start(seed_buf: np.ndarray, seed: int, is_affine: bool) -> tuple[int, int | None]:
    """The chain's hash before the lane's first token, and the seed's position if there is a seed to read."""
    if not 0 <= seed < len(seed_buf):
        return HEAD, None
    token, position, prev_hash = seed_buf[seed, : STAMP_WORDS - 1].tolist()
    return chain_step(prev_hash, token, position, is_affine), position
