"""What a replay must compute, told a second time: the trace format's rules over dicts and lists.

`Oracle.feed` takes the events of a trace in order and returns what each forward and sweep has to report.
Ownership, gaps and capacities are not its business. Slow on purpose, and independent of `replay`, `runtime`
and `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvcanary_cli.trace import events as ev
from tests.replay.oracle_kernels import (
    ALL,
    HEAD_OF_CHAIN,
    U64,
    Entry,
    Lane,
    Memory,
    Row,
    Stamp,
    Token,
    chain,
    fill_lanes,
    fnv1a64,
    make_words,
    mix,
    verify,
    write,
)

VOCABULARY = 151936


class RefusedError(Exception):
    """The event is an input error."""


@dataclass
class Step:
    """One forward or sweep: violation rows, planned verify entries and stamps written by launch tag."""

    rows: list[Row] = field(default_factory=list)
    planned: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)


class Oracle:
    """State of one trace."""

    def __init__(self, header: ev.Header, *, mode: int = ALL, sweep_interval: int = 0) -> None:
        self.header, self.sweep_interval = header, sweep_interval
        self.width = header.pool.row_width
        self.cells = [0] * (header.pool.rows * self.width)
        self.fresh = [False] * len(self.cells)  # mapped since the last bind of the cell's row
        self.rid_of: dict[int, str] = {}
        self.row_of: dict[str, int] = {}
        self.truth: dict[str, dict[int, int]] = {}
        self.truth_of: dict[int, dict[int, int]] = {}  # row -> the truth of the request that has it
        self.over: set[str] = set()  # ended for good: the name means a new request from now on
        self.waiting: dict[str, list[tuple[int, list[int]]]] = {}  # shares before the bind
        self.kinds = [group.kind for group in header.groups]
        self.window = next((g.window for g in header.groups if g.kind == "swa"), 0)
        self.has_map = len(self.kinds) == 2
        self.swa_of = [0] * header.pool.slots
        halves = "kv" if any(source.half == "v" for source in header.sources) else "k"
        self.memory = {kind: Memory(header, kind, halves, mode) for kind in self.kinds}
        self.cached: dict[tuple[int, int], int] = {}  # (position, slot) -> predecessor
        self.store: dict[str, tuple[str, list[tuple[list[Stamp], dict[int, list[int]]]]]] = {}
        self.deliveries: dict[str, tuple[str | None, list[int], str]] = {}
        self.num_forwards = 0

    def feed(self, line: int, event: ev.Event) -> list[Step]:
        """What this event, at line `line` of the file, makes the canary report."""
        if isinstance(event, ev.Forward):
            return self._forward(line, event)
        if isinstance(event, ev.Sweep):
            return [self._sweep()]
        handler = getattr(self, f"_{type(event).__name__.lower()}", None)
        if isinstance(event, ev.Kv):
            self._kv(line, event)
        elif handler is not None:
            handler(event)
        return []

    # rows of the page table

    def _read(self, index: int) -> int:
        return self.cells[index] if 0 <= index < len(self.cells) else -1

    def _put(self, row: int, at: int, slots: Iterable[int]) -> None:
        for index, slot in enumerate(slots, row * self.width + at):
            if index < len(self.cells):
                self.cells[index], self.fresh[index] = int(slot), True

    def _is_mapped(self, index: int) -> bool:
        return index < len(self.cells) and self.cells[index] != 0 and self.fresh[index]

    def _take_row(self, row: int, rid: str, known: dict[int, int] | None = None) -> None:
        """The row is the request's from now on, and what it holds is left over."""
        self._leave(row)
        self._leave(self.row_of.get(rid, row))
        start = row * self.width
        self.fresh[start : start + self.width] = [False] * self.width
        self.rid_of[row], self.row_of[rid] = rid, row
        self.truth_of[row] = self._truth_now(rid) if known is None else known

    def _leave(self, row: int) -> None:
        self.row_of.pop(self.rid_of.pop(row, ""), None)
        self.truth_of.pop(row, None)

    def _bind(self, event: ev.Bind) -> None:
        self._take_row(event.row, event.rid)
        for at, slots in self.waiting.pop(event.rid, []):
            self._put(event.row, at, slots)

    def _unbind(self, event: ev.Unbind) -> None:
        self._leave(event.row)

    def _move(self, event: ev.Move) -> None:
        old = self.row_of.get(event.rid)
        start = 0 if old is None else old * self.width
        columns = [] if old is None else [c for c in range(self.width) if self._is_mapped(start + c)]
        slots = [self.cells[start + column] for column in columns]
        known = self.truth_of.get(old) if old is not None else None
        self._take_row(event.row, event.rid, known)
        for column, slot in zip(columns, slots, strict=True):
            self._put(event.row, column, [slot])

    def _end(self, event: ev.End) -> None:
        if event.why != "retract":
            self.over.add(event.rid)
            self.waiting.pop(event.rid, None)

    def _truth_now(self, rid: str) -> dict[int, int]:
        """What the request of this name is known to have; a name that ended for good begins anew."""
        if rid in self.over:
            self.over.discard(rid)
            self.truth[rid] = {}
        return self.truth.setdefault(rid, {})

    def _truth(self, event: ev.Truth) -> None:
        # while the ended request has its row, it is the one that is meant
        known = (
            self.truth.setdefault(event.rid, {}) if event.rid in self.row_of else self._truth_now(event.rid)
        )
        known.update(enumerate(event.tokens, event.at))

    def _share(self, event: ev.Share) -> None:
        row = self.row_of.get(event.rid)
        if row is None:
            self.waiting.setdefault(event.rid, []).append((event.at, event.slots.tolist()))
        else:
            self._put(row, event.at, event.slots.tolist())

    def _map(self, event: ev.Map) -> None:
        self._put(event.row, event.at, event.slots.tolist())

    def _swamap(self, event: ev.SwaMap) -> None:
        for full, swa in zip(event.full.tolist(), event.swa.tolist(), strict=True):
            self.swa_of[full] = swa

    # the cache's content

    def _publish(self, event: ev.Publish) -> None:
        before = -1
        if event.at:
            row = None if event.rid is None else self.row_of.get(event.rid)
            # 0: nobody knows, so the chain is not checked there
            before = 0 if row is None else self._read(row * self.width + event.at - 1)
            before = 0 if before < 0 else before
            before = before if event.after is None else event.after
        for position, slot in enumerate(event.slots.tolist(), event.at):
            self.cached.setdefault((position, slot), before)
            before = slot

    def _evict(self, event: ev.Evict) -> None:
        """One entry for each element: the one that continues the list, else the oldest of that slot."""
        if event.group == "swa" and self.has_map:
            return  # the content is told in full slots
        position = -2
        for slot in event.slots.tolist():
            mine = [key[0] for key in self.cached if key[1] == slot]
            position = position + 1 if position + 1 in mine else mine[0] if mine else -2
            self.cached.pop((position, slot), None)

    def _sweep(self) -> Step:
        step = Step()
        for kind, memory in self.memory.items():
            entries = [
                Entry(self._slot_in(kind, slot), position, self._slot_in(kind, before))
                for (position, slot), before in self.cached.items()
                if kind != "swa" or not self.has_map or self.swa_of[slot]  # 0: evicted from the window
            ]
            for buffer in memory.buffers:
                if buffer.phase:
                    tag = memory.tag_base + 4 + "kv".index(buffer.half)
                    step.planned[tag] = len(entries)
                    step.rows += verify(memory, buffer, tag, entries)
        return step

    # forwards

    def _slot_in(self, kind: str, slot: int) -> int:
        """The group's slot for a slot of the table."""
        if kind != "swa" or not self.has_map or slot < 0:
            return slot
        return self.swa_of[slot] if slot < len(self.swa_of) else -1

    def _default_token(self, row: int, position: int) -> int:
        rid = self.rid_of.get(row, "")
        place = position + self.header.token_position_offset
        made = mix(fnv1a64(rid) ^ place) % VOCABULARY
        return self.truth_of.get(row, {}).get(place, made)

    def _tokens(self, event: ev.Forward) -> list[list[Token]]:
        """Every lane's tokens with the table's slots; maps the columns that were unmapped."""
        lanes, flat = [], 0
        for lane, (row, prefix) in enumerate(zip(event.rows, event.prefix, strict=True)):
            tokens = []
            for column in range(prefix, prefix + (1 if event.lens is None else event.lens[lane])):
                index = row * self.width + column
                mapped = row != 0 and self._is_mapped(index)
                if event.slots is not None:
                    slot = int(event.slots[flat])
                elif row and not mapped:
                    raise RefusedError(f"column {column} of row {row} is unmapped")
                else:
                    slot = self.cells[index] if row else 0
                token = event.tokens[flat] if event.tokens else self._default_token(row, column)
                position = event.positions[flat] if event.positions else column
                expected = None if event.expect is None else event.expect[flat]
                tokens.append(Token(slot, token, position, token if expected == -1 else expected, column))
                flat += 1
                if row and not mapped and slot != -1:
                    self._put(row, column, [slot])
            lanes.append(tokens)
        return lanes

    def _plan(self, event: ev.Forward, kind: str) -> list[Entry]:
        entries = []
        offset = self.header.token_position_offset
        for row, prefix in zip(event.rows, event.prefix, strict=True):
            if row == 0:
                continue
            known = self.truth_of.get(row, {})
            first = max(0, prefix - self.window) if kind == "swa" else 0
            for p in range(first, prefix):
                here = self._slot_in(kind, self._read(row * self.width + p))
                before = self._slot_in(kind, self._read(row * self.width + p - 1)) if p else -1
                # expected tokens are kept in rows as wide as the table's
                expected = known.get(p + offset, -1) if p + offset < self.width else -1
                entries.append(Entry(here, p, before, expected))
        return entries

    def _forward(self, line: int, event: ev.Forward) -> list[Step]:
        step, lanes = Step(), self._tokens(event)
        for kind, memory in self.memory.items():
            entries = self._plan(event, kind)
            mine = []
            for row, prefix, tokens in zip(event.rows, event.prefix, lanes, strict=True):
                seed = self._read(row * self.width + prefix - 1) if row and prefix and tokens else -1
                here = [
                    Token(self._slot_in(kind, t.slot), t.token, t.position, t.expected, t.expected_position)
                    for t in tokens
                ]
                mine.append(Lane(self._slot_in(kind, seed), here))
            head = memory.buffers[0]
            stamped = [lane for row, lane in zip(event.rows, mine, strict=True) if row]
            seeds = [
                head.at(lane.seed).after() if 0 <= lane.seed < memory.num_slots else HEAD_OF_CHAIN
                for lane in stamped
            ]
            for phase in (0, 1):
                if phase:
                    fill_lanes(memory, seeds, stamped, event.byte_salt)
                    self._fill_padding(line, event, kind, lanes)
                for buffer in memory.buffers:
                    if buffer.phase == phase:
                        tag = memory.tag_base + 2 * phase + "kv".index(buffer.half)
                        step.planned[tag] = len(entries)
                        step.rows += verify(memory, buffer, tag, entries)
                        step.rows += write(memory, buffer, tag, stamped, event.chain_positions)
                        written = [
                            t for lane in stamped for t in lane.tokens if 0 <= t.slot < memory.num_slots
                        ]
                        step.written[tag] = len(written)
        self.num_forwards += 1
        if self.sweep_interval and self.num_forwards % self.sweep_interval == 0:
            return [step, self._sweep()]
        return [step]

    def _fill_padding(self, line: int, event: ev.Forward, kind: str, lanes: list[list[Token]]) -> None:
        """Bytes that padded lanes and the padded part of the graph write, after the lanes' own."""
        slots = [t.slot for row, tokens in zip(event.rows, lanes, strict=True) if row == 0 for t in tokens]
        slots += [0] if event.width is not None and event.width > len(event.rows) else []
        slots += [] if event.pad_writes is None else event.pad_writes.tolist()
        for slot in slots:
            if slot >= 0:
                self.memory[kind].fill(self._slot_in(kind, slot), mix(line) ^ slot)

    # bytes and stamps outside forwards

    def _kv(self, line: int, event: ev.Kv) -> None:
        memory = self.memory[event.group]
        froms = [] if event.from_ is None else event.from_.tolist()
        named = memory.named(event.sources)
        # a copy is as if all slots were read first
        read = [{n: list(memory.bytes_of(n, source, slot)) for n, source in named} for slot in froms]
        for i, slot in enumerate(event.slots.tolist()):
            for number, source in named:
                words = memory.bytes_of(number, source, slot)
                if event.op == "write":
                    words = make_words(mix(line) ^ slot, number, source.bytes_per_slot)
                elif event.op == "zero":
                    words = [0] * len(words)
                elif event.op == "copy":
                    words = list(read[i][number])
                else:
                    word, shift = divmod(event.byte or 0, 8)
                    words[word] ^= (event.xor or 0) << (8 * shift)
                memory.words[number, slot] = words

    def _stamp(self, event: ev.Stamp) -> None:
        where = event.buffer or ("tail" if event.field == "kv_hash" else None)
        for buffer in self.memory[event.group].buffers:
            if where in (None, ("head", "tail")[buffer.phase]):
                stamp = buffer.at(event.slot)
                setattr(stamp, event.field, getattr(stamp, event.field) ^ (event.xor & U64))

    def _offload(self, event: ev.Offload) -> None:
        memory = self.memory[event.group]
        copies = []
        for slot in event.slots.tolist():
            words = {number: list(memory.bytes_of(number, source, slot)) for number, source in memory.sources}
            copies.append(([buffer.at(slot).copy() for buffer in memory.buffers], words))
        self.store[event.key] = (event.group, copies)

    def _reload(self, event: ev.Reload) -> None:
        group, copies = self.store.get(event.key, (None, []))
        if group != event.group or len(copies) < len(event.slots):
            raise RefusedError("nothing like that was offloaded")
        memory = self.memory[event.group]
        for slot, (stamps, words) in list(zip(event.slots.tolist(), copies, strict=False))[: event.count]:
            for number, _ in memory.named(event.sources):
                memory.words[number, slot] = list(words[number])
            for buffer, stamp in zip(memory.buffers, stamps, strict=True):
                if event.stamps:
                    buffer.stamps[slot] = stamp.copy()

    def _xfer(self, event: ev.Xfer) -> None:
        if event.op == "start":
            self.deliveries[event.id] = (event.rid, event.slots.tolist(), event.group)  # type: ignore[union-attr]
        elif event.op == "done":
            self._land(event)
        else:
            self.deliveries.pop(event.id, None)

    def _land(self, event: ev.Xfer) -> None:
        """The data arrives: what a forward with this chain would have made, in bytes and stamps."""
        memory, tokens = self.memory[event.group], event.tokens or []
        rid, slots, group = self.deliveries.pop(event.id, (None, [], event.group))
        if event.slots is None and group != event.group:
            raise RefusedError("addressed to slots of another group")
        rid, slots = event.rid or rid, slots if event.slots is None else event.slots.tolist()
        if len(tokens) not in (len(slots), event.at + len(slots)) or not slots:
            raise RefusedError("tokens and slots don't fit")
        own = tokens[len(tokens) - len(slots) :]
        h = self._chain_before(event, rid, tokens[: len(tokens) - len(slots)])
        count = len(slots) if event.count is None else min(event.count, len(slots))
        for position, (slot, token) in enumerate(list(zip(slots, own, strict=True))[:count], event.at):
            c = chain(h, token, position)
            memory.fill(slot, c, names=event.sources)
            words = {number: make_words(c, number, s.bytes_per_slot) for number, s in memory.sources}
            for buffer in memory.buffers if event.stamps else []:
                kv_hash = memory.hash_words(buffer.half, words) if buffer.phase else 0
                buffer.stamps[slot] = Stamp(token, position, h, kv_hash)
            h = c

    def _chain_before(self, event: ev.Xfer, rid: str | None, before: list[int]) -> int:
        """The chain value that a delivery continues: of the row's previous slot, else of the tokens before."""
        row = None if rid is None else self.row_of.get(rid)
        if event.at == 0:
            return HEAD_OF_CHAIN
        full = 0 if row is None else self._read(row * self.width + event.at - 1)
        if before and full == 0:
            h = HEAD_OF_CHAIN
            for position, token in enumerate(before):
                h = chain(h, token, position)
            return h
        if row is None:
            raise RefusedError("the chain before is not known")
        memory = self.memory[event.group]
        seed = self._slot_in(event.group, full)
        # one chain for both buffers, the one that keeps byte hashes
        tail = next(buffer for buffer in memory.buffers if buffer.phase)
        return tail.at(seed).after() if 0 <= seed < memory.num_slots else HEAD_OF_CHAIN
