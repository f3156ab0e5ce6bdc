"""Stamps and KV bytes of a run in torch memory, and what happens to them outside of forwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from kvcanary_cli.kernels.consts import STAMP_WORDS, WORD_KV_HASH, HashMode, LaunchTag
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.plans import WritePlan
from kvcanary_cli.kernels.sources import KvSource
from kvcanary_cli.kernels.write import launch_write
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.bytes_cpu import word_keys
from kvcanary_cli.runtime.bytes_gpu import launch_fill_slots, launch_stamp_contexts
from kvcanary_cli.runtime.calls import HostCopy, IntArray, WordArray
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.layout import HEAD, TAIL, Layout, SourceLayout
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.runtime.staging import Staging, last_of_each

_MASK = np.uint64(2**64 - 1)


class DeviceMemory(Runtime):
    """The half of `GpuRuntime` that holds memory; forwards are in `gpu.py`.

    Args:
        device: "cuda:N", or "cpu" with Triton's interpreter.
    """

    def __init__(
        self,
        layout: Layout,
        table: PageTable,
        swa_map: IntArray,
        expected: ExpectedTokens,
        device: torch.device,
    ) -> None:
        super().__init__(layout, table, swa_map, expected)
        self.device = device
        self._stamps = {
            (phase, half, group.kind): self._zeros(group.num_slots, STAMP_WORDS)
            for phase in (HEAD, TAIL)
            for half in layout.halves
            for group in layout.groups
        }
        self._kv = {s.number: self._source_memory(s) for s in layout.sources}
        self._keys = {s.number: self._word_keys(s) for s in layout.sources}
        self._hashed = {
            (half, group.kind): self._hashed_sources(group.kind, half)
            for half in layout.halves
            for group in layout.groups
        }
        # a forward's arrays stay where they were sent until it ends, what comes between has its own buffer
        self._events = Staging(device)

    # ---- bytes

    def write_bytes(
        self,
        group_kind: str,
        slots: IntArray,
        contexts: WordArray,
        *,
        salt: int,
        sources: Sequence[int] | None = None,
    ) -> None:
        kept = last_of_each(slots, self.layout.group(group_kind).num_slots)
        salted = contexts[kept] ^ np.uint64(salt & int(_MASK))
        sent = self._events.send({"slots": slots[kept], "contexts": salted.view(np.int64)})
        self._fill(group_kind, sent["slots"], sent["contexts"], sources)

    def zero_bytes(self, group_kind: str, slots: IntArray, sources: Sequence[int] | None = None) -> None:
        places = self._places(group_kind, slots)
        for source in self._named(group_kind, sources):
            self._bytes(source)[places] = 0

    def flip_byte(
        self, group_kind: str, slots: IntArray, byte: int, xor: int, sources: Sequence[int] | None = None
    ) -> None:
        places = self._places(group_kind, slots)
        for source in self._named(group_kind, sources):
            if byte < source.bytes_per_slot:
                column = self._bytes(source)[:, byte]
                column[places] = column[places] ^ xor

    def copy_bytes(
        self, group_kind: str, to_slots: IntArray, from_slots: IntArray, sources: Sequence[int] | None = None
    ) -> None:
        kept = last_of_each(to_slots, self.layout.group(group_kind).num_slots)
        self._check_inside(group_kind, from_slots)
        sent = self._events.send({"to": to_slots[kept], "from": from_slots[kept]})
        for source in self._named(group_kind, sources):
            memory = self._words(source)
            memory[sent["to"]] = memory[sent["from"]]

    # ---- stamps

    def flip_stamp(self, group_kind: str, slot: int, word: int, xor: int, phases: Iterable[str]) -> None:
        self._check_inside(group_kind, np.array([slot], np.int64))
        kind = self.layout.group(group_kind).kind
        for phase in phases:
            for half in self.layout.halves:
                self._stamps[phase, half, kind][slot, word] ^= xor

    def read_stamp(self, group_kind: str, slot: int, phase: str = TAIL) -> IntArray:
        kind = self.layout.group(group_kind).kind
        self._check_inside(kind, np.array([slot], np.int64))
        return np.array(self._stamps[phase, "k", kind][slot].cpu().numpy())

    # ---- bytes and stamps

    def save(self, group_kind: str, slots: IntArray) -> HostCopy:
        kind = self.layout.group(group_kind).kind
        places = self._places(kind, slots)
        return HostCopy(
            group=group_kind,
            kv={s.number: self._bytes(s)[places].cpu().numpy() for s in self.layout.sources_of(kind)},
            stamps={
                (phase, half): self._stamps[phase, half, kind][places].cpu().numpy()
                for phase in (HEAD, TAIL)
                for half in self.layout.halves
            },
        )

    def load(
        self, group_kind: str, slots: IntArray, copy: HostCopy, *, sources: Sequence[int] | None, stamps: bool
    ) -> None:
        kind = self.layout.group(group_kind).kind
        kept = last_of_each(slots, self.layout.group(kind).num_slots)
        places = self._places(kind, slots[kept])
        for source in self._named(kind, sources):
            if source.number in copy.kv:
                self._bytes(source)[places] = self._on_device(copy.kv[source.number][kept])
        if stamps:
            for (phase, half), rows in copy.stamps.items():
                self._stamps[phase, half, kind][places] = self._on_device(rows[kept])

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
        kind = self.layout.group(group_kind).kind
        kept = last_of_each(slots, self.layout.group(kind).num_slots)
        words = [tokens[kept], positions[kept], chains[kept].view(np.int64), np.zeros(kept.size, np.int64)]
        rows = self._on_device(np.stack(words, axis=1))
        sent = self._events.send({"slots": slots[kept], "rows": np.arange(kept.size)})
        contexts = torch.empty_like(sent["rows"])
        self._stamp_contexts(rows, sent["rows"], contexts)
        if stamps:
            for half in self.layout.halves:
                self._stamps[HEAD, half, kind][sent["slots"]] = rows
                arrived = rows.clone()
                arrived[:, WORD_KV_HASH] = self._hash_of_contexts(kind, half, contexts, sent["rows"])
                self._stamps[TAIL, half, kind][sent["slots"]] = arrived
        self._fill(kind, sent["slots"], contexts, sources)

    # ---- inside

    def _stamp_contexts(self, stamps: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
        """Chain values after the stamps of slots, in the run's chain."""
        launch_stamp_contexts(stamps=stamps, slots=slots, out_contexts=out, is_affine=self.layout.is_affine)

    def _fill(
        self,
        group_kind: str,
        slots: torch.Tensor,
        contexts: torch.Tensor,
        sources: Sequence[int] | None = None,
    ) -> None:
        """Bytes for slots and contexts that are on the device; equal slots have equal contexts."""
        for source in self._named(group_kind, sources):
            launch_fill_slots(
                out_words=self._words(source), slots=slots, contexts=contexts, keys=self._keys[source.number]
            )

    def _hash_of_contexts(
        self, kind: str, half: str, contexts: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """[n] byte hashes of slots that a forward would have filled for these contexts, `places` 0 to n-1."""
        count = int(contexts.shape[0])
        sources = []
        for source in self.layout.sources_of(kind, half):
            if source.hashed_bytes and count:
                memory = self._zeros(count, source.hashed_bytes // 8)
                keys = self._keys[source.number][: source.hashed_bytes // 8]
                launch_fill_slots(out_words=memory, slots=places, contexts=contexts, keys=keys)
                covered = source.hashed_bytes
                sources.append(KvSource(memory.view(torch.uint8), 1, covered, covered))
        stamps = self._zeros(count, STAMP_WORDS)
        if sources:
            # stamping those slots, a lane each, hashes their bytes as a forward would
            plan = WritePlan.allocate(count, self.device)
            plan.write_offsets.copy_(torch.arange(count + 1))
            plan.write_seed_slot_indices.fill_(-1)
            plan.write_num_valid_reqs.fill_(count)
            launch_write(
                canary_buf=stamps,
                plan=plan,
                input_ids=places,
                positions=places,
                out_cache_loc=places,
                sources=sources,
                hash_mode=HashMode.ALL,
                launch_tag=LaunchTag.TAIL_K_FULL,
                log=ViolationLog.allocate(1, self.device),
                expected_inputs=None,
                chain_position_assert=False,
            )
        return stamps[:, WORD_KV_HASH]

    def _zeros(self, rows: int, words: int) -> torch.Tensor:
        return torch.zeros((rows, words), dtype=torch.int64, device=self.device)

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _source_memory(self, source: SourceLayout) -> torch.Tensor:
        page_size = self.layout.page_size
        pages = -(-self.layout.group(source.group).num_slots // page_size)
        shape = (pages, page_size * source.bytes_per_slot)
        return torch.zeros(shape, dtype=torch.uint8, device=self.device)

    def _word_keys(self, source: SourceLayout) -> torch.Tensor:
        return self._on_device(word_keys(source.number, source.bytes_per_slot // 8).view(np.int64))

    def _hashed_sources(self, kind: str, half: str) -> list[KvSource]:
        return [
            KvSource(self._kv[s.number], self.layout.page_size, s.bytes_per_slot, s.hashed_bytes)
            for s in self.layout.sources_of(kind, half)
            if s.hashed_bytes
        ]

    def _bytes(self, source: SourceLayout) -> torch.Tensor:
        return self._kv[source.number].view(-1, source.bytes_per_slot)

    def _words(self, source: SourceLayout) -> torch.Tensor:
        return self._kv[source.number].view(torch.int64).view(-1, source.bytes_per_slot // 8)

    def _named(self, group_kind: str, numbers: Sequence[int] | None) -> list[SourceLayout]:
        sources = self.layout.sources_of(self.layout.group(group_kind).kind)
        return [s for s in sources if numbers is None or s.number in numbers]

    def _places(self, group_kind: str, slots: IntArray) -> torch.Tensor:
        """Slots on the device, all of them known to be in the group's memory."""
        self._check_inside(group_kind, slots)
        return self._events.send({"slots": slots})["slots"]

    def _check_inside(self, group_kind: str, slots: IntArray) -> None:
        # an index outside of the memory would take the whole CUDA context down, so the host looks first
        num_slots = self.layout.group(group_kind).num_slots
        if slots.size and (slots.min() < 0 or slots.max() >= num_slots):
            found = f"{int(slots.min())} to {int(slots.max())}"
            raise IndexError(f"slots {found} are asked for, the memory has 0 to {num_slots - 1}")
