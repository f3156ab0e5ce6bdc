"""Stamp the slots of a forward's tokens, compiled by Numba. Twins: `write.py`, `write_ref.py`.

`write_cpu` checks its arguments; `write_serial` and `write_parallel` take the same arrays unchecked, for
callers that make thousands of launches a second. Both read all seeds first and report rows in lane order. Where two
entries write one slot, only `write_serial` says which one stays: the later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange

from kvcanary_cli.kernels._checks import check_write
from kvcanary_cli.kernels._layout import ExpectedInputs
from kvcanary_cli.kernels._sources import KvSource, check_sources
from kvcanary_cli.kernels.chains_cpu import chain_step, stamp_chain
from kvcanary_cli.kernels.consts import BIT_OUT_OF_RANGE, BIT_WRITE_POSITION, BIT_WRITE_TOKEN
from kvcanary_cli.kernels.hashing_cpu import HEAD, hash_slot, prefetch
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.memory_cpu import NO_WORDS, NUM_CHUNKS, flat_words
from kvcanary_cli.kernels.plans_cpu import WritePlan
from kvcanary_cli.kernels.ring_cpu import store_row
from kvcanary_cli.kernels.sources_cpu import source_table

# Entries ahead of the one being written whose stamp is asked for; 32 gave 180 million tokens/s on two Zen 5
# cores, none gave 62.
PREFETCH_ENTRIES = 32

PARALLEL_ENTRIES = 16384  # see `verify_cpu.PARALLEL_ENTRIES`


def write_cpu(
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
    """`launch_write` on NumPy arrays: same arguments, same stamps and violations, same refusals."""
    stride = check_write(
        canary_buf=canary_buf,
        seed_buf=seed_buf,
        plan=plan,
        input_ids=input_ids,
        positions=positions,
        out_cache_loc=out_cache_loc,
        log=log,
        expected_inputs=expected_inputs,
    )
    check_sources(sources, hash_mode, len(canary_buf), canary_buf)
    words = flat_words(canary_buf, stride)
    write = write_serial if len(input_ids) < PARALLEL_ENTRIES else write_parallel
    write(
        words,
        stride,
        len(canary_buf),
        words if seed_buf is None else flat_words(seed_buf, stride),
        plan.write_offsets,
        plan.write_seed_slot_indices,
        plan.write_num_valid_reqs,
        input_ids,
        positions,
        out_cache_loc,
        source_table(sources, hash_mode),
        int(launch_tag),
        log.ring,
        log.write_index,
        log.slot_run_counter,
        log.kernel_run_counter,
        NO_WORDS if expected_inputs is None else expected_inputs[0],
        NO_WORDS if expected_inputs is None else expected_inputs[1],
        bool(chain_position_assert),
        bool(is_affine),
    )


@njit(cache=True, nogil=True)
def write_lane(
    words,  # [num_slots * stride] int64, the stamps
    stride,
    num_slots,
    seed,
    running,  # uint64, hash of the chain before the first token
    previous,  # position before the first token, if the seed has one
    start,
    stop,
    input_ids,
    positions,
    out_cache_loc,
    table,  # [sources, 5] int64, `source_table`
    launch_tag,
    ring,
    index,  # where the first row goes; the ring's capacity: nowhere
    expected_tokens,  # [num_tokens] int64, or [0]: no input assert
    expected_positions,
    chain_position_assert,
    is_affine,  # whether the chains are affine
):
    """Write the tokens [start, stop) of one lane. Returns (violations, stamps written)."""
    found = 0
    num_written = 0
    num_tokens = out_cache_loc.shape[0]
    if seed >= num_slots:
        store_row(ring, index, launch_tag, seed, -1, 0, -1, 0, num_slots, BIT_OUT_OF_RANGE)
        found += 1
    checks_chain = chain_position_assert and 0 <= seed < num_slots
    for entry in range(start, stop):
        if entry + PREFETCH_ENTRIES < num_tokens:
            prefetch(words, out_cache_loc[entry + PREFETCH_ENTRIES] * stride)
        slot, token, position = out_cache_loc[entry], input_ids[entry], positions[entry]
        if slot < 0:
            continue
        if expected_tokens.shape[0] > 0:
            wanted_token, wanted = expected_tokens[entry], expected_positions[entry]
            bits = (BIT_WRITE_TOKEN if token != wanted_token else 0) | (
                BIT_WRITE_POSITION if position != wanted else 0
            )
            if bits:
                store_row(
                    ring,
                    index + found,
                    launch_tag,
                    slot,
                    position,
                    token,
                    wanted_token,
                    running,
                    wanted,
                    bits,
                )
                found += 1
        if checks_chain:
            wanted = previous + 1
            if position != wanted:
                bits = BIT_WRITE_POSITION
                store_row(
                    ring, index + found, launch_tag, slot, position, token, token, running, wanted, bits
                )
                found += 1
            previous = position
        if slot >= num_slots:
            bits = BIT_OUT_OF_RANGE
            store_row(ring, index + found, launch_tag, slot, position, token, token, running, num_slots, bits)
            found += 1
        else:
            base = slot * stride
            words[base] = token
            words[base + 1] = position
            words[base + 2] = np.int64(running)
            words[base + 3] = np.int64(hash_slot(table, slot))
            num_written += 1
        running = chain_step(running, np.uint64(token), np.uint64(position), is_affine)
    return found, num_written


@njit(cache=True)
def read_seeds(seed_words, stride, num_slots, seeds, is_affine, out_running, out_previous):
    """Hash and position that each lane's chain continues from; its head where there is no seed to read."""
    for lane in range(out_running.shape[0]):
        seed = seeds[lane]
        out_running[lane] = HEAD
        out_previous[lane] = -1
        if 0 <= seed < num_slots:
            out_running[lane] = stamp_chain(seed_words, seed * stride, is_affine)
            out_previous[lane] = seed_words[seed * stride + 1]


@njit(cache=True)
def count_lanes(num_valid_reqs, seeds):
    """Lanes that count, never more than the plan has room for."""
    return max(0, min(np.int64(num_valid_reqs[0]), seeds.shape[0]))


@njit(cache=True)
def write_serial(
    words,
    stride,
    num_slots,
    seed_words,
    offsets,
    seeds,
    num_valid_reqs,
    input_ids,
    positions,
    out_cache_loc,
    table,
    launch_tag,
    ring,
    write_index,
    slot_run_counter,
    kernel_run_counter,
    expected_tokens,
    expected_positions,
    chain_position_assert,
    is_affine,
):
    """One launch on the calling thread, unchecked; arrays as in `WritePlan` and `ViolationLog`."""
    num_lanes = count_lanes(num_valid_reqs, seeds)
    num_tokens = np.int64(input_ids.shape[0])
    running = np.empty(num_lanes, np.uint64)
    previous = np.empty(num_lanes, np.int64)
    read_seeds(seed_words, stride, num_slots, seeds, is_affine, running, previous)
    for lane in range(num_lanes):
        found, num_written = write_lane(
            words,
            stride,
            num_slots,
            seeds[lane],
            running[lane],
            previous[lane],
            max(np.int64(0), offsets[lane]),
            min(num_tokens, offsets[lane + 1]),
            input_ids,
            positions,
            out_cache_loc,
            table,
            launch_tag,
            ring,
            np.int64(write_index[0]),
            expected_tokens,
            expected_positions,
            chain_position_assert,
            is_affine,
        )
        write_index[0] += found
        slot_run_counter[0] += num_written
    kernel_run_counter[0] += 1


@njit(cache=True, parallel=True)
def write_parallel(
    words,
    stride,
    num_slots,
    seed_words,
    offsets,
    seeds,
    num_valid_reqs,
    input_ids,
    positions,
    out_cache_loc,
    table,
    launch_tag,
    ring,
    write_index,
    slot_run_counter,
    kernel_run_counter,
    expected_tokens,
    expected_positions,
    chain_position_assert,
    is_affine,
):
    """`write_serial` on all of Numba's threads, each with lanes of about the same number of tokens."""
    num_lanes = count_lanes(num_valid_reqs, seeds)
    num_tokens = np.int64(input_ids.shape[0])
    running = np.empty(num_lanes, np.uint64)
    previous = np.empty(num_lanes, np.int64)
    read_seeds(seed_words, stride, num_slots, seeds, is_affine, running, previous)
    found = np.zeros(num_lanes, np.int64)
    num_written = np.zeros(NUM_CHUNKS, np.int64)
    for chunk in prange(NUM_CHUNKS):
        for lane in range(num_lanes):
            start = min(max(np.int64(0), offsets[lane]), num_tokens)
            if min(start * NUM_CHUNKS // max(num_tokens, 1), NUM_CHUNKS - 1) == chunk:
                found[lane], written = write_lane(
                    words,
                    stride,
                    num_slots,
                    seeds[lane],
                    running[lane],
                    previous[lane],
                    start,
                    min(num_tokens, offsets[lane + 1]),
                    input_ids,
                    positions,
                    out_cache_loc,
                    table,
                    launch_tag,
                    ring,
                    ring.shape[0],
                    expected_tokens,
                    expected_positions,
                    chain_position_assert,
                    is_affine,
                )
                num_written[chunk] += written
    # rows are rare: lanes that have some are written once more, the same, and in order, until the ring is full
    index = np.int64(write_index[0])
    for lane in range(num_lanes):
        if found[lane] and index < ring.shape[0]:
            write_lane(
                words,
                stride,
                num_slots,
                seeds[lane],
                running[lane],
                previous[lane],
                max(np.int64(0), offsets[lane]),
                min(num_tokens, offsets[lane + 1]),
                input_ids,
                positions,
                out_cache_loc,
                table,
                launch_tag,
                ring,
                index,
                expected_tokens,
                expected_positions,
                chain_position_assert,
                is_affine,
            )
        index += found[lane]
    write_index[0] = np.int32(index)
    slot_run_counter[0] += num_written.sum()
    kernel_run_counter[0] += 1
