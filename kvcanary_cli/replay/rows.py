"""Events that change rows, truths, the window map and the cache's content."""

from __future__ import annotations

import numpy as np

from kvcanary_cli.replay.state import RunState
from kvcanary_cli.runtime.calls import IntArray
from kvcanary_cli.trace import events as ev

CHAIN_HEAD = -1
UNKNOWN_PREDECESSOR = 0  # the padding slot: kernels don't check a chain against it


def bind(state: RunState, event: ev.Bind) -> None:
    """A request takes a row; what `share` mapped before it had one is mapped now."""
    state.begin_request(event.rid)
    old_row = state.table.rid_row.get(event.rid)
    if old_row is not None:
        state.expected.clear_row(old_row)
    state.table.bind(event.row, event.rid)
    state.expected.place(event.rid, event.row)
    for at, slots in state.pending_maps.pop(event.rid, ()):
        state.table.map(event.row, at, slots)


def unbind(state: RunState, event: ev.Unbind) -> None:
    """A row has no request any more."""
    rid = state.table.unbind(event.row)
    state.expected.clear_row(event.row)
    if rid is not None:
        state.begin_request(rid)


def move(state: RunState, event: ev.Move) -> None:
    """A request's columns go to another row; without a row there is nothing to copy."""
    old_row = state.table.rid_row.get(event.rid)
    if old_row is None:
        state.table.bind(event.row, event.rid)
    else:
        state.table.move(event.rid, event.row)
        state.expected.clear_row(old_row)
    state.expected.place(event.rid, event.row)


def end(state: RunState, event: ev.End) -> None:
    """A request ends; after `retract` the same request may come back, so its truth stays."""
    if event.why != "retract":
        state.end_request(event.rid)


def truth(state: RunState, event: ev.Truth) -> None:
    """Tokens that a request really has; one that ended is meant while it still has its row."""
    row = state.table.rid_row.get(event.rid)
    if row is None:
        state.begin_request(event.rid)
    state.expected.set(event.rid, event.at, np.array(event.tokens, np.int64), row)


def share(state: RunState, event: ev.Share) -> None:
    """A prefix hit: the request's row is mapped to slots that are held already."""
    row = state.table.rid_row.get(event.rid)
    if row is None:
        state.pending_maps.setdefault(event.rid, []).append((event.at, event.slots))
    else:
        state.table.map(row, event.at, event.slots)


def map_row(state: RunState, event: ev.Map) -> None:
    """A row is written from a column on."""
    state.table.map(event.row, event.at, event.slots)


def swa_map(state: RunState, event: ev.SwaMap) -> None:
    """Entries of the full-to-window map."""
    state.swa_map[event.full] = event.swa


def publish(state: RunState, event: ev.Publish) -> None:
    """The cache holds slots at positions from `at` on."""
    state.cache.publish(event.slots, event.at, predecessor(state, event))


def predecessor(state: RunState, event: ev.Publish) -> int:
    """The slot before the first published one: as given, else from the publisher's row."""
    if event.after is not None:
        return event.after
    if event.at == 0:
        return CHAIN_HEAD
    row = state.table.rid_row.get(event.rid) if event.rid is not None else None
    if row is None:
        return UNKNOWN_PREDECESSOR
    before: IntArray = state.table.slots_of(row, event.at - 1, event.at)
    return int(before[0]) if before.size else UNKNOWN_PREDECESSOR


def evict(state: RunState, event: ev.Evict) -> None:
    """The cache gives slots up; window slots of a hybrid pool stand in no entry of their own."""
    if event.group == "swa" and state.layout.maps_window:
        return
    state.cache.evict(event.slots)
