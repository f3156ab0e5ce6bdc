"""Which tensors of a dump are the pool: the same number of slots in each, one row of bytes a slot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kvcanary_cli.errors import InputError, UsageError, nearest
from kvcanary_cli.kernels._sources import GRAIN
from kvcanary_cli.scrub.hashes import is_hashes
from kvcanary_cli.trace.safetensors import SafetensorsFile, TensorInfo, open_safetensors

NAMED = 3  # names that a message lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What of a file is the pool.

    Args:
        globs: names of the tensors to take, with `*`, `?` and `[...]`; all tensors if there is none.
        page_size: slots a page.
        is_flat: whether the first dimension counts slots although there are pages.
    """

    globs: tuple[str, ...] = ()
    page_size: int = 1
    is_flat: bool = False

    @property
    def is_paged(self) -> bool:
        """Whether the first two dimensions are pages and slots of a page."""
        return self.page_size > 1 and not self.is_flat


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One tensor of the pool; `row_bytes` is what a slot has in it, `stride` that up to a multiple of 16."""

    info: TensorInfo
    row_bytes: int

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.info.name

    @property
    def stride(self) -> int:
        """Bytes that are hashed: the row, and zeros after it."""
        return -(-self.row_bytes // GRAIN) * GRAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The pool in one file; `left_out` are the other tensors with the reason."""

    file: SafetensorsFile
    num_slots: int
    page_size: int
    parts: tuple[Part, ...]
    left_out: tuple[tuple[TensorInfo, str], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the file that are hashed."""
        return self.num_slots * sum(part.row_bytes for part in self.parts)

    @property
    def slot_bytes(self) -> int:
        """Bytes that a slot takes in a buffer, padding included."""
        return sum(part.stride for part in self.parts)


def open_pool(path: str, selection: Selection) -> Pool:
    """The pool of a dump, without reading its data.

    Raises: InputError where the tensors don't fit each other or the selection, or are no dump at all.
    """
    file = open_safetensors(path)
    where = path
    if is_hashes(file):
        raise InputError(
            "holds saved hashes, not a pool", where=where, hint=f"`kvcanary scrub DUMP --against {where}`"
        )
    taken, left_out = [], []
    for info in sorted(file.tensors.values(), key=lambda info: natural(info.name)):
        reason = _why_not(info, selection)
        if reason:
            left_out.append((info, reason))
        else:
            taken.append(info)
    _require_some(where, file, taken, selection)
    slots = [_slots_of(where, info, selection) for info in taken]
    _require_agreement(where, taken, slots)
    num_slots = slots[0]
    if num_slots == 0:
        raise InputError("the pool has no slots", where=where)
    parts = tuple(_part(where, info, num_slots) for info in taken)
    return Pool(
        file=file,
        num_slots=num_slots,
        page_size=selection.page_size,
        parts=parts,
        left_out=tuple(left_out),
    )


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorting key that counts: `layers.2` before `layers.10`."""
    pieces = re.findall(r"\d+|\D+", name)
    return [(0, int(piece), piece) if piece.isdecimal() else (1, 0, piece) for piece in pieces]


def _why_not(info: TensorInfo, selection: Selection) -> str:
    if selection.globs and not any(fnmatchcase(info.name, glob) for glob in selection.globs):
        return "not named by --tensors"
    if not info.shape:
        return "a single number, no slots"
    if info.num_bytes == 0 and info.shape[0]:
        return "no bytes in it"
    return ""


def _require_some(where: str, file: SafetensorsFile, taken: list[TensorInfo], selection: Selection) -> None:
    for glob in selection.globs:
        if not any(fnmatchcase(name, glob) for name in file.tensors):
            close = nearest(glob, file.tensors)
            raise UsageError(
                f"`--tensors` {glob!r} names none of the {len(file.tensors):,} tensors of {where}",
                hint=f"did you mean {close}?" if close else f"there are {_some(list(file.tensors))}",
            )
    if not taken:
        raise InputError(f"none of the {len(file.tensors):,} tensors has slots", where=where)


def _slots_of(where: str, info: TensorInfo, selection: Selection) -> int:
    shape = info.shape
    if not selection.is_paged:
        return shape[0]
    if len(shape) < 2 or shape[1] != selection.page_size:
        raise InputError(
            f"tensor {info.name!r} has shape {list(shape)}, "
            f"[pages, {selection.page_size}, ...] is expected with `--page-size {selection.page_size}`",
            where=where,
            hint="`--flat` where the first dimension counts slots, not pages",
        )
    return shape[0] * shape[1]


def _require_agreement(where: str, taken: Sequence[TensorInfo], slots: Sequence[int]) -> None:
    """Raise unless all have the same number of slots; the message groups them, the largest group first."""
    groups: dict[int, list[str]] = {}
    for info, number in zip(taken, slots, strict=True):
        groups.setdefault(number, []).append(info.name)
    if len(groups) == 1:
        return
    order = sorted(groups.items(), key=lambda item: -len(item[1]))
    found = "; ".join(f"{number:,} in {len(names):,} ({_some(names)})" for number, names in order[:NAMED])
    raise InputError(
        f"the tensors don't agree about the number of slots: {found}",
        where=where,
        hint=f"`--tensors '{order[0][1][0]}'` names what to take; it may be repeated and have a * in it",
    )


def _part(where: str, info: TensorInfo, num_slots: int) -> Part:
    row_bytes, rest = divmod(info.num_bytes, num_slots)
    if rest:
        raise InputError(
            f"tensor {info.name!r} has {info.num_bytes:,} bytes for {num_slots:,} slots: "
            "a slot has no whole number of bytes",
            where=where,
        )
    return Part(info=info, row_bytes=row_bytes)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
