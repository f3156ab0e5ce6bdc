"""Compiled loops over holders: slots come into hands, and are given up.

Every public function judges first. It returns 0 when nothing was wrong and the change is made; n > 0 when n slots
were flagged and *nothing* was changed, so that the caller can look at the state before it calls again with
`apply`; GROW when the cells don't suffice and have to be enlarged.

Arguments of all: `slots_` [num_slots, SLOT_COLUMNS] int32, `cells` [n, CELL_COLUMNS] int32, `counters`
[NUM_COUNTERS] int64, `found` [>= number of named slots] int64 (flags a named slot), `named` [n] int64 slots.
"""

from numba import njit

from kvcanary_cli.ledger.columns import (
    ALLOC_BY,
    ALLOC_LINE,
    ALLOC_STEP,
    ALLOC_WHY,
    BY_ALLOC,
    BY_PUBLISH,
    CALLS,
    CELL_EPOCH,
    CELL_HOW,
    CELL_LINE,
    CELL_NAME,
    CELL_NEXT,
    CELL_PLACE,
    CELL_STEP,
    DUBIOUS_BY,
    DUBIOUS_COUNT,
    DUBIOUS_LINE,
    DUBIOUS_STEP,
    DUBIOUS_WHY,
    EPOCH,
    FIRST,
    FLAGS,
    FREE_HEAD,
    GAPS,
    HELD_ALREADY,
    IS_OPEN,
    IS_RESERVED,
    LEFT_BY,
    LEFT_LINE,
    LEFT_STEP,
    LEFT_WHY,
    LISTED_TWICE,
    NOT_HELD,
    NOT_THEIRS,
    NUM,
    NUM_FREE,
    PREVIOUS_EPOCH,
    PREVIOUS_FIRST,
    PREVIOUS_HOLDER,
    PREVIOUS_LAST,
    PUBLISHED_KEY,
    RELEASE_BY,
    RELEASE_LINE,
    RELEASE_STEP,
    RELEASE_WHY,
    SEEN,
    SEEN_GAP,
    USED,
    WHY_FORCE,
)

GROW = -1


@njit(cache=True)
def refresh(slots_, cells, counters, slot):
    """Bring a slot up to date after gaps: who held it before is unknown now."""
    if slots_[slot, SEEN_GAP] == counters[GAPS]:
        return
    slots_[slot, SEEN_GAP] = counters[GAPS]
    cell = slots_[slot, FIRST]
    while cell:
        following = cells[cell, CELL_NEXT]
        _give_back(cells, counters, cell)
        cell = following
    slots_[slot, FIRST] = 0
    slots_[slot, NUM] = 0
    slots_[slot, FLAGS] = IS_OPEN
    slots_[slot, DUBIOUS_COUNT] = 0
    slots_[slot, PUBLISHED_KEY] = 0


@njit(cache=True)
def _give_back(cells, counters, cell):
    cells[cell, CELL_NEXT] = counters[FREE_HEAD]
    counters[FREE_HEAD] = cell
    counters[NUM_FREE] += 1


@njit(cache=True)
def _has_room(cells, counters, more):
    return counters[NUM_FREE] + cells.shape[0] - counters[USED] >= more


@njit(cache=True)
def _add(slots_, cells, counters, slot, name, step, line, how, place):
    """A holder comes, after those that are there."""
    cell = counters[FREE_HEAD]
    if cell:
        counters[FREE_HEAD] = cells[cell, CELL_NEXT]
        counters[NUM_FREE] -= 1
    else:
        cell = counters[USED]
        counters[USED] += 1
    cells[cell, CELL_NAME] = name
    cells[cell, CELL_STEP] = step
    cells[cell, CELL_LINE] = line
    cells[cell, CELL_HOW] = how
    cells[cell, CELL_EPOCH] = slots_[slot, EPOCH]
    cells[cell, CELL_PLACE] = place
    cells[cell, CELL_NEXT] = 0
    last = slots_[slot, FIRST]
    if last == 0:
        slots_[slot, FIRST] = cell
    else:
        while cells[last, CELL_NEXT]:
            last = cells[last, CELL_NEXT]
        cells[last, CELL_NEXT] = cell
    slots_[slot, NUM] += 1


@njit(cache=True)
def _begin_epoch(slots_, slot, name, step, line, how):
    """The slot leaves the free state, or is handed out although it is held."""
    if slots_[slot, EPOCH]:
        slots_[slot, PREVIOUS_EPOCH] = slots_[slot, EPOCH]
        slots_[slot, PREVIOUS_HOLDER] = slots_[slot, ALLOC_BY]
        slots_[slot, PREVIOUS_FIRST] = slots_[slot, ALLOC_STEP]
        slots_[slot, PREVIOUS_LAST] = step if slots_[slot, NUM] else slots_[slot, RELEASE_STEP]
    slots_[slot, EPOCH] += 1
    slots_[slot, ALLOC_STEP] = step
    slots_[slot, ALLOC_LINE] = line
    slots_[slot, ALLOC_BY] = name
    slots_[slot, ALLOC_WHY] = how


@njit(cache=True)
def allocate(slots_, cells, counters, found, named, name, step, line, reserved, apply):
    """Free slots go to a holder; slots below `reserved` are never handed out."""
    if not _has_room(cells, counters, named.size):
        return GROW
    if not apply:
        counters[CALLS] += 1
        bad = 0
        for i in range(named.size):
            slot = named[i]
            refresh(slots_, cells, counters, slot)
            found[i] = 0
            if slot < reserved:
                found[i] |= IS_RESERVED
            if slots_[slot, NUM] or slots_[slot, SEEN] == counters[CALLS]:
                found[i] |= HELD_ALREADY
            slots_[slot, SEEN] = counters[CALLS]
            if found[i]:
                bad += 1
        if bad:
            return bad
    for i in range(named.size):
        slot = named[i]
        _begin_epoch(slots_, slot, name, step, line, BY_ALLOC)
        if slots_[slot, NUM] and slots_[slot, DUBIOUS_COUNT]:
            slots_[slot, DUBIOUS_COUNT] -= 1
        slots_[slot, FLAGS] = 0
        slots_[slot, PUBLISHED_KEY] = 0
        _add(slots_, cells, counters, slot, name, step, line, BY_ALLOC, 0)
    return 0


@njit(cache=True)
def _holds_now(slots_, cells, slot, name, place):
    """Whether `name` came to the slot in its present epoch (cache: with an entry at that place)."""
    cell = slots_[slot, FIRST]
    while cell:
        same_place = place == 0 or cells[cell, CELL_PLACE] == place
        if cells[cell, CELL_NAME] == name and cells[cell, CELL_EPOCH] == slots_[slot, EPOCH] and same_place:
            return True
        cell = cells[cell, CELL_NEXT]
    return False


@njit(cache=True)
def join(slots_, cells, counters, found, named, name, step, line, how, at, reserved, apply):
    """One more holder of slots that are held already; for BY_PUBLISH `at` is the first position."""
    if not _has_room(cells, counters, named.size):
        return GROW
    if not apply:
        bad = 0
        for i in range(named.size):
            slot = named[i]
            refresh(slots_, cells, counters, slot)
            found[i] = 0
            if slot < reserved:
                found[i] = IS_RESERVED
            elif slots_[slot, NUM] == 0 and not slots_[slot, FLAGS] & IS_OPEN:
                found[i] = NOT_HELD
            if found[i]:
                bad += 1
        if bad:
            return bad
    for i in range(named.size):
        slot = named[i]
        place = at + i + 1 if how == BY_PUBLISH else 0
        if slots_[slot, NUM] == 0:
            _begin_epoch(slots_, slot, name, step, line, how)
        if not _holds_now(slots_, cells, slot, name, place):
            _add(slots_, cells, counters, slot, name, step, line, how, place)
    return 0


@njit(cache=True)
def _choose(slots_, cells, slot, name, place):
    """Cell of `name` to give up and the one before it: the entry at `place` if there is one, else the oldest."""
    chosen, before_chosen = 0, 0
    cell, before = slots_[slot, FIRST], 0
    while cell:
        if cells[cell, CELL_NAME] == name:
            if place and cells[cell, CELL_PLACE] == place:
                return cell, before
            if chosen == 0:
                chosen, before_chosen = cell, before
        before, cell = cell, cells[cell, CELL_NEXT]
    return chosen, before_chosen


@njit(cache=True)
def _count_of(slots_, cells, slot, name):
    count = 0
    cell = slots_[slot, FIRST]
    while cell:
        if cells[cell, CELL_NAME] == name:
            count += 1
        cell = cells[cell, CELL_NEXT]
    return count


@njit(cache=True)
def leave(slots_, cells, counters, found, named, name, step, line, why, apply):
    """A holder gives slots up; the cache one entry a named slot."""
    if not apply:
        counters[CALLS] += 1
        bad = 0
        for i in range(named.size):
            slot = named[i]
            refresh(slots_, cells, counters, slot)
            found[i] = 0
            own = _count_of(slots_, cells, slot, name)
            if slots_[slot, SEEN] == counters[CALLS]:
                for j in range(i):
                    if named[j] == slot:
                        own -= 1
                if own <= 0:
                    found[i] = LISTED_TWICE
            elif own == 0:
                found[i] = NOT_THEIRS if slots_[slot, NUM] else NOT_HELD
            if slots_[slot, FLAGS] & IS_OPEN:
                found[i] = 0
            slots_[slot, SEEN] = counters[CALLS]
            if found[i]:
                bad += 1
        if bad:
            return bad
    place = 0
    for i in range(named.size):
        slot = named[i]
        cell, before = _choose(slots_, cells, slot, name, place)
        if cell:
            place = cells[cell, CELL_PLACE] + 1 if cells[cell, CELL_PLACE] else 0
            _remove(slots_, cells, counters, slot, cell, before, step, line, why)
        elif not slots_[slot, FLAGS] & IS_OPEN:
            _note_dubious(slots_, slot, name, step, line, why)
    return 0


@njit(cache=True)
def _remove(slots_, cells, counters, slot, cell, before, step, line, why):
    name = cells[cell, CELL_NAME]
    if before:
        cells[before, CELL_NEXT] = cells[cell, CELL_NEXT]
    else:
        slots_[slot, FIRST] = cells[cell, CELL_NEXT]
    _give_back(cells, counters, cell)
    slots_[slot, NUM] -= 1
    slots_[slot, LEFT_STEP] = step
    slots_[slot, LEFT_LINE] = line
    slots_[slot, LEFT_BY] = name
    slots_[slot, LEFT_WHY] = why
    others = slots_[slot, FIRST]
    while others:
        if cells[others, CELL_EPOCH] == slots_[slot, EPOCH]:
            return
        others = cells[others, CELL_NEXT]
    # nobody of the present epoch is left: for the allocator the slot is free, whatever stale holders think
    _release(slots_, slot, name, step, line, why)
    if slots_[slot, NUM]:
        _set_dubious(slots_, slot, name, step, line, why)


@njit(cache=True)
def _note_dubious(slots_, slot, name, step, line, why):
    """Given up by somebody who does not hold it: the allocator may now hand it out once more."""
    if slots_[slot, NUM]:
        why = WHY_FORCE
        _release(slots_, slot, name, step, line, why)
    _set_dubious(slots_, slot, name, step, line, why)


@njit(cache=True)
def _set_dubious(slots_, slot, name, step, line, why):
    slots_[slot, DUBIOUS_STEP] = step
    slots_[slot, DUBIOUS_LINE] = line
    slots_[slot, DUBIOUS_BY] = name
    slots_[slot, DUBIOUS_WHY] = why
    slots_[slot, DUBIOUS_COUNT] += 1


@njit(cache=True)
def _release(slots_, slot, name, step, line, why):
    slots_[slot, RELEASE_STEP] = step
    slots_[slot, RELEASE_LINE] = line
    slots_[slot, RELEASE_BY] = name
    slots_[slot, RELEASE_WHY] = why
