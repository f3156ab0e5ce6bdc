"""Read safetensors files: named tensors as plain bytes, checked before any of them is touched.

Layout: 8 bytes header length (little endian), a JSON header, the data. Every byte of the data belongs to exactly
one tensor. Reading is lazy: `open_safetensors` looks at the header alone. Types that NumPy doesn't have (BF16, F8_*)
are read as bytes. Twin for writing: `safetensors_writer.py`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec
import numpy as np

from kvcanary_cli.errors import InputError, nearest
from kvcanary_cli.trace.files import GZIP_MAGIC, LFS_START, PICKLE_STARTS, ZIP_STARTS, ZSTD_MAGIC

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""What the format's own readers accept."""
METADATA = "__metadata__"

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Every element type of the format, and its size in bits."""

NUMPY_TYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "C64": "<c8",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}
"""The types that NumPy has too."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor as the header describes it."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """One tensor of a file: `start` and `num_bytes` say where its bytes are, counted from the file's beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SafetensorsFile:
    """A file whose header was checked.

    Args:
        path: as it was given.
        num_bytes: size of the file.
        tensors: by name, in the order of their bytes.
        metadata: the text map of the header, empty if there is none.
    """

    path: str
    num_bytes: int
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str] = field(default_factory=dict)

    def bytes_of(self, name: str) -> np.ndarray:
        """[num_bytes] uint8, mapped from the file: read when it is used, and not writable.

        A file that shrinks afterwards ends the process on access; `read_into` gives an error for it.
        """
        info = self._info(name)
        if info.num_bytes == 0:
            return np.empty(0, np.uint8)
        try:
            return np.memmap(self.path, np.uint8, "r", offset=info.start, shape=(info.num_bytes,))
        except (OSError, ValueError) as error:
            raise InputError(f"can't be mapped ({error})", where=self.path) from None

    def array_of(self, name: str) -> np.ndarray:
        """The tensor with its shape, mapped from the file.

        Raises: InputError for a type that NumPy doesn't have; `bytes_of` gives the bytes.
        """
        info = self._info(name)
        if info.dtype not in NUMPY_TYPES:
            known = ", ".join(NUMPY_TYPES)
            raise InputError(f"tensor {name!r} is {info.dtype}, numbers are read of {known}", where=self.path)
        return self.bytes_of(name).view(NUMPY_TYPES[info.dtype]).reshape(info.shape)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            close = nearest(name, self.tensors)
            raise InputError(
                f"there is no tensor {name!r} among {len(self.tensors):,}",
                where=self.path,
                hint=f"did you mean {close}?" if close else None,
            )
        return self.tensors[name]


def read_into(descriptor: int, start: int, out: np.ndarray, *, where: str) -> None:
    """Fill `out` [n] uint8 from an open file. InputError when the file ends before, because it shrank."""
    view, done = memoryview(out.data), 0
    while done < len(view):
        try:
            num_read = os.preadv(descriptor, [view[done:]], start + done)
        except OSError as error:
            raise InputError(f"can't be read ({error.strerror or error})", where=where) from None
        if num_read == 0:
            raise InputError(
                f"the file ends at byte {start + done:,}, its header promises byte {start + len(view):,}: "
                "it shrank while it was read",
                where=where,
            )
        done += num_read


def open_safetensors(path: str) -> SafetensorsFile:
    """Check a file's header against its size, without reading its data.

    Raises:
        InputError: the file can't be opened, is something else, or its header contradicts itself or the file.
    """
    try:
        with open(path, "rb") as file:
            num_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            text = _read_header(path, file, num_bytes)
    except FileNotFoundError:
        hint = (
            "a dump is read at any place, so it has to be a file, not standard input" if path == "-" else None
        )
        raise InputError("no such file", where=path, hint=hint) from None
    except IsADirectoryError:
        raise InputError("is a directory, a file is needed", where=path) from None
    except PermissionError:
        raise InputError("no permission to read", where=path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"can't be opened ({error})", where=repr(path)[1:-1]) from None
    header = _parse(path, text)
    metadata = _metadata(path, header.pop(METADATA, {}))
    begin = LENGTH_BYTES + len(text)
    found = [_tensor(path, name, value, begin) for name, value in header.items()]
    found.sort(key=lambda tensor: (tensor.start, tensor.num_bytes))
    _check_places(path, found, begin, num_bytes)
    return SafetensorsFile(
        path=path, num_bytes=num_bytes, tensors={tensor.name: tensor for tensor in found}, metadata=metadata
    )


def _read_header(path: str, file: BinaryIO, num_bytes: int) -> bytes:
    head = file.read(64)
    _refuse_others(path, head)
    if num_bytes < LENGTH_BYTES:
        raise InputError(
            f"has {num_bytes} bytes, the length of a safetensors header alone takes {LENGTH_BYTES}",
            where=path,
        )
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    room = num_bytes - LENGTH_BYTES
    if length > MAX_HEADER_BYTES:
        raise InputError(
            f"is not safetensors: its first 8 bytes say that the header has {length:,} bytes, "
            f"at most {MAX_HEADER_BYTES:,} are read",
            where=path,
        )
    if length > room:
        raise InputError(
            f"the header has {length:,} bytes, the file ends after {room:,} of them: it is truncated",
            where=path,
            hint="copy the file again",
        )
    file.seek(LENGTH_BYTES)
    return file.read(length)


def _refuse_others(path: str, head: bytes) -> None:
    """Raise for files that are known to be something else, by their first bytes."""
    if not head:
        raise InputError("no tensors (the file is empty)", where=path)
    if head.startswith(LFS_START):
        raise InputError(
            "is a Git LFS pointer, not the data", where=path, hint="`git lfs pull` fetches the data"
        )
    if head.startswith(PICKLE_STARTS):
        raise InputError(
            "is a pickle; loading it would run code, so it is refused",
            where=path,
            hint="write the dump with safetensors.torch.save_file",
        )
    if head.startswith(ZIP_STARTS):
        raise InputError(
            "is a zip archive (as of torch.save or npz); loading one can run code, so it is refused",
            where=path,
            hint="write the dump with safetensors.torch.save_file",
        )
    if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        raise InputError("is compressed, tensors are read in place", where=path, hint="unpack it first")


def _parse(path: str, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {LENGTH_BYTES + error.start} of the header is not UTF-8", where=path
        ) from None
    except _RepeatedKey as error:
        raise InputError(f"the header has the key {error.args[0]!r} twice", where=path) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"the header is not JSON ({error})", where=path) from None
    if not isinstance(header, dict):
        raise InputError("the header is not a JSON object", where=path)
    return header


class _RepeatedKey(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _RepeatedKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return found


def _metadata(path: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InputError(
            "is not a map of texts, which is all that it may be", where=path, path=f"$.{METADATA}"
        )
    return value


def _tensor(path: str, name: str, value: Any, begin: int) -> TensorInfo:
    """A header entry, checked by itself; `begin` is where the data starts."""
    place = f"$.{name}"
    try:
        entry = msgspec.convert(value, _Entry)
    except msgspec.ValidationError as error:
        raise InputError(str(error), where=path, path=place) from None
    if entry.dtype not in DTYPE_BITS:
        close = nearest(entry.dtype, DTYPE_BITS)
        raise InputError(
            f"the type {entry.dtype!r} is not known, {len(DTYPE_BITS)} are: {', '.join(DTYPE_BITS)}",
            where=path,
            path=f"{place}.dtype",
            hint=f"did you mean {close}?" if close else None,
        )
    if any(size < 0 for size in entry.shape):
        raise InputError(f"a size is negative in {entry.shape}", where=path, path=f"{place}.shape")
    first, last = entry.data_offsets
    if first < 0 or last < first:
        raise InputError(f"[{first}, {last}] is no range of bytes", where=path, path=f"{place}.data_offsets")
    bits = math.prod(entry.shape) * DTYPE_BITS[entry.dtype]
    if bits != 8 * (last - first):
        need = f"{bits // 8:,} bytes" if bits % 8 == 0 else f"{bits:,} bits, no whole number of bytes"
        raise InputError(
            f"{entry.dtype} of shape {entry.shape} takes {need}, its offsets hold {last - first:,} bytes",
            where=path,
            path=place,
        )
    return TensorInfo(
        name=name, dtype=entry.dtype, shape=tuple(entry.shape), start=begin + first, num_bytes=last - first
    )


def _check_places(path: str, found: list[TensorInfo], begin: int, num_bytes: int) -> None:
    """Raise unless the tensors, ordered by their place, fill the data of the file without gap or overlap."""
    end = begin
    for tensor, before in zip(found, [None, *found], strict=False):
        if tensor.start < end and before is not None:
            raise InputError(
                f"overlaps {before.name!r} by {end - tensor.start:,} bytes",
                where=path,
                path=f"$.{tensor.name}",
            )
        if tensor.start > end:
            raise InputError(
                f"{tensor.start - end:,} bytes before it belong to no tensor",
                where=path,
                path=f"$.{tensor.name}",
            )
        end = tensor.start + tensor.num_bytes
        if end > num_bytes:
            raise InputError(
                f"ends at byte {end:,}, the file has {num_bytes:,}: it is truncated",
                where=path,
                path=f"$.{tensor.name}",
                hint="copy the file again",
            )
    if end < num_bytes:
        raise InputError(f"{num_bytes - end:,} bytes at the end belong to no tensor", where=path)
