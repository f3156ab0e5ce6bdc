"""Rules of removals: S01 removed while not resident, S02 while a child lives, S08 removed after a clear."""

from __future__ import annotations

from collections import Counter

from kvcanary_cli.kvevents.cache import Place, RankCache
from kvcanary_cli.kvevents.events import GPU, Removed
from kvcanary_cli.kvevents.findings import Log
from kvcanary_cli.kvevents.rules import Where, hex_hash

MOST_NAMED = 1_000
"""Findings whose children are named."""


def check_removed(cache: RankCache, event: Removed, where: Where, log: Log, checked: Counter[str]) -> None:
    """Remove the blocks of an event, and report those that are not there."""
    place = cache.place(event.group, event.medium)
    line = where.place.line
    missing: list[int] = []
    after_clear: list[int] = []
    for found in event.hashes:
        key = (event.group, event.medium, found)
        if place.remove(found, line):
            known = cache.known.get((event.group, found))
            if known is not None:
                known.removed = line
        elif key in cache.survivors:
            cache.survivors.discard(key)
            log.passed["removed from another medium after a clear"] += 1
        elif event.medium == GPU and (event.group, found) in cache.cleared:
            after_clear.append(found)
        else:
            missing.append(found)
    checked["residency"] += len(event.hashes)
    if after_clear:
        _after_clear(cache, event, after_clear, where, log)
    if missing and cache.is_uncertain:
        log.unproven["S01"] += len(missing)
    elif missing:
        text = _why_missing(cache, event, missing[0])
        log.add(
            where.finding(
                "S01", text, group=event.group, medium=event.medium, hash=missing[0], blocks=len(missing)
            )
        )


def _after_clear(cache: RankCache, event: Removed, found: list[int], where: Where, log: Log) -> None:
    line = cache.cleared[event.group, found[0]]
    for each in found:
        cache.cleared.pop((event.group, each), None)
    log.add(
        where.finding(
            "S08",
            f"removed, though the clear of line {line:,} had emptied the cache",
            group=event.group,
            medium=event.medium,
            hash=found[0],
            blocks=len(found),
        )
    )


def _why_missing(cache: RankCache, event: Removed, found: int) -> str:
    known = cache.known.get((event.group, found))
    elsewhere = [
        f"{medium}{'' if group is None else f' group {group}'}"
        for (group, medium), place in cache.places.items()
        if found in place.blocks
    ]
    if elsewhere:
        return f"removed from {event.medium}, resident only in {', '.join(elsewhere)}"
    if known is None:
        return "removed, and never stored before"
    if known.removed is None:
        return f"removed from {event.medium}, stored elsewhere in line {known.line:,}"
    return f"removed again: stored in line {known.line:,}, removed in line {known.removed:,}"


def _children(place: Place, found: int, children: int, log: Log) -> str:
    """The first child by its hash; only for the first findings, as all blocks are looked through for it."""
    if log.total >= MOST_NAMED:
        return f"{children:,} of its children stay"
    child = next(each for each, block in place.blocks.items() if block.parent == found)
    more = "" if children == 1 else f" and {children - 1:,} more"
    return f"its child {hex_hash(child)}{more} {'stays' if children == 1 else 'stay'}"


def check_orphans(cache: RankCache, where: Where, log: Log) -> None:
    """Report blocks that a batch removed while blocks behind them stay; the order inside a batch is free."""
    for (group, medium), place in cache.places.items():
        if not place.removed:
            continue
        orphaned = list(place.orphaned())
        if not orphaned or medium != GPU:
            log.passed["parent removed in a lower medium, which needs no order"] += len(orphaned)
            continue
        if not cache.is_judged(group):
            log.passed["parent removed in a cache group behind a window"] += len(orphaned)
        elif cache.is_uncertain:
            log.unproven["S02"] += len(orphaned)
        else:
            found, _, children = orphaned[0]
            text = f"removed while {_children(place, found, children, log)} resident"
            log.add(where.finding("S02", text, group=group, medium=medium, hash=found, blocks=len(orphaned)))
