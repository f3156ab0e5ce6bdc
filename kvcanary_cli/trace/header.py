"""The first event of a trace: what the pool, its groups and its byte sources look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

FORMAT = "kvcanary-trace"
VERSION = 1

# page tables are int32, in SGLang and here, so every index and size of a pool stays below 2^31
MAX_INDEX = (1 << 31) - 1
Size = Annotated[int, Meta(ge=1, le=MAX_INDEX)]
NonNegative = Annotated[int, Meta(ge=0, le=MAX_INDEX)]
Text = Annotated[str, Meta(min_length=1)]
GroupKind = Literal["full", "swa"]


class Pool(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sizes of the KV pool and of the page table.

    Attributes:
        slots: rows of the full pool's buffers; valid slots are 0 to slots - 1, page 0 is padding.
        page_size: slots a page.
        rows: page-table rows, the padding row 0 included.
        row_width: page-table columns, one a position.
    """

    slots: Size
    page_size: Size = 1
    rows: Size
    row_width: Size


class Group(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One pool of slots: `full`, or `swa` for the layers with a sliding window.

    Attributes:
        kind: which one.
        window: positions that a window layer reads; only for `swa`.
        slots: slots of the window pool; None: as many as the full pool has.
    """

    kind: GroupKind
    window: NonNegative = 0
    slots: Size | None = None


class Source(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One KV byte source.

    Attributes:
        name: how events name it.
        bytes_per_slot: bytes a slot has, a multiple of 16.
        hashed_bytes: leading bytes that are hashed, a multiple of 16; 0: not hashed, reported as not covered.
        half: `k` or `v`; a `v` source switches the V launches on.
        group: whose slots it has.
        dtype, item_bytes, scale: how the bytes are meant, to compare with a transfer; scale is a label.
    """

    name: Text
    bytes_per_slot: Size
    hashed_bytes: NonNegative
    half: Literal["k", "v"] = "k"
    group: GroupKind = "full"
    dtype: str | None = None
    item_bytes: Size | None = None
    scale: str | int | None = None


class Capacities(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The canary's launch capacities in the recorded server; None: not checked.

    Attributes:
        write_req_capacity: lanes a forward.
        write_entry_capacity: tokens written a forward.
        verify_capacity: verify entries a forward, for each group by itself.
    """

    write_req_capacity: Size | None = None
    write_entry_capacity: Size | None = None
    verify_capacity: Size | None = None


class Continues(Struct, kw_only=True, forbid_unknown_fields=True):
    """This file goes on where the part before it ended.

    Attributes:
        part: number of this part, from 1.
        of: name of the run, the same in all its parts.
    """

    part: Size
    of: Text


def _full_only() -> list[Group]:
    return [Group(kind="full")]


class Header(
    Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="ev", tag="header"
):
    """First event of a trace.

    Attributes:
        format, version: `kvcanary-trace`, 1.
        pool: sizes.
        groups: `full`, `swa` or both.
        sources: KV byte sources; their order is the source number. Empty: byte hashes are off.
        token_position_offset: 1 for draft pools whose slot at position p stores the KV of the token at p + 1.
        capacities: launch capacities; None: taken from the configuration, else unchecked.
        ring_capacity: rows of the violation log.
        records: lifecycle events the producer was able to see; None: all.
        state: `empty`, or `unknown` when the recorder was attached to a running engine.
        continues: which part of a split trace this is.
        producer: who wrote the trace; replay does not look at it.
    """

    format: str
    version: int
    pool: Pool
    groups: list[Group] = field(default_factory=_full_only)
    sources: list[Source] = []
    token_position_offset: NonNegative = 0
    capacities: Capacities | None = None
    ring_capacity: Size = 1024
    records: list[str] | None = None
    state: Literal["empty", "unknown"] = "empty"
    continues: Continues | None = None
    producer: dict[str, Any] | None = None
    t: float | None = None

    def group(self, kind: str) -> Group | None:
        """The group of that kind, or None."""
        return next((group for group in self.groups if group.kind == kind), None)

    def num_slots(self, kind: str) -> int:
        """Slots of a group: the pool's, unless the group has a number of its own."""
        group = self.group(kind)
        return group.slots if group is not None and group.slots is not None else self.pool.slots
