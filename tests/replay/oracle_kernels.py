"""The canary's arithmetic in plain Python ints: hashes, stamps, bytes, and the verify and write launches.

Written from the kernels' contract alone and slow on purpose: nothing here is shared with the package but the
header's structs, so that one mistake can't hide in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcanary_cli.trace.header import Header, Source

U64 = (1 << 64) - 1
Row = tuple[int, int, int, int, int, int, int, int]
# how much of a source is hashed: contract numbers 0, 1, 2
NONE, PARTIAL, ALL = range(3)


def mix(x: int) -> int:
    """The splitmix64 finaliser."""
    x &= U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


HEAD_OF_CHAIN = mix(0xC0FFEE1234567890)


def chain(prev: int, token: int, position: int) -> int:
    """The chain value after a token; all numbers as unsigned 64-bit patterns."""
    return mix(mix(mix(prev) ^ (token & U64)) ^ (position & U64))


def affine_chain(prev: int, token: int, position: int) -> int:
    """The same of an affine chain; a test puts it in `chain`'s place."""
    return (prev * 0xD1342543DE82EF95 + mix(mix(token & U64) ^ (position & U64))) & U64


def fnv1a64(text: str) -> int:
    """The 64-bit FNV-1a hash of a name's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & U64
    return value


def signed(x: int) -> int:
    """The bit pattern as int64."""
    x &= U64
    return x - (1 << 64) if x >> 63 else x


def make_words(c: int, number: int, num_bytes: int, salt: int = 0) -> list[int]:
    """Bytes of one slot in source `number`, as 8-byte words, after chain value `c`."""
    return [mix(c ^ mix((number << 32) ^ j) ^ (salt & U64)) for j in range(num_bytes // 8)]


@dataclass
class Stamp:
    """Four unsigned 64-bit words."""

    token: int = 0
    position: int = 0
    prev_hash: int = 0
    kv_hash: int = 0

    def copy(self) -> Stamp:
        return Stamp(self.token, self.position, self.prev_hash, self.kv_hash)

    def after(self) -> int:
        """The chain value after this stamp's token."""
        return chain(self.prev_hash, self.token, self.position)


@dataclass
class Entry:
    """One planned verify entry: where it is, what came before it, what token is expected (-1: any)."""

    slot: int
    position: int
    predecessor: int
    expected: int = -1


@dataclass
class Token:
    """One token to write; `expected` and `expected_position` matter when the forward asserts its input."""

    slot: int
    token: int
    position: int
    expected: int | None = None
    expected_position: int = 0


@dataclass
class Lane:
    """What one lane writes in one group; seed -1 is the head of a chain."""

    seed: int
    tokens: list[Token] = field(default_factory=list)


class Buffer:
    """One stamp buffer: a phase (head 0, tail 1) and a half of one group."""

    def __init__(self, phase: int, half: str) -> None:
        self.phase = phase
        self.half = half
        self.stamps: dict[int, Stamp] = {}

    def at(self, slot: int) -> Stamp:
        return self.stamps.setdefault(slot, Stamp())


class Memory:
    """Bytes and stamps of one group's pool."""

    def __init__(self, header: Header, kind: str, halves: str, mode: int) -> None:
        self.num_slots = header.num_slots(kind)
        self.tag_base = 6 if kind == "swa" else 0
        self.sources: list[tuple[int, Source]] = [
            (number, source) for number, source in enumerate(header.sources) if source.group == kind
        ]
        self.mode = mode
        self.words: dict[tuple[int, int], list[int]] = {}  # (source number, slot)
        self.buffers = [Buffer(phase, half) for phase in (0, 1) for half in halves]

    def named(self, names: Sequence[str] | None) -> list[tuple[int, Source]]:
        return [(n, source) for n, source in self.sources if names is None or source.name in names]

    def bytes_of(self, number: int, source: Source, slot: int) -> list[int]:
        return self.words.setdefault((number, slot), [0] * (source.bytes_per_slot // 8))

    def fill(self, slot: int, c: int, salt: int = 0, names: Sequence[str] | None = None) -> None:
        """Bytes made from chain value `c` in the slot's sources; a slot outside the pool gets nothing."""
        if 0 <= slot < self.num_slots:
            for number, source in self.named(names):
                self.words[number, slot] = make_words(c, number, source.bytes_per_slot, salt)

    def hash_words(self, half: str, words: dict[int, list[int]]) -> int:
        """Byte hash of a slot whose words are given by source number."""
        total = 0
        for number, source in self.sources:
            read = min(source.hashed_bytes, 16) if self.mode == PARTIAL else source.hashed_bytes
            if source.half != half or read == 0 or self.mode == NONE:
                continue
            one = 0
            for word in words[number][: read // 8]:
                one = mix(one ^ word)
            total = mix(total ^ one)
        return total

    def kv_hash(self, buffer: Buffer, slot: int) -> int:
        """Hash of the bytes that are there now; a head buffer keeps none."""
        if buffer.phase == 0:
            return 0
        return self.hash_words(buffer.half, {n: self.bytes_of(n, s, slot) for n, s in self.sources})


def verify(memory: Memory, buffer: Buffer, tag: int, entries: Sequence[Entry]) -> list[Row]:
    """Violation rows of one verify launch."""
    rows: list[Row] = []
    for entry in entries:
        if entry.slot == 0:
            continue
        if not 0 <= entry.slot < memory.num_slots:
            rows.append((tag, entry.slot, 0, 0, entry.expected, 0, 0, 64))
            continue
        stamp, bits, aux = buffer.at(entry.slot), 0, 0
        if entry.predecessor >= memory.num_slots:
            bits, aux = 64, entry.predecessor
        elif entry.predecessor == 0:
            aux = stamp.prev_hash
        else:
            before = buffer.at(entry.predecessor).after() if entry.predecessor > 0 else HEAD_OF_CHAIN
            bits, aux = int(stamp.prev_hash != before), before
        bits |= 2 * (signed(stamp.position) != entry.position)
        bits |= 4 * (stamp.kv_hash != memory.kv_hash(buffer, entry.slot))
        bits |= 32 * (entry.expected != -1 and signed(stamp.token) != entry.expected)
        if bits:
            position, token, prev = signed(stamp.position), signed(stamp.token), signed(stamp.prev_hash)
            rows.append((tag, entry.slot, position, token, entry.expected, prev, signed(aux), bits))
    return rows


def write(memory: Memory, buffer: Buffer, tag: int, lanes: Sequence[Lane], chained: bool) -> list[Row]:
    """Stamp every lane's tokens; all seeds are read before the first stamp is written."""
    rows: list[Row] = []
    seeds = [buffer.at(lane.seed).copy() if 0 <= lane.seed < memory.num_slots else None for lane in lanes]
    for lane, seed in zip(lanes, seeds, strict=True):
        h = seed.after() if seed else HEAD_OF_CHAIN
        if lane.seed >= memory.num_slots:
            rows.append((tag, lane.seed, -1, 0, -1, 0, memory.num_slots, 64))
        last = signed(seed.position) if seed and chained else None
        for token in lane.tokens:
            if token.slot < 0:
                continue
            rows += _asserts(tag, token, h, last)
            if token.slot >= memory.num_slots:
                row = (token.slot, token.position, token.token, token.token, signed(h), memory.num_slots, 64)
                rows.append((tag, *row))
            else:
                kv_hash = memory.kv_hash(buffer, token.slot)
                buffer.stamps[token.slot] = Stamp(token.token, token.position & U64, h, kv_hash)
            h = chain(h, token.token, token.position)
            last = None if last is None else token.position
    return rows


def _asserts(tag: int, token: Token, h: int, last: int | None) -> list[Row]:
    """Rows of the input assert and of the chain-position assert; `last` None: the latter is off."""
    rows: list[Row] = []
    if token.expected is not None:
        bits = 8 * (token.token != token.expected) | 16 * (token.position != token.expected_position)
        if bits:
            aux = token.expected_position
            rows.append((tag, token.slot, token.position, token.token, token.expected, signed(h), aux, bits))
    if last is not None and token.position != signed(last + 1):
        same = (token.token, token.token)
        rows.append((tag, token.slot, token.position, *same, signed(h), signed(last + 1), 16))
    return rows


def fill_lanes(memory: Memory, seeds: Sequence[int], lanes: Sequence[Lane], salt: int) -> None:
    """The model's byte writes: bytes that follow from each lane's chain; `seeds` are the chains' starts."""
    for h, lane in zip(seeds, lanes, strict=True):
        for token in lane.tokens:
            if token.slot >= 0:
                h = chain(h, token.token, token.position)
                memory.fill(token.slot, h, salt)
