"""The hashes of one pool, kept in memory or in a file of their own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.safetensors import SafetensorsFile
from kvcanary_cli.trace.safetensors_writer import write_safetensors

VERSION = "1"
"""Of the hash and of the file; hashes of another version can't be compared."""
SLOTS = "slots"
PART = "tensor/"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolHashes:
    """What a pool is compared by.

    Args:
        path: the file that the hashes came from.
        slots: [num_slots] int64, over all tensors in their order.
        parts: by tensor name, [num_slots] int64 each, the tensor hashed alone; empty if they were not asked for.
        row_bytes: by tensor name, bytes of a slot.
        page_size: slots a page.
    """

    path: str
    slots: np.ndarray
    parts: dict[str, np.ndarray]
    row_bytes: dict[str, int]
    page_size: int

    @property
    def digest(self) -> str:
        """Of the whole pool, 32 hex digits."""
        data = np.ascontiguousarray(self.slots, "<i8")
        return hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()


def save_hashes(path: str | Path, hashes: PoolHashes) -> int:
    """Write hashes as a safetensors file; returns its size."""
    tensors = {SLOTS: hashes.slots.view(np.uint64)}
    tensors |= {PART + name: values.view(np.uint64) for name, values in hashes.parts.items()}
    metadata = {
        "kvcanary.hashes": VERSION,
        "row_bytes": json.dumps(hashes.row_bytes),
        "page_size": str(hashes.page_size),
        "digest": hashes.digest,
    }
    return write_safetensors(path, tensors, metadata)


def is_hashes(file: SafetensorsFile) -> bool:
    """Whether a file holds saved hashes and no pool."""
    return "kvcanary.hashes" in file.metadata


def load_hashes(file: SafetensorsFile) -> PoolHashes:
    """Saved hashes.

    Raises: InputError for another version, and for a file whose parts don't fit each other or its digest.
    """
    version = file.metadata["kvcanary.hashes"]
    if version != VERSION:
        raise InputError(
            f"the hashes are of version {version}, this kvcanary compares version {VERSION}",
            where=file.path,
            hint="scrub the dump itself again",
        )
    try:
        row_bytes = json.loads(file.metadata["row_bytes"])
        page_size = int(file.metadata["page_size"])
        digest = file.metadata["digest"]
        if {SLOTS, *(PART + name for name in row_bytes)} != set(file.tensors):
            raise ValueError("other tensors than its header names")
        read = {name: np.array(file.array_of(name).view(np.int64)) for name in file.tensors}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the saved hashes are damaged ({error})", where=file.path) from None
    slots = read.pop(SLOTS)
    parts = {name.removeprefix(PART): values for name, values in read.items()}
    if any(values.shape != slots.shape for values in parts.values()):
        raise InputError("the saved hashes are damaged (tensors of several lengths)", where=file.path)
    hashes = PoolHashes(path=file.path, slots=slots, parts=parts, row_bytes=row_bytes, page_size=page_size)
    if hashes.digest != digest:
        raise InputError(
            f"the saved hashes are damaged: their digest is {hashes.digest}, {digest} was saved",
            where=file.path,
        )
    return hashes
