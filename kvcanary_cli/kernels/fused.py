"""Verify straight from the page table, without a plan in memory, on the GPU.

Same violations and counters as `launch_plan` followed by one `launch_verify` a target; the rows' order is free. A plan
costs 32 bytes an entry to write and to read again, the page table 4. Entries lie in rows of 32, one a thread of a
warp; a row begins with the predecessor of its first entry, so that an entry gets what its predecessor's stamp
asks for from its neighbour instead of from memory. Twin: `fused_cpu.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels import consts, messages
from kvcanary_cli.kernels._checks import check_array
from kvcanary_cli.kernels.byte_hash import hash_tiles
from kvcanary_cli.kernels.chains import chain_step
from kvcanary_cli.kernels.hashing import HEAD
from kvcanary_cli.kernels.plan import table_slots, window_starts
from kvcanary_cli.kernels.ring import append_rows
from kvcanary_cli.kernels.targets import (
    Targets,
    count_entries,
    count_launch,
    target_log,
    target_sources,
    target_stamps,
)

ROW = 32  # threads of a warp
NEW = ROW - 1  # entries a row, the first thread has a predecessor
DEFAULT_ROWS = (
    2  # rows a program and turn: two gathers under way a thread, and no barrier in a program of one warp
)
MAX_PROGRAMS = 32768  # of one target; lanes with more entries than their programs take turns

BIT_CHAIN_HASH = tl.constexpr(consts.BIT_CHAIN_HASH)
BIT_POSITION = tl.constexpr(consts.BIT_POSITION)
BIT_KV_HASH = tl.constexpr(consts.BIT_KV_HASH)
BIT_VERIFY_TOKEN = tl.constexpr(consts.BIT_VERIFY_TOKEN)
BIT_OUT_OF_RANGE = tl.constexpr(consts.BIT_OUT_OF_RANGE)
_ROW = tl.constexpr(ROW)
_NEW = tl.constexpr(NEW)


def launch_verify_table(
    *,
    targets: Targets,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa: torch.Tensor | None,
    expected_tokens: torch.Tensor | None,
    expected_valid_lens: torch.Tensor | None,
    token_id_vs_position_offset: int,
    longest_prefix: int | None = None,
    is_affine: bool = False,
    rows: int | None = None,
    num_warps: int = 1,
) -> None:
    """Check every lane's prefix in every target.

    Args:
        targets: stamp buffers, read only, and their logs.
        req_pool_indices, prefix_lens, req_to_token, swa_window_size, full_to_swa, expected_tokens,
            expected_valid_lens, token_id_vs_position_offset: as in `launch_plan`. Tokens are compared where
            they are known; None: not compared.
        longest_prefix: most tokens before any lane, if the caller knows: it decides how many programs a lane
            gets. A wrong number costs time only.
        is_affine: whether the stamps hold affine chains (`affine.py`).
        rows, num_warps: rows of 32 entries a program and turn (None: as lanes are long), and its warps, powers
            of two.

    Contract: writes the logs only; no limit on lanes or entries. No host sync, no allocation. ValueError before
    any launch if something does not fit.
    """
    num_lanes = check_table(
        targets, req_pool_indices, prefix_lens, req_to_token, swa_window_size, full_to_swa
    )
    _check_pool(req_pool_indices, expected_tokens, expected_valid_lens)
    num_rows, width = req_to_token.shape
    longest = width if longest_prefix is None else max(0, min(longest_prefix, num_rows * width))
    longest = min(longest, swa_window_size) if swa_window_size > 0 else longest
    if rows is None:
        rows = 1 if longest <= NEW else DEFAULT_ROWS
    per_lane = triton.cdiv(max(longest, 1), rows * NEW)
    per_lane = max(1, min(per_lane, MAX_PROGRAMS // max(num_lanes, 1)))
    map_or_any = req_pool_indices if full_to_swa is None else full_to_swa
    pool_or_any = req_to_token if expected_tokens is None else expected_tokens
    _verify_table_kernel[(max(num_lanes, 1) * per_lane, len(targets.items))](
        targets.table,
        req_pool_indices,
        prefix_lens,
        req_to_token,
        map_or_any,
        pool_or_any,
        prefix_lens if expected_valid_lens is None else expected_valid_lens,
        num_lanes=num_lanes,
        per_lane=per_lane,
        num_rows=num_rows,
        width=width,
        window=max(0, int(swa_window_size)),
        map_size=map_or_any.shape[0],
        pool_rows=pool_or_any.shape[0],
        pool_width=pool_or_any.shape[1],
        token_offset=int(token_id_vs_position_offset),
        num_slots=targets.num_slots,
        STRIDE=targets.stride,
        GRAIN=targets.grain,
        HAS_MAP=full_to_swa is not None,
        HAS_POOL=expected_tokens is not None,
        HAS_SOURCES=targets.has_sources,
        AFFINE=bool(is_affine),
        SMALL=targets.num_slots < 2**31,
        ROWS=rows,
        num_warps=num_warps,
    )


def check_table(
    targets: Targets,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa: torch.Tensor | None,
) -> int:
    """ValueError unless lanes, table and map fit each other and the targets. Returns the number of lanes."""
    if swa_window_size > 0 and full_to_swa is None:
        raise ValueError(messages.window_without_map())
    reference = ("canary_buf", targets.items[0].canary_buf)
    check_array("req_pool_indices", req_pool_indices, "int64", reference=reference)
    num_lanes = int(req_pool_indices.shape[0])
    check_array("prefix_lens", prefix_lens, "int64", length=num_lanes, reference=reference)
    check_array("req_to_token", req_to_token, "int32", rank=2, reference=reference)
    if full_to_swa is not None:
        check_array("full_to_swa", full_to_swa, "int64", reference=reference)
    return num_lanes


def _check_pool(
    req_pool_indices: torch.Tensor,
    expected_tokens: torch.Tensor | None,
    expected_valid_lens: torch.Tensor | None,
) -> None:
    names = ["expected_tokens", "expected_valid_lens"]
    given = [expected_tokens is not None, expected_valid_lens is not None]
    if given[0] != given[1]:
        missing = names[given.index(False)]
        raise ValueError(messages.broken_rule(missing, f"be given with {names[given.index(True)]}", None))
    reference = ("req_pool_indices", req_pool_indices)
    if expected_tokens is not None:
        num_lanes = int(req_pool_indices.shape[0])
        check_array("expected_tokens", expected_tokens, "int32", rank=2, reference=reference)
        check_array(
            "expected_valid_lens", expected_valid_lens, "int64", length=num_lanes, reference=reference
        )


@triton.jit(
    do_not_specialize=[
        "num_lanes",
        "per_lane",
        "num_rows",
        "width",
        "window",
        "map_size",
        "pool_rows",
        "pool_width",
        "token_offset",
        "num_slots",
    ]
)
def _verify_table_kernel(
    targets_ptr,  # [num_targets, 9] int64, `targets.COL_*`
    rows_ptr,  # [num_lanes] int64
    prefix_lens_ptr,  # [num_lanes] int64
    cells_ptr,  # [num_rows * width] int32, the page table as flat memory
    map_ptr,  # [map_size] int64
    pool_ptr,  # [pool_rows, pool_width] int32
    valid_lens_ptr,  # [num_lanes] int64
    num_lanes,  # scalar
    per_lane,  # scalar, programs a lane
    num_rows,  # scalar
    width,  # scalar
    window,  # scalar, 0: no window
    map_size,  # scalar
    pool_rows,  # scalar
    pool_width,  # scalar
    token_offset,  # scalar
    num_slots,  # scalar
    STRIDE: tl.constexpr,  # words from one stamp to the next
    GRAIN: tl.constexpr,  # bytes that stamps are aligned to
    HAS_MAP: tl.constexpr,
    HAS_POOL: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    AFFINE: tl.constexpr,
    SMALL: tl.constexpr,  # slots fit 32 bits
    ROWS: tl.constexpr,
):
    target = tl.program_id(1)
    lane = tl.program_id(0) // per_lane
    part = tl.program_id(0) - lane * per_lane
    if (tl.program_id(0) == 0) & (part == 0):
        count_launch(targets_ptr, target)
    if lane < num_lanes:
        row = tl.load(rows_ptr + lane)
        prefix = tl.load(prefix_lens_ptr + lane)
        start = window_starts(prefix, window)
        is_live = (row > 0) & (row < num_rows)
        count = tl.where(is_live, tl.maximum(prefix - start, 0), 0)
        if (part == 0) & (count > 0):
            count_entries(targets_ptr, target, count)
        num_known = tl.cast(0, tl.int64)
        if HAS_POOL:
            # the scatter cuts at the pool's width, so nothing is known beyond it
            num_known = tl.minimum(tl.load(valid_lens_ptr + lane), pool_width)
            num_known = tl.where(row < pool_rows, num_known, 0)
        for first in range(part.to(tl.int64) * (ROWS * _NEW), count, per_lane * (ROWS * _NEW)):
            # columns 1 to 31 are this row's entries, column 0 the one before: [ROWS, 32]
            row_offs = first + tl.arange(0, ROWS)[:, None] * _NEW
            entry_offs = row_offs + tl.arange(0, _ROW)[None, :] - 1
            positions = start + entry_offs
            is_read = (positions >= 0) & (entry_offs < count)
            is_entry = (tl.arange(0, _ROW)[None, :] > 0) & is_read
            num_cells = tl.cast(num_rows, tl.int64) * width
            cells = row * width + positions
            slots = table_slots(cells_ptr, num_cells, map_ptr, map_size, cells, is_read, HAS_MAP)
            _check_entries(
                targets_ptr,
                target,
                slots,
                positions,
                is_entry,
                pool_ptr + row * pool_width + token_offset,
                num_known - token_offset,
                -token_offset,
                num_slots,
                STRIDE,
                GRAIN,
                HAS_POOL,
                HAS_SOURCES,
                AFFINE,
                SMALL,
                ROWS,
            )


@triton.jit
def _check_entries(
    targets_ptr,
    target,
    slots,  # [ROWS, 32] int64, column 0 the predecessors
    positions,  # [ROWS, 32] int64
    is_entry,  # [ROWS, 32]
    known_ptr,  # [pool_width] int32, expected token of position 0, as far as it is known
    known_stop,  # scalar, first position whose token is not known
    known_start,  # scalar, first position whose token is known
    num_slots,  # scalar
    STRIDE: tl.constexpr,
    GRAIN: tl.constexpr,
    HAS_POOL: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    AFFINE: tl.constexpr,
    SMALL: tl.constexpr,
    ROWS: tl.constexpr,
):
    stamps_ptr = target_stamps(targets_ptr, target, GRAIN)
    is_inside = (slots > 0) & (slots < num_slots)
    word_offs = slots[:, :, None] * STRIDE + tl.arange(0, 2)[None, None, :]  # [ROWS, 32, 2]
    mask = is_inside[:, :, None]
    token, position = tl.split(tl.load(stamps_ptr + word_offs, mask=mask, other=0))
    prev_hash, kv_hash = tl.split(tl.load(stamps_ptr + word_offs + 2, mask=mask, other=0))
    after = chain_step(prev_hash, token, position, AFFINE)
    # what the neighbour to the left found is this entry's predecessor
    left = tl.maximum(tl.arange(0, _ROW) - 1, 0)[None, :] + tl.zeros([ROWS, 1], tl.int32)
    prevs = tl.gather(slots, left, axis=1)
    expected_prev = tl.gather(after, left, axis=1)
    expected_prev = tl.where(prevs < 0, HEAD, tl.where(prevs == 0, prev_hash, expected_prev))
    bits = tl.where(prev_hash != expected_prev, BIT_CHAIN_HASH, 0)
    bits = tl.where(prevs >= num_slots, BIT_OUT_OF_RANGE, bits)
    expected_prev = tl.where(prevs >= num_slots, prevs, expected_prev)
    bits |= tl.where(position != positions, BIT_POSITION, 0)
    tokens = slots * 0 - 1
    if HAS_POOL:
        is_known = is_entry & (positions >= known_start) & (positions < known_stop)
        tokens = tl.load(known_ptr + positions, mask=is_known, other=-1).to(tl.int64)
        bits |= tl.where((tokens != -1) & (token != tokens), BIT_VERIFY_TOKEN, 0)
    if HAS_SOURCES:
        table_ptr, num_sources = target_sources(targets_ptr, target)
        is_hashed = tl.reshape(is_inside & is_entry, [ROWS * _ROW])
        hashed = tl.where(is_hashed, tl.reshape(slots, [ROWS * _ROW]), 0)
        found = hash_tiles(table_ptr, num_sources, hashed, is_hashed, SMALL)
        bits |= tl.where(kv_hash != tl.reshape(found, [ROWS, _ROW]), BIT_KV_HASH, 0)
    else:
        bits |= tl.where(kv_hash != 0, BIT_KV_HASH, 0)
    # outside of the buffer nothing else is known, in the padding slot nothing is checked
    bits = tl.where(is_inside, bits, tl.where(slots != 0, BIT_OUT_OF_RANGE, 0))
    bits = tl.where(is_entry, bits, 0)
    if tl.max(tl.max(bits, axis=1), axis=0) > 0:
        _report(
            targets_ptr,
            target,
            slots,
            position,
            token,
            tokens,
            prev_hash,
            tl.where(is_inside, expected_prev, 0),
            bits,
            ROWS,
        )


@triton.jit
def _report(
    targets_ptr,
    target,
    slots,  # [ROWS, 32] int64, as are the columns that follow
    position,
    token,
    tokens,
    prev_hash,
    aux,
    bits,  # [ROWS, 32] int32
    ROWS: tl.constexpr,
):
    ring_ptr, write_index_ptr, ring_capacity, launch_tag = target_log(targets_ptr, target)
    append_rows(
        ring_ptr,
        write_index_ptr,
        ring_capacity,
        tl.reshape(bits, [ROWS * _ROW]) != 0,
        launch_tag,
        tl.reshape(slots, [ROWS * _ROW]),
        tl.reshape(position, [ROWS * _ROW]),
        tl.reshape(token, [ROWS * _ROW]),
        tl.reshape(tokens, [ROWS * _ROW]),
        tl.reshape(prev_hash, [ROWS * _ROW]),
        tl.reshape(aux, [ROWS * _ROW]),
        tl.reshape(bits, [ROWS * _ROW]).to(tl.int64),
    )
