"""The cases of a benchmark, read from a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from kvcanary_cli.errors import InputError, nearest

PACKAGED_CASES = Path(__file__).parent / "bench.yaml"

ORDERS = ("random", "contiguous")
MAX_SLOTS = 1 << 27  # 4 GiB of stamps a buffer
GRAIN = 16  # bytes; what a source has a slot is a multiple of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One forward to time.

    Attributes:
        lanes: requests of the forward.
        prefix: tokens that each lane has before: verified.
        extend: tokens that each lane gets: written.
        num_sources, source_bytes: byte sources of the TAIL buffer and their bytes a slot, all of them hashed.
    """

    name: str
    lanes: int
    prefix: int
    extend: int
    num_sources: int = 0
    source_bytes: int = 0

    @property
    def num_verified(self) -> int:
        """Entries that one buffer's verification checks."""
        return self.lanes * self.prefix

    @property
    def num_written(self) -> int:
        """Stamps that go to one buffer."""
        return self.lanes * self.extend


def load_cases(path: str | Path | None = None) -> list[Case]:
    """Cases of a file, the packaged ones without one.

    Raises:
        InputError: the file can't be read, or names a key, value or shape that is none.
    """
    file = PACKAGED_CASES if path is None else Path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"the cases can't be read: {' '.join(str(error).split())}", where=str(file)
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("cases"), list) or not content["cases"]:
        raise InputError("a list of cases was expected", where=str(file), path="$.cases")
    extra = next((key for key in content if key != "cases"), None)
    if extra is not None:
        raise InputError(f"the key {extra} is not known, the only one is cases", where=str(file))
    return [_case(entry, str(file), f"$.cases[{index}]") for index, entry in enumerate(content["cases"])]


def _case(entry: Any, where: str, path: str) -> Case:
    if not isinstance(entry, Mapping):
        raise InputError("a mapping was expected", where=where, path=path)
    known = [field.name for field in fields(Case)]
    for key in entry:
        if key not in known:
            close = nearest(str(key), known)
            hint = f"did you mean {close}?" if close else f"known keys: {', '.join(known)}"
            raise InputError(f"the key {key} is not known", where=where, path=path, hint=hint)
    for name in known[:4]:
        if name not in entry:
            raise InputError(f"the key {name} is missing", where=where, path=path)
    limits = {"lanes": (1, 65_535), "prefix": (0, MAX_SLOTS), "extend": (0, MAX_SLOTS)}
    limits |= {"num_sources": (0, 64), "source_bytes": (0, 1 << 20)}
    for name, (low, high) in limits.items():
        value = entry.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            message = f"{name} is {value}, a whole number from {low:,} to {high:,} was expected"
            raise InputError(message, where=where, path=path)
    case = Case(**entry)
    slots = case.lanes * (case.prefix + case.extend)
    if not 0 < slots < MAX_SLOTS:
        raise InputError(
            f"the case has {slots:,} slots, from 1 to {MAX_SLOTS - 1:,} fit", where=where, path=path
        )
    if case.source_bytes % GRAIN or bool(case.source_bytes) != bool(case.num_sources):
        message = f"source_bytes is {case.source_bytes} with {case.num_sources} sources, a multiple of {GRAIN} belongs"
        raise InputError(f"{message} to one source or more", where=where, path=path)
    return case
