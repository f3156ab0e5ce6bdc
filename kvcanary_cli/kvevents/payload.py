"""The payload of one message of a publisher, and the line that a recording keeps of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kvcanary_cli.kvevents.decode import FIELDS, EventDecoder
from kvcanary_cli.kvevents.events import Batch
from kvcanary_cli.trace.files import LineError

_BYTE = re.compile(r"\(byte (\d+)\)")
SHOWN_BYTES = 64
"""Bytes of a payload that can't be decoded which a recording keeps."""


def unpack(payload: bytes) -> Any:
    """The plain value of a payload; LineError that names the offset where it is no msgpack."""
    try:
        return msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        found = _BYTE.search(str(error))
        at = int(found[1]) if found else len(payload)
        reason = "is cut off" if "truncated" in str(error) else "is no msgpack"
        raise LineError(f"the payload of {len(payload):,} bytes {reason}, at byte {at}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise LineError(
            f"the payload of {len(payload):,} bytes is no msgpack ({type(error).__name__})"
        ) from None


def decode_payload(payload: bytes, decoder: EventDecoder) -> tuple[Batch, dict[str, Any]]:
    """The batch of a payload, and what a line keeps of it: `ts`, `rank` and the events as maps."""
    value = unpack(payload)
    batch = decoder.batch(value)
    events = value[1] if isinstance(value, list) else value["events"]
    return batch, {"ts": batch.ts, "rank": batch.source.rank, "events": [_as_map(event) for event in events]}


def _as_map(event: Any) -> dict[str, Any]:
    """An event that was decoded, as a map with hashes as integers or hex."""
    if isinstance(event, dict):
        found = dict(event)
    else:
        names = FIELDS[event[0]]
        found = {"type": event[0], **dict(zip(names, event[1:], strict=False))}
        if len(event) - 1 > len(names):
            found["extra_items"] = len(event) - 1 - len(names)
    if "block_hashes" in found:
        found["block_hashes"] = [_plain(item) for item in found["block_hashes"]]
    if found.get("parent_block_hash") is not None:
        found["parent_block_hash"] = _plain(found["parent_block_hash"])
    return found


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
