"""How numbers and names are written in text reports.

Counts are exact and never shortened. Ratios are rounded in the direction that hurts: headroom and coverage
down, usage up, so that no rounding makes a report look better than what was measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80
"""Columns that the fixed parts of a report are laid out for, whatever the terminal has."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(number: int) -> str:
    """An integer with thousands separators: `1,277,952`."""
    return f"{number:,}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """`1 step`, `1,200 steps`; `many` is the plural where an s is not enough."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def size(num_bytes: int, *, down: bool = False) -> str:
    """Bytes in the largest binary unit that keeps the figure at 1 or more: `91.2 MiB`.

    Rounded up to one decimal, as fits for what is used; `down=True` is for what is available.
    """
    unit, scale = 0, 1
    while num_bytes >= scale * 1024 and unit < len(_UNITS) - 1:
        unit, scale = unit + 1, scale * 1024
    if unit == 0:
        return f"{num_bytes:,} B"
    tenths = num_bytes * 10 // scale if down else -(-num_bytes * 10 // scale)
    # rounding up can reach the next unit: 1,048,575 bytes are 1.0 MiB, not 1024.0 KiB
    if tenths >= 10240 and unit < len(_UNITS) - 1:
        unit, tenths = unit + 1, 10
    return f"{tenths // 10:,}.{tenths % 10} {_UNITS[unit]}"


def _fixed(numerator: int, denominator: int, digits: int, *, up: bool) -> str:
    """numerator / denominator with `digits` decimals, in integers so that nothing is rounded twice."""
    scaled = numerator * 10**digits
    quotient = -(-scaled // denominator) if up else scaled // denominator
    whole, rest = divmod(quotient, 10**digits)
    return f"{whole:,}.{rest:0{digits}d}" if digits else f"{whole:,}"


def headroom(value: int, need: int) -> str:
    """value / need rounded down to two decimals: `8.00x`, `0.99x`; `-` when nothing is needed."""
    return "-" if need <= 0 else _fixed(value, need, 2, up=False) + "x"


def percent(part: int, whole: int, *, digits: int = 1, up: bool = False) -> str:
    """part of whole in percent, rounded down (coverage) or with `up` up (usage); `-` of nothing."""
    return "-" if whole <= 0 else _fixed(part * 100, whole, digits, up=up) + "%"


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Sorted, merged `[first, last]` pairs, both included, of any integers."""
    pairs: list[list[int]] = []
    for number in sorted({int(n) for n in numbers}):
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return pairs


def ranges(pairs: Sequence[Sequence[int]], *, limit: int | None = None) -> str:
    """`[first, last]` pairs as `7, 4705-4719`; past `limit` pairs, how many more there are. `-` for none."""
    if not pairs:
        return "-"
    shown = pairs if limit is None else pairs[:limit]
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in shown]
    if len(shown) < len(pairs):
        parts.append(f"... {len(pairs) - len(shown):,} more")
    return ", ".join(parts)


def window(pair: Sequence[int | None] | None) -> str:
    """A value known only within bounds: `841`, `513-600`, `<=87` (lower bound None or 0), `-` if unknown."""
    if pair is None or pair[1] is None:
        return "-"
    first, last = pair
    if first == last:
        return str(last)
    return f"<={last}" if not first else f"{first}-{last}"


def name(value: object) -> str:
    """A file name or request id in printable ASCII on one line; anything else becomes a backslash escape."""
    return "".join(
        char if " " <= char <= "~" else char.encode("unicode_escape").decode("ascii") for char in str(value)
    )


def ascii_lines(value: str) -> str:
    """`name` for text of several lines: line feeds stay."""
    if value.isascii() and value.replace("\n", "").isprintable():
        return value
    return "\n".join(name(line) for line in value.split("\n"))


def names(values: Sequence[object], *, limit: int = 10) -> str:
    """Names separated by spaces; past `limit`, how many more there are. `-` for none."""
    if not values:
        return "-"
    shown = [name(value) for value in values[:limit]]
    if len(values) > limit:
        shown.append(f"... {len(values) - limit:,} more")
    return " ".join(shown)


def wrap(value: str, *, first: str = "", indent: str | None = None, width: int = WIDTH) -> list[str]:
    """`value` broken at spaces into lines of at most `width` columns; words are never broken.

    Args:
        first: what stands before the first line.
        indent: what stands before the others; by default spaces as wide as `first`.
    """
    rest = " " * len(first) if indent is None else indent
    lines: list[str] = []
    for part in value.split("\n"):
        lines += textwrap.wrap(
            part,
            width,
            initial_indent=rest if lines else first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [rest if lines else first]
    return [line.rstrip() for line in lines]
