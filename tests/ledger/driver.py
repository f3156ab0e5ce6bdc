"""Feeds event streams to a ledger exactly as a replay does, without memory and kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.ledger.records import Breach
from kvcanary_cli.replay import rows
from kvcanary_cli.replay.forwards import decode_forward
from kvcanary_cli.replay.state import new_state
from kvcanary_cli.runtime.layout import layout_of
from kvcanary_cli.trace import events as ev

HANDLERS: dict[type, Any] = {
    ev.Bind: rows.bind,
    ev.Unbind: rows.unbind,
    ev.Move: rows.move,
    ev.End: rows.end,
    ev.Truth: rows.truth,
    ev.Share: rows.share,
    ev.Map: rows.map_row,
    ev.SwaMap: rows.swa_map,
}


class Driver:
    """A ledger over replay state, fed one event at a time; lines count from 2, as behind a header."""

    def __init__(self, header: ev.Header) -> None:
        self.state = new_state(layout_of(header), track_changes=False)
        if header.state == "unknown" or header.continues is not None:
            self.state.lose_history()
        self.ledger = Ledger(header, self.state.table, self.state.swa_map, self.state.expected.tokens)
        self.steps = 0
        self.line = 1

    def feed(self, events: Iterable[ev.Event]) -> Driver:
        for event in events:
            self.line += 1
            if isinstance(event, ev.Forward):
                self._forward(event)
                continue
            self.ledger.event(max(0, self.steps - 1), self.line, event)
            if isinstance(event, ev.Gap):
                self.state.lose_history()
            handler = HANDLERS.get(type(event))
            if handler is not None:
                handler(self.state, event)
        return self

    def _forward(self, event: ev.Forward) -> None:
        decoded = decode_forward(event, self.line, self.state, "test.jsonl")
        self.ledger.forward(self.steps, decoded)
        self.ledger.forward_done(self.steps, decoded)
        self.steps += 1


def header(
    *, slots: int = 64, page_size: int = 1, rows: int = 6, row_width: int = 32, window: int = 0, **more: Any
) -> ev.Header:
    groups = [ev.Group(kind="full")]
    if window:
        groups.append(ev.Group(kind="swa", window=window, slots=slots))
    return ev.Header(
        format="kvcanary-trace",
        version=1,
        pool=ev.Pool(slots=slots, page_size=page_size, rows=rows, row_width=row_width),
        groups=groups,
        **more,
    )


def breaches(head: ev.Header, events: Iterable[ev.Event]) -> list[Breach]:
    return Driver(head).feed(events).ledger.breaches


def only(head: ev.Header, events: Iterable[ev.Event], rule: str) -> Breach:
    """The breach of a stream that has one; fails when there is another one or none."""
    found = breaches(head, events)
    assert [breach.rule for breach in found] == [rule], found
    return found[0]


def rules(head: ev.Header, events: Iterable[ev.Event]) -> list[str]:
    return [breach.rule for breach in breaches(head, events)]
