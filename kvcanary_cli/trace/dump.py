"""Write a dump of a server's canary, for `kvcanary audit`. Twin for reading: `kvcanary_cli/audit/dump.py`.

Made to be called inside a server: it imports neither torch nor numba, and takes NumPy arrays, torch tensors of any
device, and whatever else turns into a NumPy array.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.dump_format import (
    CANARY,
    FORMAT,
    KV,
    Facts,
    Shape,
    SourceFacts,
    check_row_bytes,
    check_shapes,
    read_facts,
)
from kvcanary_cli.trace.safetensors import NUMPY_TYPES
from kvcanary_cli.trace.safetensors_writer import write_safetensors

_TYPES = {np.dtype(code): dtype for dtype, code in NUMPY_TYPES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpSource:
    """KV bytes that stamps cover, in the order in which the server hashes them.

    Args:
        tensor: [slots or pages, ...] of any type. Only the first `num_bytes_per_token` bytes of each slot are looked
            at, so a copy of the bytes that are hashed is enough.
        page_size: slots a row.
        num_bytes_per_token: bytes from one slot of a row to the next.
        read_bytes: leading bytes of a slot that are hashed.
    """

    name: str
    tensor: Any
    num_bytes_per_token: int
    read_bytes: int
    half: str = "k"
    group: str = "full"
    page_size: int = 1

    def facts(self) -> SourceFacts:
        """What the metadata says of it."""
        return SourceFacts(
            name=self.name,
            num_bytes_per_token=self.num_bytes_per_token,
            read_bytes=self.read_bytes,
            half=self.half,
            group=self.group,
            page_size=self.page_size,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpCache:
    """What the prefix cache holds: slot, position and predecessor (-1 at the head) of each entry, [n] each."""

    slots: Any
    positions: Any
    predecessors: Any


def write_dump(
    path: str | Path,
    *,
    canary: Mapping[str, Any],
    req_to_token: Any = None,
    seq_lens: Any = None,
    sources: Sequence[DumpSource] = (),
    hash_mode: str | None = None,
    expected_tokens: Any = None,
    expected_lens: Any = None,
    full_to_swa: Any = None,
    window_size: int | None = None,
    token_offset: int = 0,
    page_size: int = 1,
    cache: DumpCache | None = None,
    rids: Mapping[int, str] | None = None,
    violations: Any = None,
    violation_count: Any = None,
    chain: str = "mixed",
    about: Mapping[str, Any] | None = None,
) -> int:
    """Write one dump; what is None is left out, and the audit says what could not be checked for it.

    Args:
        canary: stamp buffers by `head_k_full` and so on, [slots, >= 4] int64 or [slots, >= 32] uint8.
        req_to_token: [rows, width] integers, slot of each position of each row.
        seq_lens: [rows], positions of each row that were written; 0 where no request is.
        hash_mode: `none`, `partial` or `all`; which bytes of the sources stamps cover.
        expected_tokens, expected_lens: [rows, width] tokens that rows should hold, and how many of each are known.
        full_to_swa: slot of the window group by slot of the full group, 0 where it was given up.
        window_size: positions that the window group keeps.
        token_offset: 1 in the pool of a draft model that holds position p + 1 at p.
        rids: request of a row.
        violations, violation_count: the server's own log, [n, 8], and its counter.
        about: what else is worth knowing, such as step and reason; anything that JSON can hold.

    Returns: bytes written.
    Raises: InputError if something does not fit the format, or the file can't be written.
    """
    metadata = _metadata(page_size, token_offset, chain, sources, rids or {}, about or {})
    if hash_mode is not None:
        metadata["hash_mode"] = hash_mode
    if window_size is not None:
        metadata["window_size"] = str(window_size)
    given = {f"canary.{name}": tensor for name, tensor in canary.items()}
    if cache is not None:
        given |= {f"cache.{name}": getattr(cache, name) for name in ("slots", "positions", "predecessors")}
    # those of 8 bytes first, so that all lie aligned in the file
    given |= {"violations": violations, "seq_lens": seq_lens, "expected_lens": expected_lens}
    given |= {"full_to_swa": full_to_swa, "violation_count": violation_count}
    given |= {"req_to_token": req_to_token, "expected_tokens": expected_tokens}
    tensors = {name: as_array(value) for name, value in given.items() if value is not None}
    facts = read_facts(metadata, str(path))
    _check(tensors, facts, str(path))
    for source, described in zip(sources, facts.sources, strict=True):
        tensors[KV + source.name] = _rows(source, described, str(path))
    check_shapes(_shapes(tensors), facts, str(path))
    return write_safetensors(path, tensors, metadata)


def _metadata(
    page_size: int,
    token_offset: int,
    chain: str,
    sources: Sequence[DumpSource],
    rids: Mapping[int, str],
    about: Mapping[str, Any],
) -> dict[str, str]:
    return {
        "format": FORMAT,
        "page_size": str(page_size),
        "token_offset": str(token_offset),
        "chain": chain,
        "sources": json.dumps([_plain(source.facts()) for source in sources]),
        "rids": json.dumps({str(row): rid for row, rid in rids.items()}),
        "about": json.dumps(dict(about), default=str),
    }


def as_array(value: Any) -> np.ndarray:
    """A NumPy array of anything; a torch tensor is fetched from its device, BF16 and the like become bytes."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")):
            # torch is there, or there would be no tensor
            value = value.view(sys.modules["torch"].uint8)
    return np.ascontiguousarray(value)


def _check(tensors: Mapping[str, np.ndarray], facts: Facts, where: str) -> None:
    for name in tensors:
        if name.startswith("canary.") and name not in CANARY:
            known = ", ".join(key.removeprefix("canary.") for key in CANARY)
            raise InputError(
                f"{name.removeprefix('canary.')!r} is no buffer of a canary, known are {known}", where=where
            )
    check_shapes(_shapes(tensors), facts, where)


def _shapes(tensors: Mapping[str, np.ndarray]) -> dict[str, Shape]:
    return {
        name: Shape(_TYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def _rows(source: DumpSource, facts: SourceFacts, where: str) -> np.ndarray:
    """[rows, row_bytes] uint8."""
    tensor = as_array(source.tensor)
    if tensor.ndim < 2 or not tensor.size:
        raise InputError(
            f"source {source.name!r} has shape {list(tensor.shape)}, [slots or pages, ...] is expected",
            where=where,
        )
    rows = tensor.reshape(len(tensor), -1).view(np.uint8)
    check_row_bytes(facts, rows.shape[1], where)
    return rows


def _plain(facts: SourceFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in facts.__struct_fields__}
