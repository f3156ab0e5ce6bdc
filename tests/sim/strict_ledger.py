"""A small ownership ledger that trusts nothing: it replays a trace in plain Python and refuses every oddity.

Written from the rules of the trace format alone; it shares no code with the model or the replay.
"""

from __future__ import annotations

from collections import defaultdict

from kvcanary_cli.trace import events as ev

CACHE = "cache"


class Ledger:
    """Feed it a header, then every event; `AssertionError` at the first breach."""

    def __init__(self, header):
        self.size = header.pool.page_size
        self.num_slots = header.pool.slots
        self.width = header.pool.row_width
        swa = header.group("swa")
        self.window = swa.window if swa else 0
        self.num_window_slots = swa.slots if swa else 0
        self.holders = defaultdict(set)  # slot -> names
        self.written = {}  # slot -> (chain of tokens up to here, as a hash)
        self.table = defaultdict(dict)  # row -> column -> slot
        self.row_rid = {}
        self.rid_row = {}
        self.length = defaultdict(int)
        self.truth = defaultdict(dict)
        self.cached = {}  # slot -> (position, slot before or None)
        self.swa_of = {}
        self.window_written = {}  # window slot -> chain of the token written there
        self.ended = defaultdict(list)
        self.steps = 0
        self.counts = defaultdict(int)
        self.max_lanes = 0
        self.last_t = 0.0

    def feed(self, event):
        self.counts[type(event).__name__.lower()] += 1
        if event.t is not None:
            assert event.t >= self.last_t
            self.last_t = event.t
        getattr(self, "on_" + type(event).__name__.lower())(event)

    def pages_whole(self, slots):
        slots = slots.tolist()
        assert len(slots) % self.size == 0
        for at in range(0, len(slots), self.size):
            assert slots[at] % self.size == 0
            assert slots[at : at + self.size] == list(range(slots[at], slots[at] + self.size))
        return slots

    def in_pool(self, slots):
        for slot in slots:
            assert self.size <= slot < self.num_slots, f"slot {slot} is no page to hand out"

    def on_bind(self, event):
        assert event.row not in self.row_rid
        assert event.rid not in self.rid_row
        assert event.row >= 1
        self.row_rid[event.row] = event.rid
        self.rid_row[event.rid] = event.row
        # leftovers of the former request may not be read any more
        self.table[event.row] = {}
        self.length[event.rid] = 0
        self.max_lanes = max(self.max_lanes, len(self.row_rid))

    def on_truth(self, event):
        for index, token in enumerate(event.tokens):
            self.truth[event.rid][event.at + index] = token

    def on_alloc(self, event):
        slots = self.pages_whole(event.slots)
        self.in_pool(slots)
        for slot in slots:
            assert not self.holders[slot], f"slot {slot} is handed out while {self.holders[slot]} hold it"
            self.holders[slot] = {event.to}
            self.written.pop(slot, None)

    def on_share(self, event):
        row = self.rid_row[event.rid]
        for column, slot in enumerate(self.pages_whole(event.slots), event.at):
            assert CACHE in self.holders[slot]
            assert slot in self.written, "a prefix was shared that nobody wrote"
            assert event.rid not in self.holders[slot]
            before = self.table[row].get(column)
            if before is not None:
                assert self.written[before] == self.written[slot], "re-pointed to another content"
            self.holders[slot].add(event.rid)
            self.table[row][column] = slot
            assert self.cached[slot][0] == column

    def on_publish(self, event):
        slots = self.pages_whole(event.slots)
        row = self.table[self.rid_row[event.rid]]
        after = event.after
        for column, slot in enumerate(slots, event.at):
            assert row[column] == slot
            assert event.rid in self.holders[slot]
            assert slot in self.written, "published before it was written"
            assert slot not in self.cached
            if column:
                assert after == row[column - 1]
            self.holders[slot].add(CACHE)
            self.cached[slot] = (column, after)
            after = slot
        if event.at:
            assert CACHE in self.holders[event.after]
        if event.tokens is not None:
            truth = self.truth[event.rid]
            assert event.tokens == [truth[p] for p in range(event.at, event.at + len(slots))]

    def on_map(self, event):
        rid = self.row_rid[event.row]
        assert event.at + len(event.slots) <= self.width
        for column, slot in enumerate(event.slots.tolist(), event.at):
            assert column >= self.length[rid]
            assert rid in self.holders[slot]
            self.table[event.row][column] = slot

    def on_free(self, event):
        for slot in self.pages_whole(event.slots):
            assert event.by in self.holders[slot], f"{event.by} gives up slot {slot}, which it does not hold"
            self.holders[slot].discard(event.by)

    def on_evict(self, event):
        for slot in self.pages_whole(event.slots):
            assert self.holders[slot] == {CACHE}, (
                f"slot {slot} was evicted while {self.holders[slot]} hold it"
            )
            self.holders[slot] = set()
            del self.cached[slot]
        gone = set(event.slots.tolist())
        # a leaf: nothing that stays continues from it
        assert not any(before in gone for _, before in self.cached.values())

    def on_swamap(self, event):
        for full, swa in zip(event.full.tolist(), event.swa.tolist(), strict=True):
            if swa:
                assert self.size <= swa < self.num_window_slots
                assert swa not in self.swa_of.values(), "window slot handed out twice"
                assert full not in self.swa_of
                assert self.holders[full]
                self.swa_of[full] = swa
            else:
                del self.swa_of[full]

    def on_forward(self, event):
        lens = event.lens or [1] * len(event.rows)
        total = sum(lens)
        assert len(set(event.rows)) == len(event.rows)
        assert event.tokens is None or len(event.tokens) == total
        slots = None if event.slots is None else event.slots.tolist()
        assert slots is None or len(slots) == total
        assert event.width is None or event.width > len(event.rows)
        at, seen = 0, set()
        for lane, (row, prefix, count) in enumerate(zip(event.rows, event.prefix, lens, strict=True)):
            rid = self.row_rid[row]
            assert prefix == self.length[rid] or (prefix > 0 and self.length[rid] == 0)
            self.reads(rid, row, prefix)
            truth = self.truth[rid]
            tokens = event.tokens[at : at + count] if event.tokens else None
            keep = event.accepted[lane] if event.accepted else count
            for index in range(count):
                column = prefix + index
                slot = slots[at + index] if slots else self.table[row][column]
                assert column < self.width
                assert self.table[row].get(column, slot) == slot, "the row says otherwise"
                assert self.holders[slot] == {rid}, f"{rid} writes slot {slot} of {self.holders[slot]}"
                assert slot not in seen
                assert not self.window or slot in self.swa_of
                seen.add(slot)
                self.table[row][column] = slot
                token = tokens[index] if tokens else truth[column]
                if index < keep:
                    assert token == truth[column]
                elif index == keep:
                    assert token != truth.get(column)
                before = self.written[self.table[row][column - 1]] if column else None
                self.written[slot] = hash((before, token, column))
                if self.window:
                    self.window_written[self.swa_of[slot]] = self.written[slot]
            if event.expect is not None:
                wanted = tokens or [truth[prefix + index] for index in range(count)]
                assert event.expect[at : at + count] == wanted
            assert 1 <= keep <= count
            self.length[rid] = prefix + keep
            at += count
        self.steps += 1

    def reads(self, rid, row, prefix):
        """Everything before `prefix` is held by the reader, was written, and is what it should be."""
        chain = None
        for column in range(prefix):
            slot = self.table[row][column]
            assert rid in self.holders[slot]
            chain = hash((chain, self.truth[rid][column], column))
            assert self.written[slot] == chain, f"{rid} reads other content at {column}"
            if self.window and column >= prefix - self.window:
                assert slot in self.swa_of, f"{rid} lost position {column} inside its window"
                assert self.window_written[self.swa_of[slot]] == chain, "the window holds something else"

    def on_unbind(self, event):
        rid = self.row_rid.pop(event.row)
        del self.rid_row[rid]

    def on_end(self, event):
        assert event.rid not in self.rid_row
        assert not any(event.rid in names for names in self.holders.values()), "ended while holding slots"
        self.ended[event.why].append(event.rid)

    def on_sweep(self, event):
        for slot, (_, before) in self.cached.items():
            assert CACHE in self.holders[slot]
            assert before is None or before in self.cached
            assert not self.window or self.window_written[self.swa_of[slot]] == self.written[slot]

    def finish(self):
        """Nobody but the cache holds anything, and window slots belong to held slots only."""
        assert not self.row_rid
        held = {slot for slot, names in self.holders.items() if names}
        assert held == set(self.cached)
        assert set(self.swa_of) <= held
        return self


def check(header, stream):
    """Run a whole trace through a ledger and return it."""
    ledger = Ledger(header)
    for event in stream:
        assert not isinstance(event, ev.Header)
        ledger.feed(event)
    return ledger.finish()
