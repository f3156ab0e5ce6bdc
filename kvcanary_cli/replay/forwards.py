"""From a forward as the trace words it to the arrays that kernels take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.state import RunState
from kvcanary_cli.runtime.calls import ForwardCall, IntArray
from kvcanary_cli.runtime.expected import UNKNOWN
from kvcanary_cli.runtime.page_table import COLUMN_UNMAPPED
from kvcanary_cli.trace.events import Forward
from kvcanary_cli.trace.tokens import made_up_tokens, mix

_NO_POOL = np.zeros((0, 0), np.int32)
_NO_SLOTS = np.zeros(0, np.int64)
_NO_CONTEXTS = np.zeros(0, np.uint64)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedForward:
    """A forward ready to run, with what the ledger wants to know about it.

    Attributes:
        call: arguments of the runtime.
        column_state: [sum(lens)] uint8, COLUMN_* of each written token's column.
        num_lanes: lanes of the batch that capacities are checked against (rows or graph width).
        num_tokens: tokens written, padded lanes included.
        accepted: [num_lanes] int64 tokens that stay, equal to `lens` where the trace names none.
        line: line number of the event.
    """

    call: ForwardCall
    column_state: npt.NDArray[np.uint8]
    num_lanes: int
    num_tokens: int
    accepted: IntArray
    line: int


def decode_forward(event: Forward, line: int, state: RunState, path: str) -> DecodedForward:
    """Resolve slots, tokens and positions of a forward; fills unmapped columns of the page table.

    Raises:
        InputError: a lane names no slot and its row has none.
    """
    rows = np.array(event.rows, np.int64)
    prefix = np.array(event.prefix, np.int64)
    lens = np.array(event.lens, np.int64) if event.lens is not None else np.ones(rows.size, np.int64)
    slots, column_state = state.table.resolve(rows, prefix, lens, event.slots)
    if event.slots is None and (column_state & COLUMN_UNMAPPED).any():
        _raise_unmapped(int(np.nonzero(column_state & COLUMN_UNMAPPED)[0][0]), rows, prefix, lens, line, path)
    columns = prefix if event.lens is None else _columns(prefix, lens)
    tokens = (
        np.array(event.tokens, np.int64)
        if event.tokens is not None
        else default_lane_tokens(state, rows, lens, prefix)
    )
    expected = None
    if event.expect is not None:
        expected = np.array(event.expect, np.int64)
        is_open = expected == UNKNOWN
        if event.tokens is None and state.has_gap:
            is_open |= _truths(state, rows, lens, prefix)[0] == UNKNOWN  # the truth may have been lost
        expected = np.where(is_open, tokens, expected)
    pad_slots, pad_contexts = _padding(event, rows, lens, slots, line)
    call = ForwardCall(
        rows=rows,
        prefix=prefix,
        lens=lens,
        tokens=tokens,
        positions=np.array(event.positions, np.int64) if event.positions is not None else columns,
        slots=slots,
        expected_tokens=expected,
        expected_positions=columns if expected is not None else None,
        valid_lens=state.expected.row_lens[rows] if state.expected.is_used else None,
        chain_positions=event.chain_positions,
        byte_salt=event.byte_salt,
        pad_slots=pad_slots,
        pad_contexts=pad_contexts,
    )
    return DecodedForward(
        call=call,
        column_state=column_state,
        num_lanes=max(rows.size, event.width or 0),
        num_tokens=slots.size,
        accepted=np.array(event.accepted, np.int64) if event.accepted is not None else lens,
        line=line,
    )


@njit(cache=True)
def gather_tokens(pool, row_lens, rows, starts, lens):
    """Expected tokens of the lanes' columns, -1 where none is known; and how many are not.

    Args:
        pool: [rows, width] int32; row_lens: [rows] int64 columns below this one may hold a token.
        rows, starts, lens: [num_lanes] int64.
    """
    total = 0
    for lane in range(lens.size):
        total += max(lens[lane], 0)
    out = np.empty(total, np.int64)
    unknown = 0
    i = 0
    for lane in range(rows.size):
        row = rows[lane]
        for k in range(max(lens[lane], 0)):
            column = starts[lane] + k
            is_known = row < pool.shape[0] and column < row_lens[row]
            out[i] = np.int64(pool[row, column]) if is_known else np.int64(-1)
            unknown += out[i] == -1
            i += 1
    return out, unknown


def default_tokens(state: RunState, rid: str | None, start: int, stop: int) -> IntArray:
    """Ids of `rid` at positions `[start, stop)`: its truth where known, else a rule of the trace format."""
    known = state.expected.tokens(rid, start, stop).astype(np.int64)
    missing = known == UNKNOWN
    if missing.any():
        positions = np.arange(start, stop, dtype=np.uint64)
        known[missing] = made_up_tokens(state.name_hash(rid), positions)[missing]
    return known


def event_context(line: int, slots: IntArray) -> npt.NDArray[np.uint64]:
    """What bytes outside of lanes are made from: `mix(line number) ^ slot`."""
    return np.uint64(mix(line)) ^ slots.astype(np.uint64)


def _columns(prefix: IntArray, lens: IntArray) -> IntArray:
    """Position of each written token: prefix, prefix+1, … lane after lane."""
    if lens.size and lens.max() == 1 and lens.min() == 1:
        return prefix
    ends = np.cumsum(lens)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) + np.repeat(prefix - (ends - lens), lens)


def default_lane_tokens(state: RunState, rows: IntArray, lens: IntArray, prefix: IntArray) -> IntArray:
    """Ids of every lane: what its row is expected to hold, made up where nothing is known."""
    tokens, unknown = _truths(state, rows, lens, prefix)
    if unknown:
        ends = np.cumsum(lens)
        for lane in np.nonzero(lens)[0].tolist():
            start = int(ends[lane] - lens[lane])
            own = tokens[start : start + int(lens[lane])]
            if (own == UNKNOWN).any():
                first = int(prefix[lane]) + state.layout.token_offset
                rid = state.table.row_rid[int(rows[lane])]
                own[:] = default_tokens(state, rid, first, first + own.size)
    return tokens


def _truths(state: RunState, rows: IntArray, lens: IntArray, prefix: IntArray) -> tuple[IntArray, int]:
    """Ids that the lanes' rows are expected to hold, UNKNOWN where nothing is known; and how many are unknown."""
    pool = state.expected.pool if state.expected.pool is not None else _NO_POOL
    tokens, unknown = gather_tokens(
        pool, state.expected.row_lens, rows, prefix + state.layout.token_offset, lens
    )
    return tokens, int(unknown)


def _padding(
    event: Forward, rows: IntArray, lens: IntArray, slots: IntArray, line: int
) -> tuple[IntArray, npt.NDArray[np.uint64]]:
    """Slots that padded lanes, lanes of the graph beyond the batch, and padded kernels write."""
    parts = []
    if rows.size and rows[-1] == 0:  # padded lanes come last
        padded = slots[np.repeat(rows, lens) == 0]
        parts.append(padded[padded >= 0])
    if event.width is not None and event.width > rows.size:
        parts.append(np.zeros(1, np.int64))
    if event.pad_writes is not None:
        parts.append(event.pad_writes)
    if not parts:
        return _NO_SLOTS, _NO_CONTEXTS
    pad_slots = np.concatenate(parts)
    return pad_slots, event_context(line, pad_slots)


def _raise_unmapped(i: int, rows: IntArray, prefix: IntArray, lens: IntArray, line: int, path: str) -> None:
    lane = int(np.searchsorted(np.cumsum(lens), i, side="right"))
    column = int(prefix[lane] + i - (np.cumsum(lens)[lane] - lens[lane]))
    raise InputError(
        f"lane {lane} writes column {column} of row {int(rows[lane])}, which names no slot, and the forward gives none",
        where=f"{path}:{line}",
        path="$.slots",
        hint="record `slots` with the forward, or a `map` of the row before it",
    )
