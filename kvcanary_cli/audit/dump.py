"""Read a dump of a server's canary (`docs/dump-format.md`). Twin for writing: `kvcanary_cli/trace/dump.py`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from kvcanary_cli.errors import InputError, MissingError, nearest
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.kernels.plans_cpu import aligned_zeros
from kvcanary_cli.runtime.open import free_host_memory
from kvcanary_cli.trace.dump_format import (
    ARRAYS,
    CANARY,
    GROUPS,
    KV,
    Facts,
    Shape,
    SourceFacts,
    check_row_bytes,
    check_shapes,
    read_facts,
)
from kvcanary_cli.trace.safetensors import NUMPY_TYPES, SafetensorsFile, open_safetensors, read_into

PHASES_IN_ORDER = ("tail", "head")
"""TAIL first: its stamps cover the bytes too, and a sweep reads them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    """A dump whose header was checked; data is read when it is asked for.

    Attributes:
        facts: the metadata, with what the command line says instead.
        notes: what the file holds that is not used, in words.
    """

    path: str
    file: SafetensorsFile
    facts: Facts
    notes: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self.file.tensors

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that have stamps or KV bytes."""
        found = {CANARY[name][2] for name in self.file.tensors if name in CANARY}
        found |= {source.group for source in self.facts.sources}
        return tuple(group for group in GROUPS if group in found)

    def buffers(self, group: str) -> list[str]:
        """Names of a group's stamp buffers, K before V and TAIL before HEAD."""
        names = [f"canary.{phase}_{half}_{group}" for half in "kv" for phase in PHASES_IN_ORDER]
        return [name for name in names if self.has(name)]

    def num_slots(self, group: str) -> int:
        """Slots of a group; 0 if nothing says."""
        for name in self.buffers(group):
            return self.file.tensors[name].shape[0]
        for source in self.facts.sources:
            if source.group == group and self.has(KV + source.name):
                return self.file.tensors[KV + source.name].shape[0] * source.page_size
        return 0

    @property
    def page_size(self) -> int:
        """Slots a page; 1 if the metadata doesn't say."""
        return self.facts.page_size or 1

    def ints(self, name: str) -> np.ndarray | None:
        """An array of integers: int64 in one dimension, in two as they are; None if it is not there."""
        if not self.has(name):
            return None
        found = self._load(name)
        return found if found.ndim == 2 else found.astype(np.int64)

    def stamps(self, name: str) -> np.ndarray:
        """[slots, >= 4] int64."""
        info = self.file.tensors[name]
        return self._bytes(name).view(np.int64).reshape(info.shape[0], -1)

    def source(self, facts: SourceFacts) -> KvSource:
        """The bytes of one source, which the dump has to hold."""
        info = self.file.tensors[KV + facts.name]
        rows = self._bytes(info.name).reshape(info.shape[0], -1)
        return KvSource(rows, facts.page_size, facts.num_bytes_per_token, facts.read_bytes)

    @property
    def hash_mode(self) -> HashMode | None:
        """What of the sources the stamps cover; None if nothing says."""
        if self.facts.hash_mode is not None:
            return HashMode[self.facts.hash_mode.upper()]
        return HashMode.ALL if self.facts.sources else None

    def _load(self, name: str) -> np.ndarray:
        info = self.file.tensors[name]
        return self._bytes(name).view(NUMPY_TYPES[info.dtype]).reshape(info.shape)

    def _bytes(self, name: str) -> np.ndarray:
        """A copy of a tensor's bytes, so that a file that changes meanwhile is an error and no crash."""
        info = self.file.tensors[name]
        memory = aligned_zeros((info.num_bytes,), "uint8")
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            read_into(descriptor, info.start, memory, where=self.path)
        finally:
            os.close(descriptor)
        return memory


def open_dump(path: str, *, page_size: int | None = None, window_size: int | None = None) -> Dump:
    """Check a dump's tensors and metadata against the format and each other, without reading their data.

    Args:
        page_size, window_size: in place of what the metadata says.

    Raises:
        InputError: the file is no dump, or contradicts itself.
        MissingError: it does not fit into memory.
    """
    file = open_safetensors(path)
    facts = read_facts(file.metadata, path)
    if page_size is not None or window_size is not None:
        facts = _replaced(facts, page_size, window_size)
    shapes = {name: Shape(info.dtype, info.shape) for name, info in file.tensors.items()}
    check_shapes(shapes, facts, path)
    for source in facts.sources:
        info = file.tensors.get(KV + source.name)
        if info is not None:
            check_row_bytes(source, info.num_bytes // info.shape[0], path)
    dump = Dump(path=path, file=file, facts=facts, notes=tuple(_notes(file, facts)))
    if not dump.groups and not dump.has("req_to_token"):
        raise InputError(
            "holds neither stamps nor a page table, there is nothing to audit",
            where=path,
            hint=f"it has {_some(list(file.tensors))}; docs/dump-format.md lists what is read",
        )
    _require_memory(dump)
    return dump


def _replaced(facts: Facts, page_size: int | None, window_size: int | None) -> Facts:
    return Facts(
        page_size=page_size if page_size is not None else facts.page_size,
        hash_mode=facts.hash_mode,
        window_size=window_size if window_size is not None else facts.window_size,
        token_offset=facts.token_offset,
        chain=facts.chain,
        sources=facts.sources,
        rids=facts.rids,
        about=facts.about,
        unknown=facts.unknown,
    )


def _notes(file: SafetensorsFile, facts: Facts) -> list[str]:
    """What is in the file and is not looked at."""
    described = {KV + source.name for source in facts.sources}
    known = [*CANARY, *ARRAYS, *described]
    notes = []
    for name in file.tensors:
        if name in known:
            continue
        if name.startswith(KV):
            notes.append(f"tensor {name} is not used: `sources` of the metadata does not describe it")
            continue
        close = nearest(name, [other for other in known if other not in file.tensors])
        notes.append(f"tensor {name} is not known and not used" + (f", was {close} meant?" if close else ""))
    notes += [
        f"source {source.name} has no tensor {KV}{source.name}"
        for source in facts.sources
        if KV + source.name not in file.tensors
    ]
    for key in facts.unknown:
        close = nearest(key, ("page_size", "hash_mode", "window_size", "token_offset", "sources", "rids"))
        notes.append(f"metadata {key} is not known and not used" + (f", was {close} meant?" if close else ""))
    return notes


def _require_memory(dump: Dump) -> None:
    """Refuse a dump that does not fit, with both numbers."""
    file = dump.file
    # beside the file itself a copy of the largest buffer, and the index of its chains
    need = file.num_bytes + 2 * max(
        (i.num_bytes for i in file.tensors.values() if i.name in CANARY), default=0
    )
    free = free_host_memory()
    if free is not None and need > free:
        raise MissingError(
            f"this audit takes {need / 2**30:,.2f} GiB of host memory, {free / 2**30:,.2f} GiB are free",
            hint="dump only the bytes of each slot that are hashed (`read_bytes`), or use a larger machine",
        )


def _some(names: list[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "no tensors") + more
