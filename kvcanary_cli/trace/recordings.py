"""Which files are parts of one recording."""

from __future__ import annotations

from collections.abc import Sequence

from kvcanary_cli.errors import KvCanaryError, UsageError
from kvcanary_cli.trace.formats import TRACE_V1, reads_once, sniff
from kvcanary_cli.trace.header import Continues
from kvcanary_cli.trace.reader import open_trace


def in_order(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """The files, with parts of one recording put together in their order, where the first of them stood.

    Raises: UsageError for a part that is there twice.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    order: list[tuple[str, list[tuple[int, str]]]] = []
    for path in paths:
        continues = _continues(path)
        if continues is None:
            order.append((path, [(0, path)]))
            continue
        if continues.of not in groups:
            groups[continues.of] = []
            order.append((path, groups[continues.of]))
        known = dict(groups[continues.of])
        if continues.part in known:
            raise UsageError(
                f"part {continues.part} of {continues.of!r} is there twice, in {known[continues.part]} and {path}",
                hint="recordings of several ranks need names of their own in `continues`",
            )
        groups[continues.of].append((continues.part, path))
    return [tuple(path for _, path in sorted(files)) for _, files in order]


def _continues(path: str) -> Continues | None:
    """What a header says of the part before; None also for a file that can't be read, which its replay reports."""
    if reads_once(path):
        return None
    try:
        if sniff(path) != TRACE_V1:
            return None
        with open_trace(path) as reader:
            return reader.header.continues
    except KvCanaryError:
        return None
