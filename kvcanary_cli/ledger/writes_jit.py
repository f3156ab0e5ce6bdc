"""Compiled loops over writes outside of lanes, and what they share with forwards: who may write a slot.

A *book* is what all loops need of one group: (`slots` [num_slots, SLOT_COLUMNS] int32, `cells` [n, CELL_COLUMNS]
int32, `counters` [NUM_COUNTERS] int64, `acts_for` [names] int32).
"""

from numba import njit

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.holders_jit import refresh


@njit(cache=True)
def judge_writer(slots, cells, counters, acts_for, slot, name):
    """NOT_HELD, NOT_THEIRS, SHARED, or 0 when `name` may write the slot; unknown holders are no fault.

    Stale holders don't count beside a present one: who handed the slot out twice has been told already.
    """
    refresh(slots, cells, counters, slot)
    is_open = slots[slot, c.FLAGS] & c.IS_OPEN
    if slots[slot, c.NUM] == 0:
        return 0 if is_open else c.NOT_HELD
    if name == c.UNKNOWN:
        return 0
    mine, mine_now, others_now = False, False, False
    cell = slots[slot, c.FIRST]
    while cell:
        is_present = cells[cell, c.CELL_EPOCH] == slots[slot, c.EPOCH]
        if acts_for[cells[cell, c.CELL_NAME]] == acts_for[name]:
            mine = True
            mine_now |= is_present
        else:
            others_now |= is_present
        cell = cells[cell, c.CELL_NEXT]
    if not mine:
        return 0 if is_open else c.NOT_THEIRS
    return c.SHARED if mine_now and others_now else 0


@njit(cache=True)
def record(slots, slot, at, name, step, line, how, number, position):
    """Note the last byte writer (`at` BYTES_AT) or stamp writer (STAMP_AT); position -1: none."""
    slots[slot, at + c.WRITE_NAME] = max(name, c.NOBODY)
    slots[slot, at + c.WRITE_STEP] = step
    slots[slot, at + c.WRITE_LINE] = line
    slots[slot, at + c.WRITE_HOW] = how
    slots[slot, at + c.WRITE_ID] = number
    slots[slot, at + c.WRITE_POSITION] = position + 1


@njit(cache=True)
def judge_writes(book, found, named, name):
    """Flags of `named` slots that `name` is about to write; returns how many are flagged."""
    slots, cells, counters, acts_for = book
    bad = 0
    for i in range(named.size):
        slot = named[i]
        if slot < 0 or slot >= slots.shape[0]:
            found[i] = c.OUT_OF_RANGE
        else:
            found[i] = judge_writer(slots, cells, counters, acts_for, slot, name)
        bad += found[i] != 0
    return bad


@njit(cache=True)
def record_writes(book, found, in_row, named, tokens, name, step, line, how, number, at, stamps):
    """`named` slots were written: bytes, and stamps if `stamps`; `found` as `judge_writes` left it.

    Args:
        in_row: [n] bool, whether the writer's row names the slot at that position.
        tokens: [n] int64, one a slot, or empty when unknown.
        at: position of the first slot, -1 when the event has none.
    """
    slots = book[0]
    for i in range(named.size):
        slot = named[i]
        if found[i] == c.OUT_OF_RANGE:
            continue
        kind = how
        if not found[i] & (c.NOT_HELD | c.NOT_THEIRS):
            kind |= c.HELD
        if in_row[i]:
            kind |= c.IN_ROW
        position = at + i if at >= 0 else -1
        record(slots, slot, c.BYTES_AT, name, step, line, kind, number, position)
        slots[slot, c.FLAGS] |= c.IS_WRITTEN
        if not stamps:
            continue
        record(slots, slot, c.STAMP_AT, name, step, line, kind, number, position)
        if tokens.size > i:
            slots[slot, c.TOKEN] = tokens[i]
            slots[slot, c.FLAGS] |= c.HAS_TOKEN
        else:
            slots[slot, c.FLAGS] &= ~c.HAS_TOKEN


@njit(cache=True)
def judge_publish(book, found, named, tokens, key):
    """Flags of slots that the cache is about to take: UNWRITTEN, OTHER_TOKEN, OTHER_KEY; notes tokens and key.

    Args:
        tokens: [n] int64 published tokens, or empty. key: number of the key's parts, 0: none given.
    """
    slots, cells, counters, _ = book
    bad = 0
    for i in range(named.size):
        slot = named[i]
        refresh(slots, cells, counters, slot)
        flags = slots[slot, c.FLAGS]
        found[i] = 0
        if not flags & (c.IS_WRITTEN | c.IS_OPEN) and slots[slot, c.NUM]:
            found[i] |= c.UNWRITTEN
        if tokens.size:
            if flags & c.HAS_TOKEN and slots[slot, c.TOKEN] != tokens[i]:
                found[i] |= c.OTHER_TOKEN
            slots[slot, c.PUBLISHED_TOKEN] = tokens[i]
            slots[slot, c.FLAGS] |= c.HAS_PUBLISHED_TOKEN
        is_cached = False
        cell = slots[slot, c.FIRST]
        while cell:
            is_cached |= cells[cell, c.CELL_NAME] == c.CACHE_NAME
            cell = cells[cell, c.CELL_NEXT]
        if not is_cached:
            slots[slot, c.PUBLISHED_KEY] = key
        elif key and slots[slot, c.PUBLISHED_KEY] and slots[slot, c.PUBLISHED_KEY] != key:
            found[i] |= c.OTHER_KEY
        bad += found[i] != 0
    return bad


@njit(cache=True)
def judge_share(book, found, named, tokens, key):
    """Flags of slots that a request takes from others: UNWRITTEN, OTHER_TOKEN, OTHER_KEY.

    Args:
        tokens: [n] the request's own tokens, -1 where unknown. key: number of its key's parts, 0: not known.
    """
    slots, cells, counters, _ = book
    bad = 0
    for i in range(named.size):
        slot = named[i]
        refresh(slots, cells, counters, slot)
        flags = slots[slot, c.FLAGS]
        found[i] = 0
        if not flags & (c.IS_WRITTEN | c.IS_OPEN) and slots[slot, c.NUM]:
            found[i] |= c.UNWRITTEN
        if tokens[i] >= 0:
            if flags & c.HAS_TOKEN:
                if slots[slot, c.TOKEN] != tokens[i]:
                    found[i] |= c.OTHER_TOKEN
            elif flags & c.HAS_PUBLISHED_TOKEN and slots[slot, c.PUBLISHED_TOKEN] != tokens[i]:
                found[i] |= c.OTHER_TOKEN
        if key and slots[slot, c.PUBLISHED_KEY] and slots[slot, c.PUBLISHED_KEY] != key:
            found[i] |= c.OTHER_KEY
        bad += found[i] != 0
    return bad
