"""Checks of a forward: lanes, flat lists and rows fit together.

The event that a trace has most of, so every check works on whole lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvcanary_cli.trace.events import Forward
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.header import Header


def check_forward(event: Forward, header: Header) -> None:
    """Raise `LineError` if the lists of a forward don't fit together or a row does not exist.

    Slots may have any value: a slot outside the pool is what the engine did.
    """
    rows, lens = event.rows, event.lens
    num_lanes = len(rows)
    _check_lanes(event.prefix, "prefix", num_lanes)
    if lens is not None:
        _check_lanes(lens, "lens", num_lanes)
    if rows and max(rows) >= header.pool.rows:
        lane = next(lane for lane, row in enumerate(rows) if row >= header.pool.rows)
        raise outside_row(rows[lane], header, f"$.rows[{lane}]")
    if 0 in rows:
        _check_padding(rows)
    num_tokens = num_lanes if lens is None else sum(lens)
    for flat, name in (
        (event.tokens, "tokens"),
        (event.slots, "slots"),
        (event.positions, "positions"),
        (event.expect, "expect"),
    ):
        if flat is not None and len(flat) != num_tokens:
            expected = (
                f"{num_tokens} is expected ({'one token a lane' if lens is None else 'the sum of lens'})"
            )
            raise LineError(f"{name} has length {len(flat)}, {expected}", path=f"$.{name}")
    if event.width is not None and event.width < num_lanes:
        raise LineError(f"width is {event.width}, rows has {num_lanes} lanes", path="$.width")
    if event.accepted is not None:
        _check_accepted(event.accepted, [1] * num_lanes if lens is None else lens)
    if event.pad_lanes is not None:
        _check_pads(event.pad_lanes, event.pad_writes, max(event.width or 0, num_lanes))


def outside_row(row: int, header: Header, path: str) -> LineError:
    """The error of a row that the page table does not have."""
    return LineError(f"row {row} is outside the page table (0 to {header.pool.rows - 1})", path=path)


def _check_lanes(values: Sequence[Any], name: str, num_lanes: int) -> None:
    if len(values) != num_lanes:
        raise LineError(f"{name} has length {len(values)}, rows has length {num_lanes}", path=f"$.{name}")


def _check_padding(rows: list[int]) -> None:
    first = rows.index(0)
    for lane in range(first, len(rows)):
        if rows[lane]:
            raise LineError(
                f"row {rows[lane]} comes after the padded lane {first}, padded lanes come last",
                path=f"$.rows[{lane}]",
            )


def _check_accepted(accepted: list[int], lens: list[int]) -> None:
    _check_lanes(accepted, "accepted", len(lens))
    for lane, (kept, written) in enumerate(zip(accepted, lens, strict=True)):
        if kept > written:
            raise LineError(f"{kept} tokens are kept, the lane wrote {written}", path=f"$.accepted[{lane}]")


def _check_pads(pad_lanes: list[int], pad_writes: np.ndarray | None, width: int) -> None:
    num_writes = 0 if pad_writes is None else len(pad_writes)
    if len(pad_lanes) != num_writes:
        raise LineError(
            f"pad_lanes has length {len(pad_lanes)}, pad_writes has length {num_writes}", path="$.pad_lanes"
        )
    for index, lane in enumerate(pad_lanes):
        if lane >= width:
            raise LineError(
                f"lane {lane} is outside the batch (0 to {width - 1})", path=f"$.pad_lanes[{index}]"
            )
