"""Values that no KV cache should hold: NaN and infinity, found by their bits, so that any float type will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcanary_cli.scrub.pool import Part


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bits:
    """Words of a type: NaN where `word & mask` is above `limit`, infinite where it equals it and `has_inf`."""

    code: str
    mask: int
    limit: int
    has_inf: bool = True


FLOATS = {
    "F16": _Bits(code="<u2", mask=0x7FFF, limit=0x7C00),
    "BF16": _Bits(code="<u2", mask=0x7FFF, limit=0x7F80),
    "F32": _Bits(code="<u4", mask=0x7FFF_FFFF, limit=0x7F80_0000),
    "C64": _Bits(code="<u4", mask=0x7FFF_FFFF, limit=0x7F80_0000),
    "F64": _Bits(code="<u8", mask=0x7FFF_FFFF_FFFF_FFFF, limit=0x7FF0_0000_0000_0000),
    "F8_E5M2": _Bits(code="u1", mask=0x7F, limit=0x7C),
    "F8_E4M3": _Bits(code="u1", mask=0x7F, limit=0x7E, has_inf=False),
    "F8_E8M0": _Bits(code="u1", mask=0xFF, limit=0xFE, has_inf=False),
}
"""Types by the bits of their exponent; F4 and F6 have neither value."""

NEGATIVE_ZERO_IS_NAN = ("F8_E4M3FNUZ", "F8_E5M2FNUZ")


@dataclass(kw_only=True, slots=True)
class PartValues:
    """What one tensor holds; `slots` are those with at least one such value."""

    nan: int = 0
    inf: int = 0
    slots: list[np.ndarray]


class ValueCounter:
    """Counts over the chunks of a pool; `not_checked` names the tensors that hold no such floats."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.counts = {part.name: PartValues(slots=[]) for part in parts if has_floats(part.info.dtype)}
        self.not_checked = [part.name for part in parts if part.name not in self.counts]

    def add(self, first: int, num_slots: int, views: Sequence[np.ndarray]) -> None:
        """Count a chunk: `views` [rows, stride] uint8, a tensor each, of which `num_slots` rows are filled."""
        for part, view in zip(self._parts, views, strict=True):
            if part.name not in self.counts:
                continue
            nan, inf = _find(part.info.dtype, view[:num_slots, : part.row_bytes])
            found = self.counts[part.name]
            found.nan += int(np.count_nonzero(nan))
            found.inf += int(np.count_nonzero(inf))
            found.slots.append(first + np.flatnonzero((nan | inf).any(axis=1)))


def has_floats(dtype: str) -> bool:
    """Whether the type can hold NaN or infinity."""
    return dtype in FLOATS or dtype in NEGATIVE_ZERO_IS_NAN


def _find(dtype: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where NaN and infinity are, [slots, values] bool each."""
    if dtype in NEGATIVE_ZERO_IS_NAN:
        nan = rows == 0x80
        return nan, np.zeros_like(nan)
    bits = FLOATS[dtype]
    words = rows.view(bits.code)
    words = words & words.dtype.type(bits.mask)
    nan = words > bits.limit
    return nan, (words == bits.limit) if bits.has_inf else np.zeros_like(nan)
