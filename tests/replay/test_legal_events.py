"""Things that look odd and are legal: no violation, no breach, no incident, alone and in company."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvcanary_cli.trace import events as ev
from tests.replay.driving import DEVICES, replay_events, slots, small_header

Stream = list[ev.Event]


def tokens_of(name: str, count: int, prefix: int = 0) -> list[int]:
    """`prefix` tokens that everybody has, then a request's own."""
    return [100 + position for position in range(prefix)] + [
        1000 + 100 * (ord(name[0]) % 16) + position for position in range(prefix, count)
    ]


class Builder:
    """One scene at a place of its own: rows from `row`, slots from `first`."""

    def __init__(self, row: int, first: int) -> None:
        self.row = row
        self.first = first
        self.suffix = str(row)

    def rid(self, name: str) -> str:
        return name + self.suffix

    def span(self, start: int, count: int) -> np.ndarray:
        return np.arange(self.first + start, self.first + start + count)

    def start(self, name: str, row: int, count: int, prefix: int = 0) -> Stream:
        rid = self.rid(name)
        return [
            ev.Bind(row=self.row + row, rid=rid),
            ev.Truth(rid=rid, at=0, tokens=tokens_of(name, count, prefix)),
        ]

    def alloc(self, name: str, start: int, count: int) -> ev.Event:
        return ev.Alloc(to=self.rid(name), slots=self.span(start, count))

    def forward(self, row: int, prefix: int, written: np.ndarray, **more: object) -> ev.Event:
        values: dict[str, object] = {"rows": [self.row + row], "prefix": [prefix], "lens": [written.size]}
        return ev.Forward(**(values | {"slots": written} | more))

    def finish(self, name: str, row: int, held: np.ndarray, why: str = "done") -> Stream:
        rid = self.rid(name)
        return [ev.Free(by=rid, slots=held), ev.Unbind(row=self.row + row), ev.End(rid=rid, why=why)]


def sharing(b: Builder) -> Stream:
    """A published prefix is lent to a second request, while the first goes on and ends."""
    events = [*b.start("A", 0, 8, prefix=4), b.alloc("A", 0, 8), b.forward(0, 0, b.span(0, 5))]
    events.append(ev.Publish(rid=b.rid("A"), at=0, slots=b.span(0, 4), tokens=tokens_of("A", 4, 4)))
    events += [
        *b.start("B", 1, 8, prefix=4),
        ev.Share(rid=b.rid("B"), at=0, slots=b.span(0, 4)),
        b.alloc("B", 8, 4),
    ]
    events += [b.forward(1, 4, b.span(8, 1)), b.forward(0, 5, b.span(5, 1)), *b.finish("A", 0, b.span(0, 8))]
    return [*events, b.forward(1, 5, b.span(9, 1)), *b.finish("B", 1, np.append(b.span(0, 4), b.span(8, 4)))]


def reuse(b: Builder) -> Stream:
    """Slots go to another request after every holder, the cache included, released them."""
    events = [*b.start("A", 0, 6), b.alloc("A", 0, 8), b.forward(0, 0, b.span(0, 6))]
    events += [ev.Publish(rid=b.rid("A"), at=0, slots=b.span(0, 4)), *b.finish("A", 0, b.span(0, 8))]
    events += [ev.Evict(slots=b.span(0, 4)), *b.start("B", 0, 6), b.alloc("B", 0, 8)]
    return [
        *events,
        b.forward(0, 0, b.span(0, 5)),
        b.forward(0, 5, b.span(5, 1)),
        *b.finish("B", 0, b.span(0, 8)),
    ]


def repointing(b: Builder) -> Stream:
    """B computed a prefix that the cache has: its row goes over to the cache's slots, then its own are released."""
    events = [*b.start("A", 0, 6, prefix=4), b.alloc("A", 0, 8), b.forward(0, 0, b.span(0, 6))]
    events.append(ev.Publish(rid=b.rid("A"), at=0, slots=b.span(0, 4)))
    events += [*b.start("B", 1, 8, prefix=4), b.alloc("B", 8, 8), b.forward(1, 0, b.span(8, 5))]
    events += [ev.Share(rid=b.rid("B"), at=0, slots=b.span(0, 4)), ev.Free(by=b.rid("B"), slots=b.span(8, 4))]
    return [*events, b.forward(1, 5, b.span(13, 1)), b.forward(1, 6, b.span(14, 1))]


def padding(b: Builder) -> Stream:
    """Padded lanes in row 0, slot 0, and a graph wider than the batch."""
    events = [*b.start("A", 0, 8), b.alloc("A", 0, 8), b.forward(0, 0, b.span(0, 4))]
    padded = ev.Forward(
        rows=[b.row, 0, 0], prefix=[4, 0, 0], lens=[1, 1, 1], tokens=[tokens_of("A", 5)[4], 0, 0],
        slots=np.append(b.span(4, 1), [0, 0]), width=8,
    )  # fmt: skip
    return [*events, padded, b.forward(0, 5, b.span(5, 1), width=4)]


def chunks(b: Builder) -> Stream:
    """A prompt in three chunks, published between them."""
    events = [*b.start("A", 0, 14), b.alloc("A", 0, 16), b.forward(0, 0, b.span(0, 4))]
    events += [ev.Publish(rid=b.rid("A"), at=0, slots=b.span(0, 4)), b.forward(0, 4, b.span(4, 4))]
    events += [ev.Publish(rid=b.rid("A"), at=4, slots=b.span(4, 4)), b.forward(0, 8, b.span(8, 5))]
    return [*events, b.forward(0, 13, b.span(13, 1))]


def rollback(b: Builder) -> Stream:
    """Two of four draft tokens are kept; the rejected positions are written again."""
    events = [*b.start("A", 0, 12), b.alloc("A", 0, 12), b.forward(0, 0, b.span(0, 4))]
    true = tokens_of("A", 12)
    drafts = [true[4], true[5], 7, 8]
    events.append(b.forward(0, 4, b.span(4, 4), mode="verify", tokens=drafts, accepted=[2]))
    events.append(b.forward(0, 6, b.span(6, 4), mode="verify", tokens=true[6:10], accepted=[4]))
    return [*events, b.forward(0, 10, b.span(10, 1))]


def moving(b: Builder) -> Stream:
    """Bytes and stamps go to other slots through the host store, and the row with them."""
    events = [*b.start("A", 0, 8), b.alloc("A", 0, 4), b.forward(0, 0, b.span(0, 4))]
    events += [ev.Offload(key=b.rid("key"), slots=b.span(0, 4)), b.alloc("A", 8, 8)]
    events += [ev.Reload(key=b.rid("key"), slots=b.span(8, 4)), ev.Map(row=b.row, at=0, slots=b.span(8, 4))]
    return [*events, ev.Free(by=b.rid("A"), slots=b.span(0, 4)), b.forward(0, 4, b.span(12, 1))]


def retry(b: Builder) -> Stream:
    """A cancelled request comes again under its name, on other slots."""
    events = [*b.start("A", 0, 8), b.alloc("A", 0, 4), b.forward(0, 0, b.span(0, 4))]
    events += [*b.finish("A", 0, b.span(0, 4), why="cancel"), *b.start("A", 1, 8), b.alloc("A", 8, 8)]
    return [*events, b.forward(1, 0, b.span(8, 5)), b.forward(1, 5, b.span(13, 1))]


SCENES = [sharing, reuse, repointing, padding, chunks, rollback, moving, retry]


def alone(scene: Callable[[Builder], Stream]) -> Stream:
    return scene(Builder(1, 16))


def beside_another(scene: Callable[[Builder], Stream]) -> Stream:
    """Event by event beside a request that decodes."""
    other = Builder(5, 64)
    beside = [*other.start("Z", 0, 40), other.alloc("Z", 0, 40), other.forward(0, 0, other.span(0, 4))]
    beside += [other.forward(0, position, other.span(position, 1)) for position in range(4, 30)]
    out: Stream = []
    for i, event in enumerate(scene(Builder(1, 16))):
        out.append(event)
        out += beside[2 * i : 2 * i + 2]
    return out


def twice_with_sweeps(scene: Callable[[Builder], Stream]) -> Stream:
    """Once after the other at other places, the cache swept after each forward."""
    out: Stream = []
    for event in [*scene(Builder(1, 16)), *scene(Builder(4, 48))]:
        out.append(event)
        if isinstance(event, ev.Forward):
            out.append(ev.Sweep())
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("combination", [alone, beside_another, twice_with_sweeps])
@pytest.mark.parametrize("scene", SCENES)
def test_stays_silent(scene, combination, device):
    header = small_header(pool=ev.Pool(slots=128, page_size=4, rows=8, row_width=48))
    found = replay_events(header, combination(scene), device)
    assert found.signature() == []
    assert found.result.ledger.breaches == []
    assert found.result.incidents == []
    assert found.result.counters.missing() == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lead", [0, 1, 2])
def test_window_entries_outside_the_window_may_be_unmapped(lead, device):
    """Pages that left the window are mapped to 0 and forgotten, `lead` steps after they may be."""
    header = small_header(
        pool=ev.Pool(slots=128, page_size=1, rows=8, row_width=48),
        groups=[ev.Group(kind="full"), ev.Group(kind="swa", window=4, slots=64)],
        sources=[ev.Source(name="w", bytes_per_slot=16, hashed_bytes=16, group="swa")],
    )
    full = np.arange(16, 40)
    events: Stream = [
        ev.Bind(row=1, rid="A"),
        ev.Truth(rid="A", at=0, tokens=tokens_of("A", 24)),
        ev.Alloc(to="A", slots=full),
        ev.SwaMap(full=full, swa=full - 15),
        ev.Forward(rows=[1], prefix=[0], lens=[8], slots=full[:8]),
    ]
    for position in range(8, 20):
        gone = position - 5 - lead
        if gone >= 0:
            events.append(ev.SwaMap(full=slots(16 + gone), swa=slots(0)))
        events.append(ev.Forward(rows=[1], prefix=[position], slots=full[position : position + 1]))
    found = replay_events(header, events, device)
    assert (found.signature(), found.result.ledger.breaches) == ([], [])
