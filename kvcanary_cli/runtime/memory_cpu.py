"""Memory of a run in NumPy arrays, and the operations on it outside of forwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvcanary_cli.kernels.consts import STAMP_WORDS, WORD_KV_HASH, HashMode
from kvcanary_cli.kernels.plans_cpu import aligned_zeros
from kvcanary_cli.kernels.sources_cpu import KvSource, source_table
from kvcanary_cli.runtime.bytes_cpu import fill_slots, hash_slots, stamp_contexts, word_keys
from kvcanary_cli.runtime.calls import HostCopy, IntArray, WordArray
from kvcanary_cli.runtime.layout import HEAD, TAIL, Layout, SourceLayout


class CpuMemory:
    """Stamps and KV bytes of one run.

    Attributes:
        stamps: (phase, half, group) -> [num_slots, 4] int64.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.stamps = {
            (phase, half, group.kind): aligned_zeros((group.num_slots, STAMP_WORDS), "int64")
            for phase in (HEAD, TAIL)
            for half in layout.halves
            for group in layout.groups
        }
        self._kv = {s.number: self._source_memory(s, layout.group(s.group).num_slots) for s in layout.sources}
        self._keys = {s.number: word_keys(s.number, s.bytes_per_slot // 8) for s in layout.sources}
        self._tables = {
            (half, group.kind): source_table(self._hashed_sources(group.kind, half), HashMode.ALL)
            for half in layout.halves
            for group in layout.groups
        }
        self._no_table = source_table([], HashMode.NONE)

    def source_table(self, phase: str, half: str, group_kind: str) -> np.ndarray:
        """Sources that a launch hashes, as the kernels walk them: none at HEAD."""
        return self._tables[half, group_kind] if phase != HEAD else self._no_table

    def write_bytes(
        self,
        group_kind: str,
        slots: IntArray,
        contexts: WordArray,
        *,
        salt: int,
        sources: Sequence[int] | None = None,
    ) -> None:
        for source in self._named(group_kind, sources):
            fill_slots(
                self._words(source), slots, contexts, self._keys[source.number], np.uint64(salt & 2**64 - 1)
            )

    def zero_bytes(self, group_kind: str, slots: IntArray, sources: Sequence[int] | None = None) -> None:
        for source in self._named(group_kind, sources):
            self._words(source)[slots] = 0

    def flip_byte(
        self, group_kind: str, slots: IntArray, byte: int, xor: int, sources: Sequence[int] | None = None
    ) -> None:
        for source in self._named(group_kind, sources):
            if byte < source.bytes_per_slot:
                self._bytes(source)[slots, byte] ^= np.uint8(xor)

    def copy_bytes(
        self, group_kind: str, to_slots: IntArray, from_slots: IntArray, sources: Sequence[int] | None = None
    ) -> None:
        for source in self._named(group_kind, sources):
            words = self._words(source)
            words[to_slots] = words[from_slots].copy()

    def flip_stamp(self, group_kind: str, slot: int, word: int, xor: int, phases: Iterable[str]) -> None:
        for phase in phases:
            for half in self.layout.halves:
                stamps = self.stamps[phase, half, group_kind].view(np.uint64)
                stamps[slot, word] ^= np.uint64(xor & 2**64 - 1)

    def save(self, group_kind: str, slots: IntArray) -> HostCopy:
        return HostCopy(
            group=group_kind,
            kv={s.number: self._bytes(s)[slots] for s in self.layout.sources_of(group_kind)},
            stamps={
                (phase, half): self.stamps[phase, half, group_kind][slots]
                for phase in (HEAD, TAIL)
                for half in self.layout.halves
            },
        )

    def load(
        self, group_kind: str, slots: IntArray, copy: HostCopy, *, sources: Sequence[int] | None, stamps: bool
    ) -> None:
        for source in self._named(group_kind, sources):
            if source.number in copy.kv:
                self._bytes(source)[slots] = copy.kv[source.number][: slots.size]
        if stamps:
            for (phase, half), words in copy.stamps.items():
                self.stamps[phase, half, group_kind][slots] = words[: slots.size]

    def deliver(
        self,
        group_kind: str,
        slots: IntArray,
        tokens: IntArray,
        positions: IntArray,
        chains: WordArray,
        *,
        sources: Sequence[int] | None,
        stamps: bool,
    ) -> None:
        rows = np.zeros((slots.size, STAMP_WORDS), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = tokens, positions, chains.view(np.int64)
        contexts = stamp_contexts(rows, np.arange(slots.size), self.layout.is_affine)
        if stamps:
            for half in self.layout.halves:
                self.stamps[HEAD, half, group_kind][slots] = rows
                sent = rows.copy()
                sent[:, WORD_KV_HASH] = self._hash_of_contexts(group_kind, half, contexts)
                self.stamps[TAIL, half, group_kind][slots] = sent
        self.write_bytes(group_kind, slots, contexts, salt=0, sources=sources)

    def read_stamp(self, group_kind: str, slot: int, phase: str = TAIL) -> IntArray:
        return self.stamps[phase, "k", group_kind][slot].copy()

    def _source_memory(self, source: SourceLayout, num_slots: int) -> np.ndarray:
        page_size = self.layout.page_size
        pages = -(-num_slots // page_size)
        return aligned_zeros((pages, page_size * source.bytes_per_slot), "uint8")

    def _bytes(self, source: SourceLayout) -> np.ndarray:
        return self._kv[source.number].reshape(-1, source.bytes_per_slot)

    def _words(self, source: SourceLayout) -> np.ndarray:
        return self._kv[source.number].view(np.uint64).reshape(-1, source.bytes_per_slot // 8)

    def _hashed_sources(self, group_kind: str, half: str) -> list[KvSource]:
        return [
            KvSource(self._kv[s.number], self.layout.page_size, s.bytes_per_slot, s.hashed_bytes)
            for s in self.layout.sources_of(group_kind, half)
            if s.hashed_bytes
        ]

    def _hash_of_contexts(self, group_kind: str, half: str, contexts: WordArray) -> IntArray:
        """Byte hash of slots that a forward would have filled for these contexts."""
        count = contexts.size
        sources = []
        for source in self.layout.sources_of(group_kind, half):
            if source.hashed_bytes and count:
                memory = aligned_zeros((count, source.bytes_per_slot), "uint8")
                words = memory.view(np.uint64).reshape(count, -1)
                fill_slots(words, np.arange(count), contexts, self._keys[source.number], np.uint64(0))
                sources.append(KvSource(memory, 1, source.bytes_per_slot, source.hashed_bytes))
        if not sources:
            return np.zeros(count, np.int64)
        return hash_slots(source_table(sources, HashMode.ALL), count).view(np.int64)

    def _named(self, group_kind: str, numbers: Sequence[int] | None) -> list[SourceLayout]:
        return [s for s in self.layout.sources_of(group_kind) if numbers is None or s.number in numbers]
