"""Traces made by hand for the goldens: every number in a report can be found again in the events here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import TraceWriter
from tests.replay.driving import insert, one_request, slots, small_header

DECODES = 7


def span(first: int, last: int) -> np.ndarray:
    return np.arange(first, last + 1)


def write(path: Path, events: Iterable[ev.Event], **header: object) -> None:
    """A trace of 64 slots in pages of 4, with 4 rows of 16 columns."""
    with TraceWriter(str(path), small_header(**header)) as writer:
        for event in events:
            writer.write(event)


def clean() -> list[ev.Event]:
    """A in slots 8-19, and a sweep of what it published."""
    return [*one_request(DECODES), ev.Publish(rid="A", at=0, slots=span(8, 15)), ev.Sweep()]


def damaged() -> list[ev.Event]:
    """Three causes: a late transfer into C's page, a page of A handed to D, a flipped byte of A.

    Forwards: A's prompt and decodes are 0, 1, ...; those of C and D come in between.
    """
    events = one_request(DECODES)
    late = [
        ev.Bind(row=2, rid="B"),
        ev.Alloc(to="B", slots=span(24, 27)),
        ev.Xfer(id="t1", op="start", rid="B", slots=span(24, 27)),
        ev.Unbind(row=2),
        ev.End(rid="B", why="cancel"),
        ev.Free(by="B", slots=span(24, 27)),
        ev.Bind(row=2, rid="C"),
        ev.Truth(rid="C", at=0, tokens=[300, 301, 302, 303, 304]),
        ev.Alloc(to="C", slots=span(24, 31)),
        ev.Forward(rows=[2], prefix=[0], lens=[4], slots=span(24, 27)),
        ev.Xfer(id="t1", op="done", tokens=[91, 92, 5, 6, 7, 8], at=2),
        ev.Forward(rows=[2], prefix=[4], slots=slots(28)),
    ]
    dual = [
        ev.Bind(row=3, rid="D"),
        ev.Alloc(to="D", slots=span(12, 15)),
        ev.Forward(rows=[3], prefix=[0], lens=[2], tokens=[400, 401], slots=slots(12, 13)),
    ]
    flip = ev.Kv(op="flip", slots=slots(10), byte=3, xor=129)
    return insert(insert(insert(events, 6, flip), 5, *dual), 2, *late)


def occupied() -> list[ev.Event]:
    """A row is given away before its request left: a broken rule that names no slot."""
    return insert(one_request(DECODES), 2, ev.Bind(row=1, rid="B"), ev.Unbind(row=1), ev.Bind(row=1, rid="A"))
