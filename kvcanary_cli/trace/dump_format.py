"""What a dump of a server's canary holds: names, types, shapes and metadata, and the checks of all of them.

The format is described in `docs/dump-format.md`. Nothing here imports more than NumPy and msgspec.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from kvcanary_cli.errors import InputError, nearest

FORMAT = "kvcanary-dump/1"
PHASES, HALVES, GROUPS = ("head", "tail"), ("k", "v"), ("full", "swa")
HASH_MODES = ("none", "partial", "all")
CHAINS = ("mixed", "affine")
STAMP_BYTES = 32
GRAIN = 16  # bytes; what kernels read at once
RING_WORDS = 8
MOST = 2**31 - 1  # of a number in the metadata
KV = "kv."

CANARY = {
    f"canary.{phase}_{half}_{group}": (phase, half, group)
    for group in GROUPS
    for half in HALVES
    for phase in PHASES
}
"""Names of stamp buffers: phase, half and group of the launches that write them."""

_INTS = ("I64", "I32")
ARRAYS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "req_to_token": (("I32", "I64"), 2, "[rows, width]"),
    "seq_lens": (_INTS, 1, "[rows]"),
    "expected_tokens": (("I32", "I64"), 2, "[rows, width]"),
    "expected_lens": (_INTS, 1, "[rows]"),
    "full_to_swa": (_INTS, 1, "[slots of the full group]"),
    "cache.slots": (_INTS, 1, "[entries]"),
    "cache.positions": (_INTS, 1, "[entries]"),
    "cache.predecessors": (_INTS, 1, "[entries]"),
    "violations": (("I64",), 2, "[rows of the log, 8]"),
    "violation_count": (_INTS, 1, "[1]"),
}
"""The other tensors apart from `kv.*`: types, number of dimensions, shape in words."""

KEYS = (
    "format",
    "page_size",
    "hash_mode",
    "window_size",
    "token_offset",
    "chain",
    "sources",
    "rids",
    "about",
)
"""Keys of the metadata; all are texts, the last three hold JSON."""


class SourceFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One KV source as the metadata describes it; the tensor is called `kv.<name>`."""

    name: str
    num_bytes_per_token: int
    read_bytes: int
    half: str = "k"
    group: str = "full"
    page_size: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The metadata of a dump; None is what it does not say.

    Attributes:
        sources: in the order in which the server hashes them.
        rids: request of a row.
        about: what the writer says of the moment, such as a step and a reason.
        unknown: keys that mean nothing here.
    """

    page_size: int | None = None
    hash_mode: str | None = None
    window_size: int | None = None
    token_offset: int = 0
    chain: str = "mixed"
    sources: tuple[SourceFacts, ...] = ()
    rids: dict[int, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor's type, as safetensors names it, and its shape."""

    dtype: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.sizes)}"


def read_facts(metadata: Mapping[str, str], where: str) -> Facts:
    """The metadata, checked by itself. InputError names the key, the value and what is expected."""
    if metadata.get("format") != FORMAT:
        found = metadata.get("format")
        said = "says no `format`" if found is None else f"says `format` {found!r}"
        raise InputError(
            f"the metadata {said}, {FORMAT!r} is expected",
            where=where,
            hint="docs/dump-format.md; `kvcanary scrub` reads dumps of KV bytes in any form",
        )
    return Facts(
        page_size=_number(metadata, "page_size", where, least=1),
        hash_mode=_choice(metadata, "hash_mode", HASH_MODES, where),
        window_size=_number(metadata, "window_size", where, least=0),
        token_offset=_number(metadata, "token_offset", where, least=0) or 0,
        chain=_choice(metadata, "chain", CHAINS, where) or "mixed",
        sources=_sources(metadata, where),
        rids=_rids(metadata, where),
        about=_object(metadata, "about", where),
        unknown=tuple(key for key in metadata if key not in KEYS and not key.startswith("x-")),
    )


def _number(metadata: Mapping[str, str], key: str, where: str, *, least: int) -> int | None:
    text = metadata.get(key)
    if text is None:
        return None
    number = _whole(text)
    if number is None or number < least:
        _refuse(key, f"is {_short(text)}, a whole number from {least} to {MOST:,} is expected", where)
    return number


def _whole(text: str) -> int | None:
    """A number from 0 to `MOST`; None for any other text, however long."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MOST)):
        return None
    number = int(text)
    return number if number <= MOST else None


def _short(text: str) -> str:
    """A text of the metadata as messages quote it."""
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}... of {len(text):,} characters"


def _choice(metadata: Mapping[str, str], key: str, known: tuple[str, ...], where: str) -> str | None:
    text = metadata.get(key)
    if text is not None and text not in known:
        close = nearest(text, known)
        hint = f"did you mean {close}?" if close else None
        _refuse(key, f"is {text!r}, known are {', '.join(known)}", where, hint=hint)
    return text


def _object(metadata: Mapping[str, str], key: str, where: str) -> dict[str, Any]:
    value = _json(metadata.get(key, "{}"), key, where)
    if not isinstance(value, dict):
        _refuse(key, "is not a JSON object", where)
    found: dict[str, Any] = value
    return found


def _json(text: str, key: str, where: str) -> Any:
    try:
        # NaN and infinity, which reports in JSON have no form for, are kept as texts
        return json.loads(text, parse_constant=str, parse_float=_float)
    except (ValueError, RecursionError) as error:
        _refuse(key, f"is not JSON ({error})", where)


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _sources(metadata: Mapping[str, str], where: str) -> tuple[SourceFacts, ...]:
    value = _json(metadata.get("sources", "[]"), "sources", where)
    try:
        sources = msgspec.convert(value, tuple[SourceFacts, ...])
    except msgspec.ValidationError as error:
        _refuse("sources", str(error), where)
    names = [source.name for source in sources]
    for number, source in enumerate(sources):
        place = f"sources[{number}]"
        if source.name in names[:number]:
            _refuse(place, f"has the name {source.name!r} again", where)
        if source.half not in HALVES or source.group not in GROUPS:
            _refuse(
                place,
                f"is of half {source.half!r} and group {source.group!r}, k or v and full or swa are expected",
                where,
            )
        if source.page_size < 1:
            _refuse(place, f"has page_size {source.page_size}, 1 or more is expected", where)
        _check_bytes(source, place, where)
    return sources


def _check_bytes(source: SourceFacts, place: str, where: str) -> None:
    for key in ("num_bytes_per_token", "read_bytes"):
        value = getattr(source, key)
        if value < GRAIN or value % GRAIN:
            _refuse(place, f"has {key} {value}, a positive multiple of {GRAIN} is expected", where)
    if source.read_bytes > source.num_bytes_per_token:
        _refuse(
            place,
            f"has read_bytes {source.read_bytes}, at most num_bytes_per_token={source.num_bytes_per_token} "
            "is possible",
            where,
        )


def _rids(metadata: Mapping[str, str], where: str) -> dict[int, str]:
    rids = {}
    for row, rid in _object(metadata, "rids", where).items():
        number = _whole(row)
        if number is None or not isinstance(rid, str):
            found = f"{_short(row)}: {_short(str(rid))}"
            _refuse("rids", f"has {found}, the number of a row and a text are expected", where)
        rids[number] = rid
    return rids


def _refuse(key: str, message: str, where: str, *, hint: str | None = None) -> NoReturn:
    raise InputError(message, where=where, path=f"$.__metadata__.{key}", hint=hint)


def check_shapes(tensors: Mapping[str, Shape], facts: Facts, where: str) -> None:
    """Refuse tensors of a wrong type or shape, and tensors that contradict each other or the metadata.

    Unknown tensors are left alone. Raises: InputError with the tensor, what it is and what is expected.
    """
    for name, found in tensors.items():
        if name in CANARY:
            _check_canary(name, found, where)
        elif name in ARRAYS:
            dtypes, rank, words = ARRAYS[name]
            if found.dtype not in dtypes or len(found.sizes) != rank:
                _wrong(name, found, f"{' or '.join(dtypes)} {words}", where)
    _check_log(tensors, where)
    for group in GROUPS:
        _check_same(tensors, [name for name, place in CANARY.items() if place[2] == group], 0, "slots", where)
    _check_same(tensors, ["req_to_token", "seq_lens", "expected_tokens", "expected_lens"], 0, "rows", where)
    _check_same(tensors, ["cache.slots", "cache.positions", "cache.predecessors"], 0, "entries", where)
    for source in facts.sources:
        if KV + source.name in tensors:
            _check_source(source, tensors, where)


def _check_log(tensors: Mapping[str, Shape], where: str) -> None:
    log, count = tensors.get("violations"), tensors.get("violation_count")
    if log is not None and log.sizes[1] != RING_WORDS:
        _wrong("violations", log, "I64 [rows of the log, 8]", where)
    if count is not None and count.sizes != (1,):
        _wrong("violation_count", count, "I64 or I32 [1]", where)


def _check_canary(name: str, found: Shape, where: str) -> None:
    wanted = "I64 [slots, 4 or more] or U8 [slots, 32 or more, a multiple of 8]"
    item = {"I64": 8, "U8": 1}.get(found.dtype)
    if item is None or len(found.sizes) != 2:
        _wrong(name, found, wanted, where)
        return
    num_bytes = found.sizes[1] * item
    if num_bytes < STAMP_BYTES or num_bytes % 8 or found.sizes[0] == 0:
        _wrong(name, found, wanted + ", and one slot at least", where)


def _check_same(tensors: Mapping[str, Shape], names: list[str], axis: int, what: str, where: str) -> None:
    sizes = {name: tensors[name].sizes[axis] for name in names if name in tensors}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise InputError(f"the tensors don't agree about the number of {what}: {found}", where=where)


def _check_source(source: SourceFacts, tensors: Mapping[str, Shape], where: str) -> None:
    name, found = KV + source.name, tensors[KV + source.name]
    if len(found.sizes) < 2 or not found.sizes[0]:
        _wrong(name, found, "[slots or pages, ...] of any type", where)
    slots = next(
        (shape.sizes[0] for key, shape in tensors.items() if CANARY.get(key, "")[-1:] == (source.group,)),
        None,
    )
    held = found.sizes[0] * source.page_size
    if slots is not None and held < slots:
        raise InputError(
            f"tensor {name!r} is {found}: with page_size {source.page_size} it has bytes for {held:,} slots, "
            f"the stamps of the {source.group} group are of {slots:,}",
            where=where,
            path=f"$.{name}",
        )


def check_row_bytes(source: SourceFacts, row_bytes: int, where: str) -> None:
    """Refuse rows of a KV tensor that are too short for their page, or not a multiple of 16 bytes."""
    need = source.page_size * source.num_bytes_per_token
    if row_bytes < need or row_bytes % GRAIN:
        raise InputError(
            f"tensor {KV + source.name!r} has rows of {row_bytes:,} bytes, a multiple of {GRAIN} and at least "
            f"page_size * num_bytes_per_token = {need:,} are expected",
            where=where,
            path=f"$.{KV}{source.name}",
        )


def _wrong(name: str, found: Shape, wanted: str, where: str) -> None:
    raise InputError(
        f"tensor {name!r} is {found}, {wanted} is expected",
        where=where,
        path=f"$.{name}",
        hint="docs/dump-format.md lists every tensor",
    )
