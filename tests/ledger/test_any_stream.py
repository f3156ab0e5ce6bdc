"""Streams of any events, sensible or not: the ledger never fails, and its holders are those of a plain model."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from kvcanary_cli.trace import events as ev
from tests.ledger.driver import Driver, header
from tests.ledger.made import s

HOLDERS = ["A", "B", "C", "cache", "xfer:t1"]
REQUESTS = ["A", "B", "C"]


def some_slots(rng: random.Random, count: int | None = None) -> np.ndarray:
    return s(*(rng.randrange(64) for _ in range(count or rng.randint(1, 6))))


def ownership(rng: random.Random, group: str) -> ev.Event:
    rid, slots = rng.choice(REQUESTS), some_slots(rng)
    key = rng.choice([None, {"salt": rng.randrange(2)}])
    return rng.choice(
        [
            ev.Alloc(to=rng.choice(HOLDERS), slots=slots, group=group),  # type: ignore[arg-type]
            ev.Hold(to=rng.choice(HOLDERS), slots=slots),
            ev.Share(rid=rid, at=rng.randrange(34), slots=slots),
            ev.Publish(rid=rng.choice([rid, None]), at=rng.randrange(8), slots=slots, key=key),
            ev.Free(by=rng.choice(HOLDERS), slots=slots, group=group),  # type: ignore[arg-type]
            ev.Evict(slots=slots, group=group),  # type: ignore[arg-type]
        ]
    )


def row_event(rng: random.Random) -> ev.Event:
    rid, row = rng.choice(REQUESTS), rng.randint(1, 5)
    return rng.choice(
        [
            ev.Bind(rid=rid, row=row),
            ev.Unbind(row=row),
            ev.Move(rid=rid, row=row),
            ev.End(rid=rid, why=rng.choice(["done", "retract"])),
            ev.Map(row=row, at=rng.randrange(34), slots=some_slots(rng), by=rng.choice([None, rid])),
            ev.Truth(rid=rid, at=rng.randrange(10), tokens=[1, 2, 3]),
            ev.Sweep(),
        ]
    )


def forward_event(rng: random.Random) -> ev.Event:
    rows = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))] + [0] * rng.randrange(2)
    lens = [rng.randint(0, 4) for _ in rows]
    slots = [
        rng.choice([-1, 70, 0]) if rng.random() < 0.1 else rng.randrange(1, 64) for _ in range(sum(lens))
    ]
    return ev.Forward(
        rows=rows,
        prefix=[rng.randrange(34) for _ in rows],
        lens=lens,
        slots=np.array(slots, np.int64),
        accepted=rng.choice([None, lens]),
        pad_writes=rng.choice([None, None, some_slots(rng)]),
    )


def movement(rng: random.Random, group: str) -> ev.Event:
    rid, slots = rng.choice(REQUESTS), some_slots(rng, 4)
    op = rng.choice(["start", "done", "cancel"])
    count = rng.choice([None, 0, 2])
    return rng.choice(
        [
            ev.Kv(op="write", slots=slots, by=rng.choice([None, rid]), group=group),  # type: ignore[arg-type]
            ev.Offload(key="k", slots=slots, group=group, dtype=rng.choice([None, "x"])),  # type: ignore[arg-type]
            ev.Reload(key="k", slots=slots, count=count, group=group, page_size=2),  # type: ignore[arg-type]
            ev.Xfer(
                id="t1",
                op=op,  # type: ignore[arg-type]
                rid=rng.choice([rid, None]),
                slots=slots if op != "cancel" else None,
                group=group,  # type: ignore[arg-type]
                count=count if op == "done" else None,
                at=rng.randrange(5) if op == "done" else 0,
            ),
        ]
    )


def any_event(rng: random.Random, *, has_window: bool) -> ev.Event:
    group = rng.choice(["full", "swa"]) if has_window else "full"
    kind = rng.randrange(10)
    if kind < 3:
        return ownership(rng, group)
    if kind < 5:
        return row_event(rng)
    if kind < 7:
        return forward_event(rng)
    if kind == 7 and has_window:
        full = some_slots(rng)
        return ev.SwaMap(full=full, swa=some_slots(rng, full.size))
    return ev.Gap() if rng.random() < 0.02 else movement(rng, group)


@pytest.mark.parametrize("seed", range(60))
def test_no_stream_is_too_odd(seed):
    rng = random.Random(seed)
    has_window = seed % 2 == 0
    head = header(window=4 if has_window else 0, page_size=rng.choice([1, 4]))
    driver = Driver(head).feed(any_event(rng, has_window=has_window) for _ in range(80))
    assert driver.ledger.breaches
    for breach in driver.ledger.breaches:
        json.dumps(breach.facts)
        assert breach.actor not in breach.victims
    for group in ("full", "swa"):
        for slot in range(64):
            facts = driver.ledger.slot(group, slot)
            assert dict.fromkeys(h.name for h in facts.holders).keys() == set(
                driver.ledger.holder_names(group, s(slot))[0]
            )


class PlainHolders:
    """Holders and epochs as the trace format words them, one slot at a time."""

    def __init__(self) -> None:
        self.epoch = dict.fromkeys(range(64), 0)
        self.held: dict[int, list[tuple[str, int, int | None]]] = {slot: [] for slot in range(64)}

    def feed(self, event: ev.Event) -> None:
        match event:
            case ev.Alloc():
                for slot in event.slots.tolist():
                    self.epoch[slot] += 1
                    self.held[slot].append((event.to, self.epoch[slot], None))
            case ev.Hold():
                self.join(event.to, event.slots, None)
            case ev.Share():
                self.join(event.rid, event.slots, None)
            case ev.Publish():
                self.join("cache", event.slots, event.at)
            case ev.Free():
                self.leave(event.by, event.slots)
            case ev.Evict():
                self.leave("cache", event.slots)

    def join(self, name: str, slots: np.ndarray, at: int | None) -> None:
        for i, slot in enumerate(slots.tolist()):
            place = None if at is None else at + i
            held = self.held[slot]
            self.epoch[slot] += not held
            now = [n for n, h in enumerate(held) if h[:2] == (name, self.epoch[slot])]
            bare = [n for n in now if held[n][2] is None]
            if place is not None and bare:
                held[bare[0]] = (name, self.epoch[slot], place)
            elif place is None and now:
                pass
            elif not any(held[n][2] == place for n in now):
                held.append((name, self.epoch[slot], place))

    def leave(self, name: str, slots: np.ndarray) -> None:
        following: int | None = None
        for slot in slots.tolist():
            held = self.held[slot]
            own = [n for n, h in enumerate(held) if h[0] == name]
            if not own:
                continue
            chosen = next((n for n in own if following is not None and held[n][2] == following), own[0])
            place = held.pop(chosen)[2]
            following = None if place is None else place + 1


@pytest.mark.parametrize("seed", range(40))
def test_holders_are_those_of_a_plain_model(seed):
    rng = random.Random(seed)
    driver, plain = Driver(header()), PlainHolders()
    for _ in range(150):
        event = ownership(rng, "full")
        driver.feed([event])
        plain.feed(event)
    for slot in range(64):
        facts = driver.ledger.slot("full", slot)
        assert facts.epoch == plain.epoch[slot]
        assert [(h.name, h.epoch) for h in facts.holders] == [h[:2] for h in plain.held[slot]]
