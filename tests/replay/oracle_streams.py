"""Random traces for the oracle: a small engine that mostly keeps the rules, and now and then breaks any of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from kvcanary_cli.trace import events as ev

RIDS = ("A", "B", "C", "D", "E")
XFERS = ("x1", "x2")
KEYS = ("h1", "h2")


def random_header(draw: random.Random) -> ev.Header:
    """A pool of 24 to 64 slots with any mix of groups and sources."""
    page = draw.choice((1, 4))
    slots = draw.randrange(24, 65, 4)
    groups = draw.choice(
        (
            [ev.Group(kind="full")],
            [ev.Group(kind="full"), ev.Group(kind="swa", window=draw.randint(1, 6), slots=16)],
            [ev.Group(kind="swa", window=draw.randint(1, 8))],
        )
    )
    kinds = [group.kind for group in groups]
    sources = []
    for number in range(draw.choice((0, 1, 2, 2, 3))):
        size = draw.choice((16, 32, 48))
        sources.append(
            ev.Source(
                name=f"s{number}",
                bytes_per_slot=size,
                hashed_bytes=draw.choice((0, 16, size, size)),
                half=draw.choice("kkv"),
                group=draw.choice(kinds),
            )
        )
    pool = ev.Pool(slots=slots, page_size=page, rows=draw.randint(3, 6), row_width=draw.choice((6, 8, 12)))
    offset = draw.choice((0, 0, 1))
    return ev.Header(
        format="kvcanary-trace",
        version=1,
        pool=pool,
        groups=groups,
        sources=sources,
        token_position_offset=offset,
    )


class Stream:
    """Draws events one after another and remembers what a scheduler would: rows, lengths, who holds what."""

    def __init__(self, draw: random.Random, header: ev.Header) -> None:
        self.draw, self.header = draw, header
        self.slots, self.rows, self.width = header.pool.slots, header.pool.rows, header.pool.row_width
        self.table: dict[int, list[int]] = {row: [] for row in range(1, self.rows)}
        self.rid: dict[int, str] = {}
        self.cached: set[int] = set()
        self.addressed: dict[str, tuple[int, str]] = {}  # slots and group of each delivery under way
        self.saved: dict[str, tuple[str, int]] = {}
        self.kinds = [group.kind for group in header.groups]
        self.window_slots = header.num_slots("swa") if len(self.kinds) == 2 else 0
        self.events: list[ev.Event] = []
        self.nasty = draw.choice((0.02, 0.1, 0.4))

    def run(self, count: int) -> list[ev.Event]:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.bind, 8), (self.forward, 40), (self.wild_forward, 9), (self.truth, 6), (self.share, 5),
            (self.publish, 11), (self.evict, 6), (self.map, 4), (self.swa_map, 4), (self.unbind, 2), (self.end, 2),
            (self.move, 3), (self.kv, 5), (self.stamp, 4), (self.offload, 3), (self.reload, 4), (self.xfer, 7),
            (self.sweep, 6), (self.holders, 3),
        ]  # fmt: skip
        names, weights = zip(*steps, strict=True)
        while len(self.events) < count:
            self.draw.choices(names, weights)[0]()
        return self.events

    # what to name

    def odd(self) -> bool:
        return self.draw.random() < self.nasty

    def any_slots(self, most: int, limit: int = 0) -> np.ndarray:
        limit = limit or self.slots
        return np.array([self.draw.randrange(limit) for _ in range(self.draw.randint(1, most))], np.int64)

    def group_slots(self, most: int = 4) -> tuple[str, np.ndarray]:
        """A group, and slots of it, rather such as are in use."""
        kind = self.draw.choice(self.kinds)
        if kind == "swa" and self.window_slots:
            return kind, self.any_slots(most, self.window_slots)
        used = [slot for row in self.table.values() for slot in row if 0 <= slot < self.slots]
        if not used or self.odd():
            return kind, self.any_slots(most)
        return kind, np.array([self.draw.choice(used) for _ in range(self.draw.randint(1, most))], np.int64)

    def new_slots(self, count: int) -> list[int]:
        """Free slots (any, when there are too few); in a hybrid pool they get window slots first."""
        used = self.cached.union(*self.table.values())
        free = [slot for slot in range(1, self.slots) if slot not in used]
        if len(free) < count or self.odd():
            free = list(range(0 if self.odd() else 1, self.slots)) * 2
        found = self.draw.sample(free, count)
        if self.window_slots and found and not self.odd():
            swa = [self.draw.randrange(1, self.window_slots) for _ in found]
            self.events.append(ev.SwaMap(full=np.array(found, np.int64), swa=np.array(swa, np.int64)))
        return found

    def names(self, kind: str) -> list[str] | None:
        names = [source.name for source in self.header.sources if source.group == kind]
        if not names or self.draw.random() < 0.6:
            return None
        return self.draw.sample(names, self.draw.randint(1, len(names)))

    def bound_row(self) -> int:
        rows = [row for row in self.table if row in self.rid]
        return self.draw.choice(rows or list(self.table))

    # events

    def bind(self) -> None:
        row = self.draw.choice([row for row in self.table if row not in self.rid] or list(self.table))
        row = self.draw.choice(list(self.table)) if self.odd() else row
        free = [rid for rid in RIDS if rid not in self.rid.values()]
        rid = self.draw.choice(RIDS) if self.odd() or not free else self.draw.choice(free)
        self.events.append(ev.Bind(row=row, rid=rid))
        self.rid = {r: name for r, name in self.rid.items() if name != rid} | {row: rid}
        self.table[row] = []

    def unbind(self) -> None:
        row = self.bound_row()
        self.events.append(ev.Unbind(row=row))
        self.rid.pop(row, None)

    def end(self) -> None:
        row = self.bound_row()
        rid = self.rid.get(row, "A")
        self.events.append(ev.End(rid=rid, why=self.draw.choice(("done", "cancel", "retract"))))
        if not self.odd():
            self.events.append(ev.Unbind(row=row))
            self.rid.pop(row, None)

    def move(self) -> None:
        old, new = self.bound_row(), self.draw.choice(list(self.table))
        if old not in self.rid or (new in self.rid and not self.odd()):
            return
        self.events.append(ev.Move(rid=self.rid[old], row=new))
        self.rid[new] = self.rid.pop(old)
        self.table[new] = list(self.table[old])

    def truth(self) -> None:
        at = self.draw.randrange(self.width)
        tokens = [self.draw.randrange(4) for _ in range(self.draw.randint(1, self.width))]
        if not self.odd():
            at, tokens = 0, [7 * p % 5 for p in range(self.width + 2)]
        rid = self.rid.get(self.bound_row(), "B")
        self.events.append(ev.Truth(rid=self.draw.choice(RIDS) if self.odd() else rid, at=at, tokens=tokens))

    def share(self) -> None:
        donor, row = self.bound_row(), self.bound_row()
        span = self.table[donor][: self.draw.randint(0, self.width)]
        span = [slot for slot in span if 0 <= slot < self.slots]
        if not span or self.odd():
            span = self.any_slots(3).tolist()
        rid = self.draw.choice(RIDS) if self.odd() else self.rid.get(row, "C")
        at = self.draw.randint(0, self.width + 1) if self.odd() else 0
        self.events.append(ev.Share(rid=rid, at=at, slots=np.array(span, np.int64)))
        if self.rid.get(row) == rid and at == 0:
            self.table[row] = [*span, *self.table[row][len(span) :]]

    def publish(self) -> None:
        row = self.bound_row()
        span = [slot for slot in self.table[row] if 0 <= slot < self.slots]
        at = self.draw.randrange(max(1, len(span)))
        chosen = np.array(span[at : at + 5], np.int64) if span and not self.odd() else self.any_slots(3)
        after = self.draw.randrange(self.slots) if at and self.odd() else None
        rid = None if self.odd() else self.rid.get(row)
        self.events.append(ev.Publish(rid=rid, at=at, slots=chosen, after=after))
        self.cached.update(chosen.tolist())

    def evict(self) -> None:
        known = sorted(self.cached)
        chosen = self.any_slots(3) if not known or self.odd() else self.draw.sample(known, min(2, len(known)))
        group = self.draw.choice(self.kinds) if self.odd() else self.kinds[0]
        slots = np.array(chosen, np.int64)
        if group == "swa" and self.window_slots:
            slots %= self.window_slots
        else:
            self.cached.difference_update(slots.tolist())
        self.events.append(ev.Evict(slots=slots, group=group))

    def map(self) -> None:
        row = self.draw.choice(list(self.table))
        at = self.draw.randint(0, self.width + 2) if self.odd() else len(self.table[row])
        found = self.new_slots(self.draw.randint(1, 4)) if self.draw.random() < 0.8 else [0]
        self.events.append(ev.Map(row=row, at=at, slots=np.array(found, np.int64)))

    def swa_map(self) -> None:
        if self.window_slots:
            full = self.any_slots(3)
            swa = full * 0 if self.draw.random() < 0.6 else full % self.window_slots
            self.events.append(ev.SwaMap(full=full, swa=swa))

    def forward(self) -> None:
        rows = [row for row in self.table if row in self.rid or self.odd()]
        self.draw.shuffle(rows)
        rows = rows[: self.draw.randint(1, 3)] or [1]
        prefix, lens, slots = [], [], []
        for row in rows:
            held = self.table[row]
            length = self.draw.randint(0, 4) if not held else self.draw.choice((1, 1, 1, 2, 3))
            length = max(0, min(length, self.width + self.odd() * 2 - len(held)))
            back = self.draw.randint(0, len(held)) if self.odd() else 0
            prefix.append(len(held) - back)
            lens.append(length)
            again = held[len(held) - back :][:length]
            found = again + self.new_slots(length - len(again))
            held[prefix[-1] : prefix[-1] + length] = found
            slots += found
        for _ in range(self.draw.choice((0, 0, 0, 1))):
            rows, prefix, lens = [*rows, 0], [*prefix, self.draw.randint(0, 2)], [*lens, 2]
            slots += [self.draw.choice((0, -1, self.draw.randrange(self.slots) if self.odd() else 0))] * 2
        self.events.append(self.dressed(rows, prefix, lens, slots))

    def dressed(self, rows: list[int], prefix: list[int], lens: list[int], slots: list[int]) -> ev.Forward:
        """The forward with some of the keys that only some have."""
        draw = self.draw
        event = ev.Forward(rows=rows, prefix=prefix, lens=lens)
        if not slots:  # an empty list is no list
            return event
        event.slots = np.array(slots, np.int64)
        if draw.random() < 0.2:
            event.tokens = [draw.randrange(5) for _ in slots]
        if draw.random() < 0.1:
            event.positions = [draw.randrange(-1, self.width) for _ in slots]
        if draw.random() < 0.2:
            event.expect = [draw.choice((-1, -1, draw.randrange(5))) for _ in slots]
        if draw.random() < 0.2:
            event.chain_positions = False
        if draw.random() < 0.2:
            event.width = len(rows) + draw.randint(0, 2)
        if draw.random() < 0.1:
            event.pad_writes = self.any_slots(2) if self.odd() else np.zeros(1, np.int64)
        if draw.random() < 0.1:
            event.accepted = [draw.randint(0, length) for length in lens]
        if draw.random() < 0.1:
            event.byte_salt = draw.choice((1, -1, 1 << 40))
        if draw.random() < 0.15:
            event.slots[draw.randrange(len(slots))] = -1
        return event

    def wild_forward(self) -> None:
        """Lanes, prefixes and slots from anywhere, or the rows' own entries."""
        draw = self.draw
        if draw.random() < 0.3:
            row = self.bound_row()
            held = len(self.table[row])
            if held:
                first = draw.randrange(held)
                self.events.append(
                    ev.Forward(rows=[row], prefix=[first], lens=[draw.randint(0, held - first)])
                )
            return
        rows = [draw.choice(list(self.table)) for _ in range(draw.randint(1, 3))]
        prefix = [draw.randint(0, self.width + 2) for _ in rows]
        lens = [draw.randint(0, 3) for _ in rows]
        wild = [draw.choice((-1, -3, 0, self.slots, self.slots + 7)) for _ in range(sum(lens))]
        slots = [bad if draw.random() < 0.3 else draw.randrange(self.slots) for bad in wild]
        self.events.append(self.dressed(rows, prefix, lens, slots))

    def kv(self) -> None:
        kind, slots = self.group_slots()
        op = self.draw.choice(("write", "flip", "zero", "copy"))
        names, by = self.names(kind), self.draw.choice((None, "A"))
        event = ev.Kv(op=op, slots=slots, sources=names, group=kind, by=by)
        if op == "flip":
            event.byte, event.xor = self.draw.randrange(16), self.draw.randint(1, 255)
        if op == "copy":
            limit = self.header.num_slots(kind)
            event.from_ = np.array([self.draw.randrange(limit) for _ in slots], np.int64)
        self.events.append(event)

    def stamp(self) -> None:
        kind, slots = self.group_slots(1)
        field = self.draw.choice(("token", "position", "prev_hash", "kv_hash"))
        buffer = self.draw.choice((None, "head", "tail"))
        xor = self.draw.choice((1, 4, -1, 1 << 62))
        self.events.append(ev.Stamp(slot=int(slots[0]), field=field, xor=xor, buffer=buffer, group=kind))

    def offload(self) -> None:
        kind, slots = self.group_slots(3)
        key = self.draw.choice(KEYS)
        self.saved[key] = (kind, len(slots))
        self.events.append(ev.Offload(key=key, slots=slots, group=kind))

    def reload(self) -> None:
        key = self.draw.choice(KEYS)
        if key in self.saved:
            kind, count = self.saved[key]
            slots = self.any_slots(1, self.header.num_slots(kind))[0] + np.arange(count)
            slots %= self.header.num_slots(kind)
            part = self.draw.randint(0, count) if self.draw.random() < 0.3 else None
            names, stamps = self.names(kind), self.draw.random() < 0.7
            self.events.append(
                ev.Reload(key=key, slots=slots, count=part, sources=names, stamps=stamps, group=kind)
            )

    def xfer(self) -> None:
        draw, rid = self.draw, self.rid.get(self.bound_row(), "D")
        name, op = draw.choice(XFERS), draw.choice(("start", "done", "done", "cancel"))
        kind, slots = self.group_slots(4)
        if op == "start":
            self.addressed[name] = (len(slots), kind)
            self.events.append(ev.Xfer(id=name, op=op, rid=rid, slots=slots, group=kind))
            return
        if op == "cancel":
            self.addressed.pop(name, None)
            self.events.append(ev.Xfer(id=name, op="cancel"))
            return
        given = name not in self.addressed or draw.random() < 0.5
        count, kind = (len(slots), kind) if given else self.addressed[name]
        self.addressed.pop(name, None)
        at = draw.choice((0, 0, 1, 2))
        tokens = [draw.randrange(5) for _ in range(count + (at if draw.random() < 0.7 else 0))]
        part = draw.randint(0, count) if draw.random() < 0.3 else None
        event = ev.Xfer(id=name, op="done", rid=rid, tokens=tokens, at=at, count=part, group=kind)
        event.slots = slots if given else None
        event.sources, event.stamps = self.names(kind), draw.random() < 0.8
        self.events.append(event)

    def sweep(self) -> None:
        self.events.append(ev.Sweep())

    def holders(self) -> None:
        """Ownership alone, which no kernel sees (but for what the cache gives up)."""
        slots = self.any_slots(2)
        who = self.draw.choice(("A", "cache", "xfer:x1"))
        self.events.append(
            self.draw.choice(
                (ev.Alloc(to=who, slots=slots), ev.Hold(to=who, slots=slots), ev.Free(by=who, slots=slots))
            )
        )
