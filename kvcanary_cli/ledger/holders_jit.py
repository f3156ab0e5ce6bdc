"""Compiled loops over holders: slots come into hands, and are given up.

Every public function judges first. It returns 0 when nothing was wrong and the change is made; n > 0 when n slots
were flagged and *nothing* was changed, so that the caller can look at the state before it calls again with
`apply`; GROW when the cells don't suffice and have to be enlarged.

Arguments of all: `slots_` [num_slots, SLOT_COLUMNS] int32, `cells` [n, CELL_COLUMNS] int32, `counters`
[NUM_COUNTERS] int64, `found` [>= number of named slots] int64 (flags a named slot), `named` [n] int64 slots.
"""

from numba import njit

from kvcanary_cli.ledger import columns as c

GROW = -1


@njit(cache=True)
def refresh(slots_, cells, counters, slot):
    """Bring a slot up to date after gaps: who held it before is unknown now."""
    if slots_[slot, c.SEEN_GAP] == counters[c.GAPS]:
        return
    slots_[slot, c.SEEN_GAP] = counters[c.GAPS]
    cell = slots_[slot, c.FIRST]
    while cell:
        following = cells[cell, c.CELL_NEXT]
        _give_back(cells, counters, cell)
        cell = following
    slots_[slot, c.FIRST] = 0
    slots_[slot, c.NUM] = 0
    slots_[slot, c.FLAGS] = c.IS_OPEN
    slots_[slot, c.DUBIOUS_COUNT] = 0
    slots_[slot, c.PUBLISHED_KEY] = 0


@njit(cache=True)
def _give_back(cells, counters, cell):
    cells[cell, c.CELL_NEXT] = counters[c.FREE_HEAD]
    counters[c.FREE_HEAD] = cell
    counters[c.NUM_FREE] += 1


@njit(cache=True)
def _has_room(cells, counters, more):
    return counters[c.NUM_FREE] + cells.shape[0] - counters[c.USED] >= more


@njit(cache=True)
def _add(slots_, cells, counters, slot, name, step, line, how, place):
    """A holder comes, after those that are there."""
    cell = counters[c.FREE_HEAD]
    if cell:
        counters[c.FREE_HEAD] = cells[cell, c.CELL_NEXT]
        counters[c.NUM_FREE] -= 1
    else:
        cell = counters[c.USED]
        counters[c.USED] += 1
    cells[cell, c.CELL_NAME] = name
    cells[cell, c.CELL_STEP] = step
    cells[cell, c.CELL_LINE] = line
    cells[cell, c.CELL_HOW] = how
    cells[cell, c.CELL_EPOCH] = slots_[slot, c.EPOCH]
    cells[cell, c.CELL_PLACE] = place
    cells[cell, c.CELL_NEXT] = 0
    last = slots_[slot, c.FIRST]
    if last == 0:
        slots_[slot, c.FIRST] = cell
    else:
        while cells[last, c.CELL_NEXT]:
            last = cells[last, c.CELL_NEXT]
        cells[last, c.CELL_NEXT] = cell
    slots_[slot, c.NUM] += 1


@njit(cache=True)
def begin_epoch(slots_, slot, name, step, line, how):
    """The slot leaves the free state, or is handed out although it is held."""
    if slots_[slot, c.EPOCH]:
        slots_[slot, c.PREVIOUS_EPOCH] = slots_[slot, c.EPOCH]
        slots_[slot, c.PREVIOUS_HOLDER] = slots_[slot, c.ALLOC_BY]
        slots_[slot, c.PREVIOUS_FIRST] = slots_[slot, c.ALLOC_STEP]
        slots_[slot, c.PREVIOUS_LAST] = step if slots_[slot, c.NUM] else slots_[slot, c.RELEASE_STEP]
    slots_[slot, c.EPOCH] += 1
    slots_[slot, c.ALLOC_STEP] = step
    slots_[slot, c.ALLOC_LINE] = line
    slots_[slot, c.ALLOC_BY] = name
    slots_[slot, c.ALLOC_WHY] = how


@njit(cache=True)
def allocate(slots_, cells, counters, found, named, name, step, line, reserved, apply):
    """Free slots go to a holder; slots below `reserved` are never handed out."""
    if not _has_room(cells, counters, named.size):
        return GROW
    if not apply:
        counters[c.CALLS] += 1
        bad = 0
        for i in range(named.size):
            slot = named[i]
            refresh(slots_, cells, counters, slot)
            found[i] = 0
            if slot < reserved:
                found[i] |= c.IS_RESERVED
            if slots_[slot, c.NUM] or slots_[slot, c.SEEN] == counters[c.CALLS]:
                found[i] |= c.HELD_ALREADY
            slots_[slot, c.SEEN] = counters[c.CALLS]
            if found[i]:
                bad += 1
        if bad:
            return bad
    for i in range(named.size):
        slot = named[i]
        begin_epoch(slots_, slot, name, step, line, c.BY_ALLOC)
        if slots_[slot, c.NUM] and slots_[slot, c.DUBIOUS_COUNT]:
            slots_[slot, c.DUBIOUS_COUNT] -= 1
        slots_[slot, c.FLAGS] = 0
        slots_[slot, c.PUBLISHED_KEY] = 0
        _add(slots_, cells, counters, slot, name, step, line, c.BY_ALLOC, 0)
    return 0


@njit(cache=True)
def _holds_now(slots_, cells, slot, name, place):
    """Whether `name` came to the slot in its present epoch (cache: with an entry at that place)."""
    cell = slots_[slot, c.FIRST]
    while cell:
        same_place = place == 0 or cells[cell, c.CELL_PLACE] == place
        if (
            cells[cell, c.CELL_NAME] == name
            and cells[cell, c.CELL_EPOCH] == slots_[slot, c.EPOCH]
            and same_place
        ):
            return True
        cell = cells[cell, c.CELL_NEXT]
    return False


@njit(cache=True)
def _file_entry(slots_, cells, slot, step, line, place):
    """A cache that holds a slot without an entry, such as one it prefetched into, gets one; False: it does not."""
    cell = slots_[slot, c.FIRST]
    while cell:
        is_bare = cells[cell, c.CELL_NAME] == c.CACHE_NAME and cells[cell, c.CELL_PLACE] == 0
        if is_bare and cells[cell, c.CELL_EPOCH] == slots_[slot, c.EPOCH]:
            cells[cell, c.CELL_STEP] = step
            cells[cell, c.CELL_LINE] = line
            cells[cell, c.CELL_HOW] = c.BY_PUBLISH
            cells[cell, c.CELL_PLACE] = place
            return True
        cell = cells[cell, c.CELL_NEXT]
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
                found[i] = c.IS_RESERVED
            elif slots_[slot, c.NUM] == 0 and not slots_[slot, c.FLAGS] & c.IS_OPEN:
                found[i] = c.NOT_HELD
            if found[i]:
                bad += 1
        if bad:
            return bad
    for i in range(named.size):
        slot = named[i]
        place = at + i + 1 if how == c.BY_PUBLISH else 0
        if place and _file_entry(slots_, cells, slot, step, line, place):
            continue
        if slots_[slot, c.NUM] == 0:
            begin_epoch(slots_, slot, name, step, line, how)
        if not _holds_now(slots_, cells, slot, name, place):
            _add(slots_, cells, counters, slot, name, step, line, how, place)
    return 0


@njit(cache=True)
def _choose(slots_, cells, slot, name, place):
    """Cell of `name` to give up and the one before it: the entry at `place` if there is one, else the oldest."""
    chosen, before_chosen = 0, 0
    cell, before = slots_[slot, c.FIRST], 0
    while cell:
        if cells[cell, c.CELL_NAME] == name:
            if place and cells[cell, c.CELL_PLACE] == place:
                return cell, before
            if chosen == 0:
                chosen, before_chosen = cell, before
        before, cell = cell, cells[cell, c.CELL_NEXT]
    return chosen, before_chosen


@njit(cache=True)
def _count_of(slots_, cells, slot, name):
    count = 0
    cell = slots_[slot, c.FIRST]
    while cell:
        if cells[cell, c.CELL_NAME] == name:
            count += 1
        cell = cells[cell, c.CELL_NEXT]
    return count


@njit(cache=True)
def leave(slots_, cells, counters, found, named, name, step, line, why, apply):
    """A holder gives slots up; the cache one entry a named slot."""
    if not apply:
        counters[c.CALLS] += 1
        bad = 0
        for i in range(named.size):
            slot = named[i]
            refresh(slots_, cells, counters, slot)
            found[i] = 0
            own = _count_of(slots_, cells, slot, name)
            if slots_[slot, c.SEEN] == counters[c.CALLS]:
                for j in range(i):
                    if named[j] == slot:
                        own -= 1
                if own <= 0:
                    found[i] = c.LISTED_TWICE
            elif own == 0:
                found[i] = c.NOT_THEIRS if slots_[slot, c.NUM] else c.NOT_HELD
            if slots_[slot, c.FLAGS] & c.IS_OPEN:
                found[i] = 0
            slots_[slot, c.SEEN] = counters[c.CALLS]
            if found[i]:
                bad += 1
        if bad:
            return bad
    place = 0
    for i in range(named.size):
        slot = named[i]
        cell, before = _choose(slots_, cells, slot, name, place)
        if cell:
            place = cells[cell, c.CELL_PLACE] + 1 if cells[cell, c.CELL_PLACE] else 0
            _remove(slots_, cells, counters, slot, cell, before, step, line, why)
        elif not slots_[slot, c.FLAGS] & c.IS_OPEN:
            _note_dubious(slots_, slot, name, step, line, why)
    return 0


@njit(cache=True)
def _remove(slots_, cells, counters, slot, cell, before, step, line, why):
    name = cells[cell, c.CELL_NAME]
    if before:
        cells[before, c.CELL_NEXT] = cells[cell, c.CELL_NEXT]
    else:
        slots_[slot, c.FIRST] = cells[cell, c.CELL_NEXT]
    _give_back(cells, counters, cell)
    slots_[slot, c.NUM] -= 1
    slots_[slot, c.LEFT_STEP] = step
    slots_[slot, c.LEFT_LINE] = line
    slots_[slot, c.LEFT_BY] = name
    slots_[slot, c.LEFT_WHY] = why
    others = slots_[slot, c.FIRST]
    while others:
        if cells[others, c.CELL_EPOCH] == slots_[slot, c.EPOCH]:
            return
        others = cells[others, c.CELL_NEXT]
    # nobody of the present epoch is left: for the allocator the slot is free, whatever stale holders think
    _release(slots_, slot, name, step, line, why)
    if slots_[slot, c.NUM]:
        _set_dubious(slots_, slot, name, step, line, why)


@njit(cache=True)
def _note_dubious(slots_, slot, name, step, line, why):
    """Given up by somebody who does not hold it: the allocator may now hand it out once more."""
    if slots_[slot, c.NUM]:
        why = c.WHY_FORCE
        slots_[slot, c.FLAGS] |= c.IS_FORCED
        _release(slots_, slot, name, step, line, why)
    _set_dubious(slots_, slot, name, step, line, why)


@njit(cache=True)
def _set_dubious(slots_, slot, name, step, line, why):
    slots_[slot, c.DUBIOUS_STEP] = step
    slots_[slot, c.DUBIOUS_LINE] = line
    slots_[slot, c.DUBIOUS_BY] = name
    slots_[slot, c.DUBIOUS_WHY] = why
    slots_[slot, c.DUBIOUS_COUNT] += 1


@njit(cache=True)
def _release(slots_, slot, name, step, line, why):
    slots_[slot, c.RELEASE_STEP] = step
    slots_[slot, c.RELEASE_LINE] = line
    slots_[slot, c.RELEASE_BY] = name
    slots_[slot, c.RELEASE_WHY] = why
