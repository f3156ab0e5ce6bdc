"""One struct for each event of trace format 1; `docs/trace-format.md` says what they mean together.

Slot lists are int64 arrays with runs expanded (`trace/slots.py`), other number lists are lists of int, an
absent key is None or its default. Units: slots, rows, columns and positions are indices, `t` is seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from kvcanary_cli.trace.header import (
    Capacities,
    Continues,
    Group,
    GroupKind,
    Header,
    NonNegative,
    Pool,
    Size,
    Source,
    Text,
)
from kvcanary_cli.trace.slots import INT64_MAX, INT64_MIN

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
ExpectedToken = Annotated[int, Meta(ge=-1, lt=1 << 31)]
Byte = Annotated[int, Meta(ge=1, le=255)]
HashText = Annotated[str, Meta(pattern=r"^0x[0-9a-fA-F]{1,16}$")]


class _Event(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, eq=False, tag_field="ev"):
    """What all events have: `t` in seconds, not decreasing."""

    t: float | None = None


class Bind(_Event, tag="bind", kw_only=True):
    """Request `rid` uses `row` from now on; entries the row held before are leftovers."""

    row: NonNegative
    rid: Text


class Unbind(_Event, tag="unbind", kw_only=True):
    """`row` has no request any more; its entries stay."""

    row: NonNegative


class Move(_Event, tag="move", kw_only=True):
    """The columns mapped since the bind of `rid` are copied to `row`, which becomes its row."""

    rid: Text
    row: NonNegative


class End(_Event, tag="end", kw_only=True):
    """`rid` ends, for the reason `why`; frees nothing. After `retract` it may bind again."""

    rid: Text
    why: Literal["done", "cancel", "retract"]


class Truth(_Event, tag="truth", kw_only=True):
    """The tokens `rid` really has from position `at` on; switches `verify_token` on there."""

    rid: Text
    at: NonNegative
    tokens: list[Token]


class Alloc(_Event, tag="alloc", kw_only=True):
    """The allocator hands free slots to holder `to`: a request, "cache", or "xfer:ID"."""

    to: Text
    slots: np.ndarray
    group: GroupKind = "full"


class Hold(_Event, tag="hold", kw_only=True):
    """`to` becomes one more holder of slots that are held already."""

    to: Text
    slots: np.ndarray


class Share(_Event, tag="share", kw_only=True):
    """A prefix hit: `rid` becomes a holder, and its row is mapped to the slots from column `at` on."""

    rid: Text
    at: NonNegative
    slots: np.ndarray


class Publish(_Event, tag="publish", kw_only=True):
    """The cache becomes a holder of the slots, at positions `at` and on.

    `tokens`: one a slot. `after`: the slot before the first one. `key`: further parts of the cache key.
    """

    rid: Text | None = None
    at: NonNegative
    slots: np.ndarray
    tokens: list[Token] | None = None
    after: NonNegative | None = None
    key: dict[str, Any] | None = None


class Free(_Event, tag="free", kw_only=True):
    """Holder `by` gives up the slots."""

    by: Text
    slots: np.ndarray
    group: GroupKind = "full"


class Evict(_Event, tag="evict", kw_only=True):
    """The cache gives up the slots."""

    slots: np.ndarray
    group: GroupKind = "full"


class Map(_Event, tag="map", kw_only=True):
    """The page table's `row` is written from column `at` on; 0 unmaps. `by`: None is the row's request."""

    row: NonNegative
    at: NonNegative
    slots: np.ndarray
    by: Text | None = None


class SwaMap(_Event, tag="swa_map", kw_only=True):
    """Entries of the full-to-window map: window slot `swa[i]` for full slot `full[i]`; 0 = evicted."""

    full: np.ndarray
    swa: np.ndarray


class Forward(_Event, tag="forward", kw_only=True):
    """One launch of the model. [num_lanes]: one a lane. [num_tokens]: flat, in lane order, sum(lens) of them.

    Attributes:
        mode: None: `extend` if any len > 1, else `decode`.
        rows: [num_lanes] page-table row; 0 is a padded lane, padded lanes come last.
        prefix: [num_lanes] tokens written before, which this forward reads.
        lens: [num_lanes] tokens written; None: 1 each.
        tokens: [num_tokens] input ids; None: the request's truth, else made from its name.
        positions: [num_tokens]; None: prefix, prefix + 1, …
        slots: [num_tokens] where each token is written, -1 skips it, any other number is what the engine
            did; None: the row's own entries.
        expect: [num_tokens] expected input ids, -1 = unknown; None: `write_token` is off.
        chain_positions: whether the chain-position assert is on.
        width: lanes of the captured graph; None: num_lanes.
        pad_writes: slots whose bytes (no stamps) the padded part of the kernel wrote.
        pad_lanes: the lane that caused each of `pad_writes`.
        accepted: [num_lanes] how many of the tokens written are kept; None: all.
        byte_salt: mixed into the bytes this forward writes.
    """

    mode: Literal["extend", "decode", "mixed", "verify", "draft", "idle"] | None = None
    rows: list[NonNegative]
    prefix: list[NonNegative]
    lens: list[NonNegative] | None = None
    tokens: list[Token] | None = None
    positions: list[Int64] | None = None
    slots: np.ndarray | None = None
    expect: list[ExpectedToken] | None = None
    chain_positions: bool = True
    width: NonNegative | None = None
    pad_writes: np.ndarray | None = None
    pad_lanes: list[NonNegative] | None = None
    accepted: list[NonNegative] | None = None
    byte_salt: Int64 = 0


class Gap(_Event, tag="gap", kw_only=True):
    """The recorder lost `forwards` forwards here; None: an unknown number."""

    forwards: NonNegative | None = None
    why: str | None = None


class Kv(_Event, tag="kv", kw_only=True, rename={"from_": "from"}):
    """Bytes replaced outside a forward, by a known writer `by`; without `by` it is damage.

    `flip` needs `byte` (offset in the slot's bytes) and `xor`; `copy` needs `from_`, one source slot a slot.
    `sources`: names; None: all of the group.
    """

    op: Literal["write", "flip", "zero", "copy"]
    slots: np.ndarray
    by: Text | None = None
    byte: NonNegative | None = None
    xor: Byte | None = None
    from_: np.ndarray | None = None
    sources: list[str] | None = None
    group: GroupKind = "full"


class Stamp(_Event, tag="stamp", kw_only=True):
    """A stamp field of `slot` is damaged; `buffer` None: both, for `kv_hash` the tail."""

    slot: NonNegative
    field: Literal["token", "position", "prev_hash", "kv_hash"]
    xor: Int64
    buffer: Literal["head", "tail"] | None = None
    group: GroupKind = "full"


class Offload(_Event, tag="offload", kw_only=True):
    """Bytes and stamps of the slots are copied to the host store under `key`.

    `page_size`, `dtype`, `item_bytes`, `scale` declare the other side's layout, here and in the next two.
    """

    key: Text
    slots: np.ndarray
    group: GroupKind = "full"
    page_size: Size | None = None
    dtype: str | None = None
    item_bytes: Size | None = None
    scale: str | int | None = None


class Reload(_Event, tag="reload", kw_only=True):
    """Copied back to these slots: only the first `count`, only `sources`; `stamps` False: bytes only."""

    key: Text
    slots: np.ndarray
    count: NonNegative | None = None
    sources: list[str] | None = None
    stamps: bool = True
    group: GroupKind = "full"
    page_size: Size | None = None
    dtype: str | None = None
    item_bytes: Size | None = None
    scale: str | int | None = None


class Xfer(_Event, tag="xfer", kw_only=True):
    """A remote delivery: `start` (addressed to `slots` of `rid`), `done` (the data lands) or `cancel`.

    With `done`: `tokens` one a slot, or at + one a slot when the chain before `at` is given too; `slots` None
    means those of the start; `count`, `sources` and `stamps` as in `Reload`.
    """

    id: Text
    op: Literal["start", "done", "cancel"]
    rid: Text | None = None
    slots: np.ndarray | None = None
    tokens: list[Token] | None = None
    at: NonNegative = 0
    count: NonNegative | None = None
    sources: list[str] | None = None
    stamps: bool = True
    group: GroupKind = "full"
    page_size: Size | None = None
    dtype: str | None = None
    item_bytes: Size | None = None
    scale: str | int | None = None


class Digest(_Event, tag="digest", kw_only=True):
    """Byte hashes of `source` that a recorder saw in the real pool, one "0x…" a slot."""

    source: Text
    slots: np.ndarray
    hash: list[HashText]
    group: GroupKind = "full"


class Sweep(_Event, tag="sweep", kw_only=True):
    """Check everything the prefix cache holds, now."""


class Note(Struct, kw_only=True, omit_defaults=True, eq=False, tag_field="ev", tag="note"):
    """A remark; readers skip it, whatever its keys are."""

    text: Any = None


Event = (
    Header
    | Bind
    | Unbind
    | Move
    | End
    | Truth
    | Alloc
    | Hold
    | Share
    | Publish
    | Free
    | Evict
    | Map
    | SwaMap
    | Forward
    | Gap
    | Kv
    | Stamp
    | Offload
    | Reload
    | Xfer
    | Digest
    | Sweep
    | Note
)
EVENT_TYPES: dict[str, type[Struct]] = {kind.__struct_config__.tag: kind for kind in Event.__args__}


def same_event(a: Struct, b: Struct) -> bool:
    """Whether two events say the same, slot lists compared element by element."""
    if type(a) is not type(b):
        return False
    return all(_same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)
    return a == b


__all__ = [
    "EVENT_TYPES", "Alloc", "Bind", "Capacities", "Continues", "Digest", "End", "Event", "Evict", "Forward",
    "Free", "Gap", "Group", "Header", "Hold", "Kv", "Map", "Move", "Note", "Offload", "Pool", "Publish",
    "Reload", "Share", "Source", "Stamp", "SwaMap", "Sweep", "Truth", "Unbind", "Xfer", "same_event",
]  # fmt: skip
