"""Dumps for the tests: a world of rows written by the reference kernels, by a replay, and an independent check.

The check knows nothing of the code under test: plain loops over the file's tensors, hashes on Python integers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvcanary_cli.trace.dump import DumpCache, DumpSource, write_dump
from kvcanary_cli.trace.safetensors import open_safetensors

MASK = (1 << 64) - 1
ANCHOR = 0xC0FFEE1234567890
ORDER = ("chain_hash", "position", "real_kv_hash", "verify_token", "slot_out_of_range")


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def chain(prev: int, token: int, position: int) -> int:
    return mix(mix(mix(prev & MASK) ^ (token & MASK)) ^ (position & MASK))


def signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def hash_bytes(data: bytes) -> int:
    value = 0
    for start in range(0, len(data), 8):
        value = mix(value ^ int.from_bytes(data[start : start + 8], "little"))
    return value


def hash_sources(pieces: list[bytes]) -> int:
    value = 0
    for piece in pieces:
        value = mix(value ^ hash_bytes(piece))
    return value


@dataclass
class World:
    """A pool with rows, made by hand: change any array, then `write`.

    64 slots in pages of 4; three rows with a request, two of which share their first 4 slots with the cache.
    """

    page_size: int = 4
    width: int = 24
    rows: dict[int, list[int]] = field(
        default_factory=lambda: {
            1: [8, 9, 10, 11, 20, 21, 22, 23, 28, 29],
            2: [8, 9, 10, 11, 32, 33, 34, 35, 40, 41, 42],
            5: [48, 49, 50, 51, 52, 53, 54, 55, 12, 13, 14, 15, 16, 17, 18, 19, 24, 25, 26],
        }
    )
    rids: dict[int, str] = field(default_factory=lambda: {1: "req-1", 2: "req-2", 5: "req-5"})

    def __post_init__(self) -> None:
        numbers = np.random.default_rng(11)
        self.kv = {
            "k": numbers.integers(0, 256, (16, self.page_size * 32), dtype=np.uint8),
            "v": numbers.integers(0, 256, (64, 48), dtype=np.uint8),
        }
        self.table = np.zeros((7, self.width), np.int32)
        self.lens = np.zeros(7, np.int64)
        self.tokens = np.zeros((7, self.width), np.int32)
        for row, slots in self.rows.items():
            self.table[row, : len(slots)] = slots
            self.lens[row] = len(slots)
            self.tokens[row, : len(slots)] = numbers.integers(1, 1000, len(slots))
        self.tokens[2, :4] = self.tokens[1, :4]
        self.canary = {
            f"{phase}_{half}_full": np.zeros((64, 4), np.int64) for phase in ("head", "tail") for half in "kv"
        }
        for row, slots in self.rows.items():
            self.stamp(slots, self.tokens[row, : len(slots)].tolist())
        self.cache = [(slot, i, self.rows[1][i - 1] if i else -1) for i, slot in enumerate(self.rows[1][:4])]

    def stamp(self, slots: list[int], tokens: list[int], prev: int | None = None, start: int = 0) -> int:
        """Write a chain into slots; returns the chain value after it."""
        h = mix(ANCHOR) if prev is None else prev
        for position, (slot, token) in enumerate(zip(slots, tokens, strict=True), start):
            for name, buffer in self.canary.items():
                kv = signed(self.slot_hash(name.split("_")[1], slot)) if name.startswith("tail") else 0
                buffer[slot] = (token, position, signed(h), kv)
            h = chain(h, token, position)
        return h

    def slot_hash(self, half: str, slot: int) -> int:
        return hash_sources([self.slot_bytes(half, slot)])

    def slot_bytes(self, half: str, slot: int) -> bytes:
        if half == "k":
            page, offset = divmod(slot, self.page_size)
            return self.kv["k"][page, offset * 32 : offset * 32 + 16].tobytes()
        return self.kv["v"][slot, :32].tobytes()

    def arguments(self) -> dict:
        slots, positions, before = (np.array(column, np.int64) for column in zip(*self.cache, strict=True))
        return {
            "canary": self.canary,
            "req_to_token": self.table,
            "seq_lens": self.lens,
            "sources": [
                DumpSource(name="k", tensor=self.kv["k"], num_bytes_per_token=32, read_bytes=16, page_size=4),
                DumpSource(name="v", tensor=self.kv["v"], num_bytes_per_token=48, read_bytes=32, half="v"),
            ],
            "hash_mode": "all",
            "expected_tokens": self.tokens,
            "expected_lens": self.lens,
            "page_size": self.page_size,
            "cache": DumpCache(slots=slots, positions=positions, predecessors=before),
            "rids": self.rids,
        }

    def write(self, path: Path, **changes: object) -> str:
        arguments = self.arguments() | changes
        write_dump(path, **{key: value for key, value in arguments.items() if value is not ...})
        return str(path)


def failing(path: str) -> set[tuple[str, int, int, tuple[str, ...]]]:
    """(launch, slot, position, failed checks) of a dump, by plain loops over its tensors."""
    file = open_safetensors(path)
    arrays = {name: np.array(file.array_of(name)) for name in file.tensors}
    meta = file.metadata
    sources = json.loads(meta["sources"])
    found = set()
    for name, buffer in arrays.items():
        if not name.startswith("canary."):
            continue
        phase, half, group = name.removeprefix("canary.").split("_")
        stamps = np.ascontiguousarray(buffer).view(np.int64).reshape(len(buffer), -1)
        covered = [s for s in sources if s["half"] == half and s["group"] == group and phase == "tail"]
        for slot, position, before, token in entries_of(arrays, meta, group):
            if slot == 0:
                continue
            if not 0 <= slot < len(stamps):
                found.add((name.removeprefix("canary.").upper(), slot, position, ("slot_out_of_range",)))
                continue
            stored = [int(word) for word in stamps[slot, :4]]
            bits = []
            if before >= len(stamps):
                bits.append("slot_out_of_range")
            elif before > 0:
                prev = [int(word) for word in stamps[before, :4]]
                if stored[2] & MASK != chain(prev[2], prev[0], prev[1]):
                    bits.append("chain_hash")
            elif before < 0 and stored[2] & MASK != mix(ANCHOR):
                bits.append("chain_hash")
            if stored[1] != position:
                bits.append("position")
            pieces = [piece(arrays["kv." + s["name"]], s, slot, meta["hash_mode"]) for s in covered]
            if stored[3] & MASK != (hash_sources(pieces) if meta["hash_mode"] != "none" else 0):
                bits.append("real_kv_hash")
            if token >= 0 and stored[0] != token:
                bits.append("verify_token")
            if bits:
                bits.sort(key=ORDER.index)
                found.add((name.removeprefix("canary.").upper(), slot, position, tuple(bits)))
    return found


def piece(tensor: np.ndarray, source: dict, slot: int, mode: str) -> bytes:
    page, offset = divmod(slot, source["page_size"])
    start = offset * source["num_bytes_per_token"]
    length = min(16, source["read_bytes"]) if mode == "partial" else source["read_bytes"]
    return tensor[page, start : start + length].tobytes()


def entries_of(arrays: dict[str, np.ndarray], meta: dict[str, str], group: str):
    """(slot, position, predecessor, expected token) of every row and of the cache."""
    lut = arrays.get("full_to_swa") if group == "swa" and "full_to_swa" in arrays else None

    def mapped(slot: int) -> int:
        return slot if lut is None or slot < 0 else int(lut[slot]) if slot < len(lut) else -1

    table, tokens = arrays["req_to_token"], arrays.get("expected_tokens")
    window = int(meta.get("window_size", 0)) if group == "swa" else 0
    offset = int(meta.get("token_offset", 0))
    for row, length in enumerate(arrays["seq_lens"].tolist()):
        if row == 0:
            continue
        length = min(length, table.shape[1])
        for position in range(max(0, length - window) if window else 0, length):
            before = mapped(int(table[row, position - 1])) if position else -1
            at, token = position + offset, -1
            if tokens is not None and at < min(int(arrays["expected_lens"][row]), tokens.shape[1]):
                token = int(tokens[row, at])
            yield mapped(int(table[row, position])), position, before, token
    for slot, position, before in zip(
        *(
            arrays.get(f"cache.{n}", np.zeros(0, np.int64)).tolist()
            for n in ("slots", "positions", "predecessors")
        ),
        strict=True,
    ):
        yield mapped(slot), position, mapped(before) if before >= 0 else -1, -1
