"""The compiled step of the ledger over one forward: judge lanes, judge tokens, record who wrote what.

A *book* is described in `writes_jit.py`. Arrays over lanes and tokens are as the forward was decoded.
"""

import numpy as np
from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.holders_jit import refresh
from kvcanary_cli.ledger.writes_jit import judge_writer, record
from kvcanary_cli.runtime.page_table import COLUMN_BEYOND, COLUMN_MISMATCH, COLUMN_SPILLED

# what a forward leaves about each lane: flags, first and last column that the length jumps over, and of the
# row before this forward: length, tokens kept, tokens written
LANE_FLAGS, LANE_FIRST, LANE_LAST, LANE_LENGTH, LANE_ACCEPTED, LANE_LENS = range(6)
LANE_COLUMNS = 6

_ELSEWHERE = COLUMN_MISMATCH | COLUMN_SPILLED | COLUMN_BEYOND


@njit(cache=True)
def is_readable(slots, cells, counters, acts_for, slot, name):
    """Whether a request may read a slot: written since its allocation, and held by it."""
    if slot <= 0 or slot >= slots.shape[0]:
        return False
    held = judge_writer(slots, cells, counters, acts_for, slot, name)
    if slots[slot, c.FLAGS] & c.IS_OPEN or name == c.UNKNOWN:
        return True
    return (slots[slot, c.FLAGS] & c.IS_WRITTEN) != 0 and held != c.NOT_HELD and held != c.NOT_THEIRS


@njit(cache=True)
def _judge_length(slots, cells, counters, acts_for, entries, width, state, row, prefix, out):
    """LENGTH_MISMATCH or LENGTH_JUMP when the prefix is not the length that the row had."""
    length = state[row, c.ROW_LENGTH]
    if length < 0 or prefix == length:
        return 0
    if state[row, c.ROW_STRICT]:
        return c.LENGTH_MISMATCH
    flags = 0
    for column in range(length, prefix):
        cell = row * width + column
        slot = np.int64(entries[cell]) if cell < entries.size else np.int64(0)
        if not is_readable(slots, cells, counters, acts_for, slot, state[row, c.ROW_NAME]):
            if flags == 0:
                out[LANE_FIRST] = column
            out[LANE_LAST] = column
            flags = c.LENGTH_JUMP
    return flags


@njit(cache=True)
def _judge_lanes(book, entries, width, state, found, rows, prefix, lens, positions, chained):
    """Flags of each lane; returns how many lanes are flagged."""
    slots, cells, counters, acts_for = book
    counters[c.CALLS] += 1
    bad, at = 0, 0
    for lane in range(rows.size):
        row, count = rows[lane], max(lens[lane], 0)
        flags = 0
        if row:
            if state[row, c.ROW_SEEN] == counters[c.CALLS]:
                flags |= c.ROW_TWICE
            else:
                flags |= _judge_length(
                    slots, cells, counters, acts_for, entries, width, state, row, prefix[lane], found[lane]
                )
            state[row, c.ROW_SEEN] = counters[c.CALLS]
            if chained:
                for k in range(count):
                    if positions[at + k] != prefix[lane] + k:
                        flags |= c.POSITION_DRIFT
        found[lane, LANE_FLAGS] = flags
        found[lane, LANE_LENGTH] = state[row, c.ROW_LENGTH]
        found[lane, LANE_ACCEPTED] = state[row, c.ROW_ACCEPTED]
        found[lane, LANE_LENS] = state[row, c.ROW_LENS]
        bad += flags != 0
        at += count
    return bad


@njit(cache=True)
def _write_window(slots, cells, counters, swa_map, slot, name, step, line, how, column, is_near):
    """The window slot of a written full slot is written too; `is_near`: its position stays in the window."""
    to = swa_map[slot]
    if to == 0:
        return c.NO_WINDOW_SLOT if is_near else 0
    refresh(slots, cells, counters, to)
    record(slots, to, c.BYTES_AT, name, step, line, how, 0, column)
    record(slots, to, c.STAMP_AT, name, step, line, how, 0, column)
    slots[to, c.FLAGS] |= c.IS_WRITTEN
    return c.FOREIGN_WINDOW_SLOT if slots[to, c.MAPPED_BY] not in (0, slot) else 0


@njit(cache=True, inline="always")
def _write_token(
    slots, cells, counters, acts_for, leftovers, cell, slot, name, state, token, column, step, line
):
    """Judge one token's slot and record its writer; returns flags and how it was written."""
    if slot < 0 or slot >= slots.shape[0]:
        return c.OUT_OF_RANGE | (c.SPILLED if state & COLUMN_SPILLED else 0), 0
    flags = judge_writer(slots, cells, counters, acts_for, slot, name)
    is_owner = acts_for[slots[slot, c.ALLOC_BY]] == acts_for[name]
    if is_owner and not slots[slot, c.FLAGS] & c.IS_WRITTEN:
        flags &= ~c.SHARED  # published or lent when its forward was scheduled: the first write is its owner's
    how = c.FORWARD | (0 if state & _ELSEWHERE else c.IN_ROW)
    if not flags & (c.NOT_HELD | c.NOT_THEIRS):
        how |= c.HELD
    elif cell < leftovers.size and leftovers[cell] == slot:
        flags |= c.LEFTOVER
    if state & COLUMN_MISMATCH:
        flags |= c.OUTSIDE_ROW
    if state & COLUMN_SPILLED:
        flags |= c.SPILLED
    if slots[slot, c.SEEN] == counters[c.CALLS]:
        flags |= c.WRITTEN_TWICE
    slots[slot, c.SEEN] = counters[c.CALLS]
    record(slots, slot, c.BYTES_AT, name, step, line, how, 0, column)
    record(slots, slot, c.STAMP_AT, name, step, line, how, 0, column)
    slots[slot, c.TOKEN] = token
    slots[slot, c.FLAGS] |= c.IS_WRITTEN | c.HAS_TOKEN
    return flags, how


@njit(cache=True)
def _move_on(state, row, prefix, count, kept, strict, width):
    """The row has these tokens now."""
    state[row, c.ROW_EXTENT] = max(state[row, c.ROW_EXTENT], min(prefix + count, width))
    state[row, c.ROW_LENGTH] = prefix + kept
    state[row, c.ROW_STRICT] = strict
    state[row, c.ROW_ACCEPTED] = kept
    state[row, c.ROW_LENS] = count


@njit(cache=True, inline="always")
def _follow_token(
    slots, cells, counters, acts_for, window_slots, window_cells, window_counters, swa_map, leftovers,
    cell, slot, writer, is_vacant, state, token, column, is_near, step, line,
):  # fmt: skip
    """One token in both groups; `is_vacant`: the row has no request, its former one writes. Returns flags."""
    flags, how = _write_token(
        slots, cells, counters, acts_for, leftovers, cell, slot, writer, state, token, column, step, line
    )
    if swa_map.size and how:
        flags |= _write_window(
            window_slots,
            window_cells,
            window_counters,
            swa_map,
            slot,
            writer,
            step,
            line,
            how,
            column,
            is_near,
        )
    if is_vacant:
        flags &= ~c.LEFTOVER  # the row is still as the writer left it
    elif cell < leftovers.size:
        leftovers[cell] = 0
    return flags


@njit(cache=True)
def _touch(slots, written, out):
    """Have the records of all written slots fetched side by side; the loop over lanes would wait for one by one.

    Args:
        out: [n] int64, n > 0, that is filled in afterwards: without a use of what was read nothing would be read.
    """
    total = 0
    for slot in written:
        if 0 <= slot < slots.shape[0]:
            total += slots[slot, c.EPOCH] + slots[slot, c.LEFT_STEP] + slots[slot, c.BYTES_AT]
            total += slots[slot, c.SLOT_COLUMNS - 1]
    out[0] = total


@njit(cache=True)
def follow_forward(book, window, swa_map, window_size, table, found, lanes, writes, facts):
    """A forward: judge its lanes, then its writes, record the writers and move the rows' lengths on.

    Args:
        book, window: of the full and of the window group; swa_map: empty without one.
        table: (entries [cells] int32, leftovers [cells] int32: what stood there before the row's last bind, state
            [num_rows, ROW_COLUMNS] int64, width).
        found: ([num_lanes, LANE_COLUMNS] int64, [num_tokens] int64), flags to be filled in.
        lanes: (rows, prefix, lens, accepted), [num_lanes] each.
        writes: (slots, tokens, positions, column state), [num_tokens] each.
        facts: (step, line, whether positions have to follow each other, whether the forward named what it keeps).

    Returns: how many lanes and how many tokens are flagged.
    """
    entries, leftovers, state, width = table
    rows, prefix, lens, accepted = lanes
    written, tokens, positions, columns = writes
    slots, cells, counters, acts_for = book
    window_slots, window_cells, window_counters, _ = window
    step, line, chained, strict = facts
    if written.size:
        _touch(slots, written, found[1])
    bad_lanes = _judge_lanes(book, entries, width, state, found[0], rows, prefix, lens, positions, chained)
    counters[c.CALLS] += 1
    bad, i = 0, 0
    for lane in range(rows.size):
        row, count = rows[lane], max(lens[lane], 0)
        name = state[row, c.ROW_NAME]
        writer = state[row, c.ROW_FORMER] if name == c.NOBODY else name
        length = prefix[lane] + accepted[lane]
        for k in range(count):
            flags, column = 0, prefix[lane] + k
            if row and written[i] != -1:
                is_near = length - window_size <= column < length
                flags = _follow_token(
                    slots, cells, counters, acts_for, window_slots, window_cells, window_counters, swa_map, leftovers,
                    row * width + column, written[i], writer, name == c.NOBODY, columns[i], tokens[i], column,
                    is_near, step, line,
                )  # fmt: skip
            found[1][i] = flags
            bad += flags != 0
            i += 1
        if row:
            _move_on(state, row, prefix[lane], count, accepted[lane], strict, width)
    return bad_lanes, bad


@njit(cache=True)
def mark_checked(state, rows, prefix, step):
    """The prefixes of these rows were verified in this step."""
    for lane in range(rows.size):
        state[rows[lane], c.ROW_CHECKED_STEP] = step + 1
        state[rows[lane], c.ROW_CHECKED_TO] = prefix[lane]
