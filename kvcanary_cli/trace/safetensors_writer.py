"""Write safetensors files. Twin for reading: `safetensors.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.drafts import Draft
from kvcanary_cli.trace.safetensors import DTYPE_BITS, LENGTH_BYTES, METADATA, NUMPY_TYPES

ALIGNMENT = 64
"""Data begins at a multiple of it, so that arrays mapped from a file are aligned for every type."""

_NAMES = {np.dtype(code): dtype for dtype, code in NUMPY_TYPES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RawTensor:
    """Bytes to write under a type that NumPy may not have, such as BF16.

    Args:
        data: written byte by byte in C order, whatever its own type is.
    """

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


def write_safetensors(
    path: str | Path, tensors: Mapping[str, np.ndarray | RawTensor], metadata: Mapping[str, str] | None = None
) -> int:
    """Write a file under another name and move it into place, so that no reader meets half of one.

    What can't be replaced, such as a pipe or a device, is written in place.

    Args:
        tensors: arrays of the types NumPy shares with the format, or `RawTensor`; kept in their order.
        metadata: texts for the header.

    Returns: bytes written.
    Raises: ValueError for a type or size that does not fit; InputError where the file can't be written.
    """
    raw = {name: _raw(name, value) for name, value in tensors.items()}
    head = _header(raw, dict(metadata or {}))
    try:
        draft = Draft(str(path))
        try:
            draft.file.write(head)
            for tensor in raw.values():
                draft.file.write(tensor.data.data)
            draft.keep()
        except BaseException:
            draft.drop()
            raise
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", where=str(path)) from None
    return len(head) + sum(tensor.data.nbytes for tensor in raw.values())


def _raw(name: str, value: np.ndarray | RawTensor) -> RawTensor:
    """The bytes of one tensor, [n] uint8, under its type in the format."""
    if isinstance(value, RawTensor):
        dtype, shape, data = value.dtype, tuple(value.shape), value.data
        if dtype not in DTYPE_BITS:
            raise ValueError(f"tensor {name!r}: the type {dtype!r} is not one of the format")
    else:
        little = value.dtype.newbyteorder("<")
        if little not in _NAMES:
            raise ValueError(f"tensor {name!r}: the format has no type for {value.dtype}")
        dtype, shape, data = _NAMES[little], value.shape, value.astype(little, copy=False)
    need = math.prod(shape) * DTYPE_BITS[dtype]
    if 8 * data.nbytes != need:
        raise ValueError(f"tensor {name!r}: {data.nbytes} bytes for a shape that takes {need} bits")
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return RawTensor(dtype=dtype, shape=shape, data=flat)


def _header(raw: Mapping[str, RawTensor], metadata: dict[str, str]) -> bytes:
    if METADATA in raw:
        raise ValueError(f"a tensor can't be called {METADATA}")
    entries: dict[str, Any] = {METADATA: metadata} if metadata else {}
    ends = [0]
    for name, tensor in raw.items():
        ends.append(ends[-1] + tensor.data.nbytes)
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape)}
    for name, offsets in zip(raw, pairwise(ends), strict=True):
        entries[name]["data_offsets"] = list(offsets)
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + LENGTH_BYTES) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
