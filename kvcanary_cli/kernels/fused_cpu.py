"""Verify straight from the page table, without a plan in memory, compiled by Numba.

Same violations, in the same order, and same counters as `plan_cpu` followed by `verify_cpu`. A plan costs 32
bytes an entry to write and to read again; here a block of it lives in the cache for as long as it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange

from kvcanary_cli.kernels._checks import check_verify_table
from kvcanary_cli.kernels._sources import KvSource, check_sources
from kvcanary_cli.kernels.hashing_cpu import prefetch
from kvcanary_cli.kernels.log_cpu import ViolationLog
from kvcanary_cli.kernels.memory_cpu import NUM_CHUNKS, flat_words
from kvcanary_cli.kernels.plan_cpu import count_entries, fill_entries
from kvcanary_cli.kernels.sources_cpu import source_table
from kvcanary_cli.kernels.verify_cpu import PREFETCH_ENTRIES, verify_range

BLOCK_ENTRIES = 512  # 16 KiB of plan: stays in the first-level cache beside the stamps it points to

PARALLEL_ENTRIES = 16384  # see `verify_cpu.PARALLEL_ENTRIES`


def verify_table_cpu(
    *,
    canary_buf: np.ndarray,
    req_pool_indices: np.ndarray,
    prefix_lens: np.ndarray,
    req_to_token: np.ndarray,
    swa_window_size: int,
    full_to_swa: np.ndarray,
    expected_tokens: np.ndarray,
    expected_valid_lens: np.ndarray,
    token_id_vs_position_offset: int,
    sources: Sequence[KvSource],
    hash_mode: int,
    launch_tag: int,
    log: ViolationLog,
    check_expected_token: bool,
    verify_capacity: int = -1,
    is_affine: bool = False,
) -> int:
    """Plan and verify in one pass.

    Args:
        canary_buf, sources, hash_mode, launch_tag, log, check_expected_token: as in `launch_verify`.
        req_pool_indices, prefix_lens, req_to_token, swa_window_size, token_id_vs_position_offset: as in
            `launch_plan`.
        full_to_swa: [full slots] int64, or empty: no window map.
        expected_tokens: [rows, width] int32, or empty: no token is known.
        expected_valid_lens: [lanes] int64, or empty with `expected_tokens`.
        verify_capacity: entries that a plan would have room for; more than that, and nothing is checked.
            Negative: no limit.
        is_affine: whether the stamps hold affine chains.

    Returns the entries that a plan would hold, checked or not. Raises ValueError as the two launchers do.
    """
    stride = check_verify_table(
        canary_buf=canary_buf,
        req_pool_indices=req_pool_indices,
        prefix_lens=prefix_lens,
        req_to_token=req_to_token,
        swa_window_size=swa_window_size,
        full_to_swa=full_to_swa,
        expected_tokens=expected_tokens,
        expected_valid_lens=expected_valid_lens,
        log=log,
    )
    check_sources(sources, hash_mode, len(canary_buf), canary_buf)
    is_small = int(prefix_lens.sum()) < PARALLEL_ENTRIES
    verify = verify_table_serial if is_small else verify_table_parallel
    return verify(
        flat_words(canary_buf, stride),
        stride,
        len(canary_buf),
        req_pool_indices,
        prefix_lens,
        req_to_token,
        int(swa_window_size),
        len(full_to_swa) > 0,
        full_to_swa,
        expected_tokens,
        expected_valid_lens,
        int(token_id_vs_position_offset),
        int(verify_capacity),
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
def verify_table_range(
    words,
    stride,
    num_slots,
    req_pool_indices,
    prefix_lens,
    req_to_token,
    window,
    has_map,
    full_to_swa,
    expected_tokens,
    expected_valid_lens,
    token_id_vs_position_offset,
    verify_offsets,
    start,
    stop,
    table,
    check_expected_token,
    is_affine,
    launch_tag,
    ring,
    index,
):
    """Check the entries [start, stop) that a plan would hold, block by block. Returns how many violate."""
    block = np.empty((4, BLOCK_ENTRIES), np.int64)
    slots = block[0]
    cells = req_to_token.reshape(-1)
    found = 0
    for first in range(start, stop, BLOCK_ENTRIES):
        last = min(first + BLOCK_ENTRIES, stop)
        fill_entries(
            req_pool_indices,
            prefix_lens,
            cells,
            req_to_token.shape[1],
            window,
            has_map,
            full_to_swa,
            expected_tokens,
            expected_valid_lens,
            token_id_vs_position_offset,
            verify_offsets,
            first,
            last,
            first,
            slots,
            block[1],
            block[2],
            block[3],
        )
        # verify_range looks ahead from its first entry on: these have to be asked for here
        for entry in range(min(last - first, PREFETCH_ENTRIES)):
            prefetch(words, slots[entry] * stride)
        found += verify_range(
            words,
            stride,
            num_slots,
            slots,
            block[1],
            block[2],
            block[3],
            0,
            last - first,
            table,
            check_expected_token,
            is_affine,
            launch_tag,
            ring,
            index + found,
        )
    return found


@njit(cache=True)
def begin_launch(
    req_pool_indices,
    prefix_lens,
    num_rows,
    window,
    verify_capacity,
    verify_offsets,
    slot_run_counter,
    kernel_run_counter,
):
    """Lay out the entries and advance the counters. Returns (entries wanted, entries to check)."""
    total = count_entries(req_pool_indices, prefix_lens, num_rows, window, verify_offsets)
    to_check = np.int64(0) if 0 <= verify_capacity < total else total
    kernel_run_counter[0] += 1
    slot_run_counter[0] += to_check
    return total, to_check


@njit(cache=True)
def verify_table_serial(
    words,
    stride,
    num_slots,
    req_pool_indices,
    prefix_lens,
    req_to_token,
    window,
    has_map,
    full_to_swa,
    expected_tokens,
    expected_valid_lens,
    token_id_vs_position_offset,
    verify_capacity,
    table,
    check_expected_token,
    is_affine,
    launch_tag,
    ring,
    write_index,
    slot_run_counter,
    kernel_run_counter,
):
    """One launch on the calling thread: as `verify_table_cpu`, unchecked. Returns the entries wanted."""
    verify_offsets = np.empty(req_pool_indices.shape[0] + 1, np.int64)
    total, to_check = begin_launch(
        req_pool_indices,
        prefix_lens,
        req_to_token.shape[0],
        window,
        verify_capacity,
        verify_offsets,
        slot_run_counter,
        kernel_run_counter,
    )
    write_index[0] += verify_table_range(
        words,
        stride,
        num_slots,
        req_pool_indices,
        prefix_lens,
        req_to_token,
        window,
        has_map,
        full_to_swa,
        expected_tokens,
        expected_valid_lens,
        token_id_vs_position_offset,
        verify_offsets,
        np.int64(0),
        to_check,
        table,
        check_expected_token,
        is_affine,
        launch_tag,
        ring,
        np.int64(write_index[0]),
    )
    return total


@njit(cache=True, parallel=True)
def verify_table_parallel(
    words,
    stride,
    num_slots,
    req_pool_indices,
    prefix_lens,
    req_to_token,
    window,
    has_map,
    full_to_swa,
    expected_tokens,
    expected_valid_lens,
    token_id_vs_position_offset,
    verify_capacity,
    table,
    check_expected_token,
    is_affine,
    launch_tag,
    ring,
    write_index,
    slot_run_counter,
    kernel_run_counter,
):
    """`verify_table_serial` on all of Numba's threads; the same rows in the same order."""
    verify_offsets = np.empty(req_pool_indices.shape[0] + 1, np.int64)
    total, to_check = begin_launch(
        req_pool_indices,
        prefix_lens,
        req_to_token.shape[0],
        window,
        verify_capacity,
        verify_offsets,
        slot_run_counter,
        kernel_run_counter,
    )
    found = np.zeros(NUM_CHUNKS, np.int64)
    for chunk in prange(NUM_CHUNKS):
        found[chunk] = verify_table_range(
            words,
            stride,
            num_slots,
            req_pool_indices,
            prefix_lens,
            req_to_token,
            window,
            has_map,
            full_to_swa,
            expected_tokens,
            expected_valid_lens,
            token_id_vs_position_offset,
            verify_offsets,
            to_check * chunk // NUM_CHUNKS,
            to_check * (chunk + 1) // NUM_CHUNKS,
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
            verify_table_range(
                words,
                stride,
                num_slots,
                req_pool_indices,
                prefix_lens,
                req_to_token,
                window,
                has_map,
                full_to_swa,
                expected_tokens,
                expected_valid_lens,
                token_id_vs_position_offset,
                verify_offsets,
                to_check * chunk // NUM_CHUNKS,
                to_check * (chunk + 1) // NUM_CHUNKS,
                table,
                check_expected_token,
                is_affine,
                launch_tag,
                ring,
                index,
            )
        index += found[chunk]
    write_index[0] = np.int32(index)
    return total
