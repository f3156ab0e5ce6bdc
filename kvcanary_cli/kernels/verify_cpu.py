"""Compare stamps with a verify plan, compiled by Numba. Twins: `verify.py`, `verify_ref.py`.

`verify_cpu` checks its arguments. A caller that makes thousands of launches a second checks once and calls
`verify_serial` or `verify_parallel` with the same arrays itself; both report rows in entry order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange

from kvcanary_cli.kernels._checks import check_verify
from kvcanary_cli.kernels._sources import KvSource, check_sources
from kvcanary_cli.kernels.chains_cpu import stamp_chain
from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_KV_HASH,
    BIT_OUT_OF_RANGE,
    BIT_POSITION,
    BIT_VERIFY_TOKEN,
)
from kvcanary_cli.kernels.hashing_cpu import HEAD, hash_slot, prefetch
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.memory_cpu import NUM_CHUNKS, flat_words
from kvcanary_cli.kernels.plans_cpu import VerifyPlan
from kvcanary_cli.kernels.ring_cpu import store_row
from kvcanary_cli.kernels.sources_cpu import source_table

# Entries ahead of the one being checked whose stamp is asked for. Slots are in random order, so nearly every
# stamp is a cache miss; on two Zen 5 cores 32 gave 175 million entries/s, 8 gave 93, none gave 26.
PREFETCH_ENTRIES = 32

# From here on a launch uses all threads. Two warm threads win from a fifth of it on, but waking sleeping
# ones, or waiting for a busy core, costs 0.1 to 16 ms (tests/bench/bench_cpu_kernels.py --thresholds).
PARALLEL_ENTRIES = 16384


def verify_cpu(
    *,
    canary_buf: np.ndarray,
    plan: VerifyPlan,
    sources: Sequence[KvSource],
    hash_mode: int,
    launch_tag: int,
    log: ViolationLog,
    check_expected_token: bool,
    is_affine: bool = False,
) -> None:
    """`launch_verify` on NumPy arrays: same arguments, same violations in entry order, same refusals."""
    stride = check_verify(canary_buf=canary_buf, plan=plan, log=log)
    check_sources(sources, hash_mode, len(canary_buf), canary_buf)
    verify = verify_serial if plan.verify_num_valid[0] < PARALLEL_ENTRIES else verify_parallel
    verify(
        flat_words(canary_buf, stride),
        stride,
        len(canary_buf),
        plan.verify_slot_indices,
        plan.verify_expected_tokens,
        plan.verify_expected_positions,
        plan.verify_prev_slot_indices,
        plan.verify_num_valid,
        plan.enable,
        source_table(sources, hash_mode),
        bool(check_expected_token),
        bool(is_affine),
        int(launch_tag),
        log.ring,
        log.write_index,
        log.slot_run_counter,
        log.kernel_run_counter,
    )


@njit(cache=True, nogil=True)
def verify_range(
    words,  # [num_slots * stride] int64, the stamps
    stride,  # words from one stamp to the next
    num_slots,
    slots,  # [capacity] int64
    expected_tokens,  # [capacity] int64, -1: unknown
    expected_positions,  # [capacity] int64
    prevs,  # [capacity] int64
    start,
    stop,
    table,  # [sources, 5] int64, `source_table`
    check_expected_token,
    is_affine,  # whether the stamps hold affine chains
    launch_tag,
    ring,  # [ring_capacity, 8] int64
    index,  # where the first row goes; the ring's capacity: nowhere
):
    """Check entries [start, stop). Returns how many violate; the counters are left alone."""
    found = 0
    for entry in range(start, stop):
        if entry + PREFETCH_ENTRIES < slots.shape[0]:
            prefetch(words, slots[entry + PREFETCH_ENTRIES] * stride)
        slot = slots[entry]
        if slot == 0:
            continue
        token = expected_tokens[entry] if check_expected_token else np.int64(-1)
        # one comparison for both ends: a negative slot is a huge unsigned one
        if np.uint64(slot) >= np.uint64(num_slots):
            store_row(ring, index + found, launch_tag, slot, 0, 0, token, 0, 0, BIT_OUT_OF_RANGE)
            found += 1
            continue
        base = slot * stride
        stored_prev = words[base + 2]
        prev = prevs[entry]
        bits = 0
        aux = stored_prev
        if prev >= num_slots:
            bits = BIT_OUT_OF_RANGE
            aux = prev
        elif prev != 0:
            aux = np.int64(HEAD) if prev < 0 else np.int64(stamp_chain(words, prev * stride, is_affine))
            if stored_prev != aux:
                bits = BIT_CHAIN_HASH
        if words[base + 1] != expected_positions[entry]:
            bits |= BIT_POSITION
        if words[base + 3] != np.int64(hash_slot(table, slot)):
            bits |= BIT_KV_HASH
        if token != -1 and token != words[base]:
            bits |= BIT_VERIFY_TOKEN
        if bits:
            stored_token, stored_position = words[base], words[base + 1]
            store_row(
                ring,
                index + found,
                launch_tag,
                slot,
                stored_position,
                stored_token,
                token,
                stored_prev,
                aux,
                bits,
            )
            found += 1
    return found


@njit(cache=True)
def count_launch(num_valid, enable, capacity, slot_run_counter, kernel_run_counter):
    """Advance the counters of one verify launch. Returns the entries to check."""
    kernel_run_counter[0] += 1
    if enable[0] == 0:
        return 0
    num_entries = max(0, min(np.int64(num_valid[0]), capacity))
    slot_run_counter[0] += num_entries
    return num_entries


@njit(cache=True)
def verify_serial(
    words,
    stride,
    num_slots,
    slots,
    expected_tokens,
    expected_positions,
    prevs,
    num_valid,
    enable,
    table,
    check_expected_token,
    is_affine,
    launch_tag,
    ring,
    write_index,
    slot_run_counter,
    kernel_run_counter,
):
    """One launch on the calling thread, unchecked; arrays as in `VerifyPlan` and `ViolationLog`."""
    num_entries = count_launch(num_valid, enable, slots.shape[0], slot_run_counter, kernel_run_counter)
    write_index[0] += verify_range(
        words,
        stride,
        num_slots,
        slots,
        expected_tokens,
        expected_positions,
        prevs,
        0,
        num_entries,
        table,
        check_expected_token,
        is_affine,
        launch_tag,
        ring,
        np.int64(write_index[0]),
    )


@njit(cache=True, parallel=True)
def verify_parallel(
    words,
    stride,
    num_slots,
    slots,
    expected_tokens,
    expected_positions,
    prevs,
    num_valid,
    enable,
    table,
    check_expected_token,
    is_affine,
    launch_tag,
    ring,
    write_index,
    slot_run_counter,
    kernel_run_counter,
):
    """`verify_serial` on all of Numba's threads; the same rows in the same order."""
    num_entries = count_launch(num_valid, enable, slots.shape[0], slot_run_counter, kernel_run_counter)
    found = np.zeros(NUM_CHUNKS, np.int64)
    for chunk in prange(NUM_CHUNKS):
        found[chunk] = verify_range(
            words,
            stride,
            num_slots,
            slots,
            expected_tokens,
            expected_positions,
            prevs,
            num_entries * chunk // NUM_CHUNKS,
            num_entries * (chunk + 1) // NUM_CHUNKS,
            table,
            check_expected_token,
            is_affine,
            launch_tag,
            ring,
            ring.shape[0],
        )
    # rows are rare: what the threads counted is found once more, in order, until the ring is full
    index = np.int64(write_index[0])
    for chunk in range(NUM_CHUNKS):
        if found[chunk] and index < ring.shape[0]:
            verify_range(
                words,
                stride,
                num_slots,
                slots,
                expected_tokens,
                expected_positions,
                prevs,
                num_entries * chunk // NUM_CHUNKS,
                num_entries * (chunk + 1) // NUM_CHUNKS,
                table,
                check_expected_token,
                is_affine,
                launch_tag,
                ring,
                index,
            )
        index += found[chunk]
    write_index[0] = np.int32(index)
