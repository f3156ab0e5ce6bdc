"""Slot lists: JSON arrays of slot numbers and runs, int64 arrays in memory.

`[4, 5, [8, 4]]` is 4, 5, 8, 9, 10, 11. The trace format allows a list to name a slot twice, so the order
and the repetitions survive both directions.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import cast

import numpy as np

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
# shorter runs are not shorter in JSON
MIN_RUN = 4
# an array of this many slots takes 512 MiB; a longer run is a typing mistake, not a pool
MAX_SLOTS = 1 << 26


class SlotListError(ValueError):
    """What is wrong with a slot list, and where: `path` is relative to the list, such as `[3][1]`."""

    def __init__(self, message: str, path: str = "") -> None:
        self.message = message
        self.path = path
        super().__init__(message)


def parse_slots(value: object) -> np.ndarray:
    """The slots of a decoded JSON value, runs expanded: [num_slots] int64.

    Raises:
        SlotListError: not a list, empty, an element that is neither whole number nor `[start, count]`, a
            count below 1, a slot beyond int64, or more than MAX_SLOTS slots.
    """
    if type(value) is not list:
        raise SlotListError(f"a list of slots is expected, found {describe(value)}")
    if not value:
        raise SlotListError("the slot list is empty, it needs at least 1 slot")
    if set(map(type, value)) == {int}:
        try:
            return np.array(value, dtype=np.int64)
        except OverflowError:
            pass  # the element is named below
    return _expand(value)


def _expand(value: list[object]) -> np.ndarray:
    starts: list[int] = []
    counts: list[int] = []
    for index, element in enumerate(value):
        if type(element) is int:
            start, count = element, 1
        elif type(element) is list:
            start, count = _run(element, f"[{index}]")
        else:
            raise SlotListError(
                f"a slot number or a run [start, count] is expected, found {describe(element)}", f"[{index}]"
            )
        last = start + count - 1
        if start < INT64_MIN or last > INT64_MAX:
            outside = start if start < INT64_MIN else last
            raise SlotListError(f"slot {outside} does not fit into 64 bits", f"[{index}]")
        starts.append(start)
        counts.append(count)
    total = sum(counts)
    if total > MAX_SLOTS:
        raise SlotListError(f"the list has {total:,} slots, at most {MAX_SLOTS:,} are read")
    ends = np.cumsum(counts)
    first_offsets = ends - counts  # [len(value)] where each element begins in the result
    return np.repeat(np.array(starts, dtype=np.int64) - first_offsets, counts) + np.arange(total)


def _run(element: list[object], path: str) -> tuple[int, int]:
    if len(element) != 2:
        raise SlotListError(f"a run is [start, count], found {describe(element)}", path)
    for index, number in enumerate(element):
        if type(number) is not int:
            raise SlotListError(f"a whole number is expected, found {describe(number)}", f"{path}[{index}]")
    start, count = cast("list[int]", element)
    if count < 1:
        raise SlotListError(f"a run has at least 1 slot, found {count}", f"{path}[1]")
    if count > MAX_SLOTS:
        raise SlotListError(f"a run has at most {MAX_SLOTS:,} slots, found {count:,}", f"{path}[1]")
    return start, count


def compress_slots(slots: np.ndarray) -> list[int | list[int]]:
    """The JSON form of `slots` [num_slots] int64: MIN_RUN or more consecutive slots become a run.

    The same array always gives the same list.
    """
    num_slots = len(slots)
    if num_slots < MIN_RUN:
        return slots.tolist()
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    edges = [0, *breaks.tolist(), num_slots]
    result: list[int | list[int]] = []
    values = slots.tolist()
    for begin, end in pairwise(edges):
        if end - begin >= MIN_RUN:
            result.append([values[begin], end - begin])
        else:
            result.extend(values[begin:end])
    return result


def describe(value: object) -> str:
    """A JSON value in a message: the value itself, shortened when long."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and len(value) > 4:
        return f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def element_path(elements: list[int | list[int]], index: int) -> str:
    """The JSON path, inside the list `elements`, of the element that slot `index` of the result came from."""
    for position, element in enumerate(elements):
        index -= 1 if isinstance(element, int) else element[1]
        if index < 0:
            return f"[{position}]"
    return ""
