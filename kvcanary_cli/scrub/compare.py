"""Two sets of hashes against each other: which slots changed, in which tensors, and whether they were allowed to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.scrub.hashes import PoolHashes


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedRange:
    """Neighbouring slots that changed in the same tensors; `last` is included."""

    first: int
    last: int
    tensors: tuple[str, ...]
    is_allowed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What differs.

    Args:
        compared: slots looked at.
        changed: slots that differ, among them `unexpected` that were not allowed to.
        unchanged_written: slots that were allowed to change and did not.
        ranges: the changed slots.
        by_tensor: changed slots a tensor.
    """

    compared: int
    changed: int
    unexpected: int
    unchanged_written: int
    ranges: tuple[ChangedRange, ...]
    by_tensor: dict[str, int]


def parse_ranges(texts: Sequence[str], *, flag: str, num_slots: int) -> np.ndarray:
    """[num_slots] bool of `0-15,20`: both ends included, as reports write ranges.

    Raises: UsageError for anything else, and for slots that the pool doesn't have.
    """
    chosen = np.zeros(num_slots, bool)
    for text in texts:
        for piece in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", piece, re.ASCII)
            if match is None:
                raise UsageError(f"`{flag}` has {piece!r}, slots are written as in 0-15,20")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise UsageError(f"`{flag}` has {piece.strip()}, which ends before it begins")
            if last >= num_slots:
                raise UsageError(f"`{flag}` has slot {last:,}, the pool has slots 0 to {num_slots - 1:,}")
            chosen[first : last + 1] = True
    return chosen


def require_comparable(mine: PoolHashes, other: PoolHashes) -> None:
    """Raise InputError unless both have the same slots, and the same tensors with the same bytes a slot."""
    if len(mine.slots) != len(other.slots):
        raise InputError(
            f"has {len(other.slots):,} slots, {mine.path} has {len(mine.slots):,}: they can't be compared",
            where=other.path,
        )
    if mine.row_bytes == other.row_bytes:
        return
    for one, two in ((mine, other), (other, mine)):
        missing = [name for name in one.row_bytes if name not in two.row_bytes]
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise InputError(
                f"has no tensor {missing[0]!r}{more}, {one.path} has: they can't be compared",
                where=two.path,
                hint="`--tensors` names what both have",
            )
    name = next(name for name, width in mine.row_bytes.items() if other.row_bytes[name] != width)
    raise InputError(
        f"tensor {name!r} has {other.row_bytes[name]:,} bytes a slot, {mine.row_bytes[name]:,} in {mine.path}: "
        "they can't be compared",
        where=other.path,
    )


def compare(
    mine: PoolHashes, other: PoolHashes, *, only: np.ndarray | None = None, written: np.ndarray | None = None
) -> Comparison:
    """Compare hashes that have their tensors' hashes too.

    Args:
        only: [num_slots] bool, the slots to look at; all of them by default.
        written: [num_slots] bool, the slots that may change; none by default.
    """
    require_comparable(mine, other)
    num_slots = len(mine.slots)
    looked_at = np.ones(num_slots, bool) if only is None else only
    allowed = np.zeros(num_slots, bool) if written is None else written
    names = list(mine.row_bytes)
    differs = mine.slots != other.slots
    for name in names:
        differs |= mine.parts[name] != other.parts[name]
    differs &= looked_at
    changed = np.flatnonzero(differs)
    in_parts = np.empty((len(names), len(changed)), bool)
    for number, name in enumerate(names):
        in_parts[number] = mine.parts[name][changed] != other.parts[name][changed]
    return Comparison(
        compared=int(np.count_nonzero(looked_at)),
        changed=len(changed),
        unexpected=int(np.count_nonzero(~allowed[changed])),
        unchanged_written=int(np.count_nonzero(allowed & looked_at & ~differs)),
        ranges=_ranges(changed, in_parts, allowed[changed], names),
        by_tensor={name: int(np.count_nonzero(in_parts[number])) for number, name in enumerate(names)},
    )


def _ranges(
    changed: np.ndarray, in_parts: np.ndarray, allowed: np.ndarray, names: list[str]
) -> tuple[ChangedRange, ...]:
    if len(changed) == 0:
        return ()
    is_new = (np.diff(changed) != 1) | (np.diff(allowed.astype(np.int8)) != 0)
    is_new |= (in_parts[:, 1:] != in_parts[:, :-1]).any(axis=0)
    starts = [0, *(np.flatnonzero(is_new) + 1).tolist()]
    ends = [*(start - 1 for start in starts[1:]), len(changed) - 1]
    return tuple(
        ChangedRange(
            first=int(changed[start]),
            last=int(changed[end]),
            tensors=tuple(names[number] for number in np.flatnonzero(in_parts[:, start])),
            is_allowed=bool(allowed[start]),
        )
        for start, end in zip(starts, ends, strict=True)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """Slots by content, told by their hashes.

    Args:
        zero: slots that are zero in every tensor, in their order.
        duplicates: slots whose content, not zero, another slot has too.
        groups: different contents among the duplicates.
        largest: the slots of the largest groups, a group each, at most `MAX_GROUPS`.
    """

    zero: np.ndarray
    duplicates: int
    groups: int
    largest: tuple[np.ndarray, ...]


MAX_GROUPS = 100


def find_repeats(hashes: np.ndarray, zero_hash: int) -> Repeats:
    """Slots that are zero, and slots that are copies of each other."""
    is_zero = hashes == zero_hash
    others = np.flatnonzero(~is_zero)
    order = others[np.argsort(hashes[others], kind="stable")]
    ordered = hashes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(order) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(order)])
    several = np.flatnonzero(lengths > 1)
    # the largest first, of equal ones the one that begins first
    ranked = sorted(several.tolist(), key=lambda group: (-int(lengths[group]), int(order[starts[group]])))
    return Repeats(
        zero=np.flatnonzero(is_zero),
        duplicates=int(lengths[several].sum()),
        groups=len(several),
        largest=tuple(order[starts[group] : starts[group] + lengths[group]] for group in ranked[:MAX_GROUPS]),
    )
