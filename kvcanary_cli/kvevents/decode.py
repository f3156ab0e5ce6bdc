"""One batch or event from plain values, as msgpack and JSON give them: all releases of vLLM and SGLang.

Old releases encode an event as an array with its name first, newer ones as a map with the name under `type`.
Arrays may be shorter than the newest release's, and longer: new fields came at the end, they are counted.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvcanary_cli.errors import nearest
from kvcanary_cli.kvevents.events import GPU, HASH_MASK, Batch, Cleared, Event, Removed, Source, Stored
from kvcanary_cli.trace.files import LineError

STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
FIELDS: dict[str, tuple[str, ...]] = {
    STORED: (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
        *("medium", "lora_name", "extra_keys", "group_idx"),
    ),
    REMOVED: ("block_hashes", "medium", "group_idx"),
    CLEARED: (),
}
"""Fields behind the name of an event that is an array, in their order."""
_ABOUT = ("type", "event_type", "model_name", "hash_seed", "lora_path", "seq", "ts", "rank")
_NEWER = ("kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership")
_NEWER_STORED = (*_NEWER, "session_id", "lookahead_token_ids", "cache_salt")
_KNOWN = {name: {*keys, *_ABOUT, *_NEWER_STORED} for name, keys in FIELDS.items()}
_NOT_PLAIN = ("lora_id", "lora_name", "cache_salt")
_RANKS = ("rank", "data_parallel_rank", "attn_dp_rank", "dp_rank")
TIERS = {"DEVICE": GPU, "HOST_PINNED": "CPU_PINNED", "HOSTPINNED": "CPU_PINNED"}
"""What other writers call a medium."""


class EventDecoder:
    """Decodes the batches of one stream.

    Attributes:
        hash_type: `integers` or `bytes`, as the first hash was; another type later is refused.
        extra_items: items behind the last field that is known.
        unknown_keys: keys of maps that are not known.
        empty_stores: stores without a hash.
    """

    def __init__(self) -> None:
        self.hash_type: str | None = None
        self.extra_items = 0
        self.unknown_keys: Counter[str] = Counter()
        self.empty_stores = 0

    def batch(self, value: object) -> Batch:
        """A batch that is an array of two or three, or a map.

        Raises: LineError for anything else, and for an event that can't be used.
        """
        if isinstance(value, list):
            if len(value) not in (2, 3):
                raise LineError(f"a batch is an array of two or three items, this one has {len(value)}")
            ts, events, rank = value[0], value[1], value[2] if len(value) == 3 else None
        elif isinstance(value, dict):
            if "events" not in value:
                raise LineError("a batch that is a map needs `events`")
            ts, events = value.get("ts", value.get("timestamp")), value["events"]
            rank = next((value[key] for key in _RANKS if value.get(key) is not None), None)
        else:
            raise LineError(f"a batch is an array or a map, this is {_kind(value)}")
        if not isinstance(events, list):
            raise LineError(f"the events of a batch are an array, this is {_kind(events)}", path="$.events")
        decoded = []
        for number, event in enumerate(events):
            try:
                decoded.append(self.event(event))
            except LineError as error:
                error.path = f"$.events[{number}]{(error.path or '$')[1:]}"
                raise
        source = Source(rank=_integer(rank, "rank", optional=True))
        return Batch(events=decoded, source=source, ts=_seconds(ts))

    def event(self, value: object) -> Event:
        """An event that is an array with its name first, or a map with its name under `type`.

        Raises: LineError for a name that is not known, and for a field of another type.
        """
        name, fields = self._fields(value)
        if name == CLEARED:
            return Cleared()
        hashes = self._hashes(fields.get("block_hashes"))
        medium = _medium(fields.get("medium"))
        group = _integer(fields.get("group_idx"), "group_idx", optional=True)
        if name == REMOVED:
            return Removed(hashes=hashes, medium=medium, group=group)
        self.empty_stores += not hashes
        parent = fields.get("parent_block_hash")
        kind = fields.get("kv_cache_spec_kind")
        return Stored(
            hashes=hashes,
            parent=None if parent is None else self.hash(parent, "$.parent_block_hash"),
            tokens=_tokens(fields.get("token_ids")),
            block_size=_block_size(fields.get("block_size")),
            medium=medium,
            group=group,
            kind=kind if isinstance(kind, str) else None,
            is_plain=_is_plain(fields),
        )

    def hash(self, value: object, path: str) -> int:
        """A hash modulo 2^64: an integer, bytes, or the hex or base64 text of bytes."""
        if type(value) is int and -(1 << 63) <= value <= HASH_MASK:
            kind, found = "integers", value & HASH_MASK
        elif isinstance(value, bytes | str):
            data = _text_bytes(value, path) if isinstance(value, str) else value
            if not data:
                raise LineError("a hash of no bytes", path=path)
            kind, found = "bytes", int.from_bytes(data[-8:], "big")
        else:
            raise LineError(f"a hash is a 64-bit integer or bytes, this is {_kind(value)}", path=path)
        if kind != (self.hash_type or kind):
            raise LineError(f"hashes are {self.hash_type} so far, this one is {kind}", path=path)
        self.hash_type = kind
        return found

    def _hashes(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise LineError(f"block hashes are an array, this is {_kind(value)}", path="$.block_hashes")
        return tuple(self.hash(item, f"$.block_hashes[{number}]") for number, item in enumerate(value))

    def _fields(self, value: object) -> tuple[str, dict[str, Any]]:
        """Name and fields of an event."""
        if isinstance(value, list):
            name = _name(value[0] if value else None)
            known = FIELDS[name]
            self.extra_items += max(0, len(value) - 1 - len(known))
            return name, dict(zip(known, value[1:], strict=False))
        if isinstance(value, dict):
            name = _name(value.get("type", value.get("event_type")))
            if any(type(key) is not str for key in value):
                raise LineError("the keys of an event are text")
            unknown = value.keys() - _KNOWN[name]
            if unknown:
                # what a recorder kept of longer arrays
                extra = value.get("extra_items")
                self.extra_items += extra if type(extra) is int else 0
                self.unknown_keys.update(key for key in unknown if key != "extra_items")
            return name, value
        raise LineError(f"an event is an array or a map, this is {_kind(value)}")


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise LineError(f"an event begins with its name as text, this is {_kind(value)}")
    if value not in FIELDS:
        close = nearest(value, FIELDS)
        raise LineError(
            f"`{value[:60]}` is no event that is known, known are {', '.join(FIELDS)}",
            hint=f"did you mean {close}?" if close else None,
        )
    return value


def _kind(value: object) -> str:
    """What a value is, in the words of JSON."""
    names = {bool: "a truth value", int: "an integer", float: "a number", str: "text", bytes: "bytes"}
    names |= {list: "an array", dict: "a map", type(None): "nothing"}
    found = names.get(type(value), type(value).__name__)
    return f"{found} beyond 64 bits" if type(value) is int and value.bit_length() > 64 else found


def _integer(value: object, name: str, *, optional: bool = False) -> int | None:
    if value is None and optional:
        return None
    if type(value) is not int:
        raise LineError(f"`{name}` is an integer, this is {_kind(value)}")
    return value


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float):
        raise LineError(f"the time of a batch is a number, this is {_kind(value)}")
    return float(value)  # type: ignore[arg-type]


def _block_size(value: object) -> int | None:
    size = _integer(value, "block_size", optional=True)
    if size is not None and size < 0:
        raise LineError(f"`block_size` is {size}, less than nothing", path="$.block_size")
    return size


def _tokens(value: object) -> Sequence[int] | Sequence[Sequence[int]] | None:
    """Token ids, or pairs of them."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise LineError(f"token ids are an array, this is {_kind(value)}", path="$.token_ids")
    kinds = set(map(type, value))
    if kinds <= {int}:
        return value
    if kinds == {list} and all(len(pair) == 2 and set(map(type, pair)) == {int} for pair in value):
        return value
    raise LineError("token ids are integers, or pairs of them", path="$.token_ids")


def _medium(value: object) -> str:
    if value is None:
        return GPU
    if not isinstance(value, str):
        raise LineError(f"`medium` is text, this is {_kind(value)}", path="$.medium")
    return TIERS.get(value.upper(), value.upper())


def medium_of_tier(value: object) -> str:
    """The medium of Dynamo's `storage_tier`."""
    return _medium(value)


def _is_plain(fields: dict[str, Any]) -> bool:
    """Whether nothing but tokens went into the hashes, as far as the event says."""
    extra = fields.get("extra_keys")
    has_extra = bool(extra) and (not isinstance(extra, list) or any(item is not None for item in extra))
    return not has_extra and all(fields.get(key) is None for key in _NOT_PLAIN)


def _text_bytes(text: str, path: str) -> bytes:
    """The bytes that hex digits or base64 stand for."""
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    try:
        return bytes.fromhex(digits)
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LineError("a hash that is text is hex or base64", path=path) from None
