"""Delta debugging: leave out as many units of a list as a test allows, in an order that is always the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def reduced(units: list[T], test: Callable[[list[T]], bool]) -> list[T]:
    """A part of `units` that passes `test`, and from which no single unit can be left out.

    Runs of half the list are left out first, then shorter ones; from the end on, because what comes late depends on
    what comes early.

    Args:
        test: whether a part will do; `units` itself is taken to pass.
    """
    size = max(1, len(units) // 2)
    while units:
        before = len(units)
        stop = len(units)
        while stop > 0:
            start = max(0, stop - size)
            candidate = units[:start] + units[stop:]
            if test(candidate):
                units = candidate
            stop = min(start, len(units))
        if size == 1 and len(units) == before:
            break
        size = max(1, size // 2)
    return units


def smallest(low: int, high: int, test: Callable[[int], bool]) -> int:
    """The smallest number in `[low, high]` that passes, where greater ones do; `high` is taken to pass."""
    while low < high:
        middle = (low + high) // 2
        if test(middle):
            high = middle
        else:
            low = middle + 1
    return high
