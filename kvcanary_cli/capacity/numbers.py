"""Numbers as the server and the user write them: integers, human integers, sizes, switches.

Each parser returns None-free values or raises `ValueError` with a phrase that follows "`--flag` "; the
caller, who knows the flag and the place, makes the message.
"""

from __future__ import annotations

import re

# Slots and rows are int32 in the server's tables
MAX_COUNT = 2**31 - 1

_DECIMAL = {"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BINARY = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
_HUMAN = re.compile(r"(\d+)(?:\.(\d+))?(k|M|G|T|Ki|Mi|Gi|Ti)")
_SIZE = re.compile(r"(\d+)(?:\.(\d+))?\s*(MiB|Mi|GiB|Gi|MB|GB|M|G)?")
_MIB_OF = {
    "MiB": 2**20,
    "Mi": 2**20,
    "GiB": 2**30,
    "Gi": 2**30,
    "MB": 10**6,
    "M": 10**6,
    "GB": 10**9,
    "G": 10**9,
}
_TRUE = frozenset({"true", "1", "yes", "y"})
_FALSE = frozenset({"false", "0", "no", "n"})
# int() refuses more digits than this with a message of its own
_MAX_DIGITS = 4000


def parse_int(text: str) -> int:
    """A plain integer, with a sign and `_` between digits as Python allows."""
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"has a number of {len(text):,} digits")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"wants an integer, found `{text}`") from None


def parse_float(text: str) -> float:
    """A decimal number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"wants a number, found `{text}`") from None


def parse_human_int(text: str) -> int:
    """An integer, or one with k M G T (x 1000, decimals allowed) or Ki Mi Gi Ti (x 1024); case counts."""
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        try:
            return parse_int(text)
        except ValueError as error:
            if "digits" in str(error):
                raise
            raise ValueError(
                f"wants an integer such as 16384, 16k or 16Ki, found `{text}`{_case(text)}"
            ) from None
    whole, fraction, unit = match.groups()
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"has a number of {len(text):,} digits")
    if unit in _BINARY:
        if fraction is not None:
            raise ValueError(f"takes no decimals before {unit}, found `{text}`")
        return int(whole) * _BINARY[unit]
    fraction = fraction or ""
    value, rest = divmod(int(whole + fraction) * _DECIMAL[unit], 10 ** len(fraction))
    if rest:
        raise ValueError(f"wants a whole number, found `{text}`")
    return value


def parse_memory_mib(text: str) -> int:
    """GPU memory in MiB: `81559` (MiB, as nvidia-smi has it), `81559MiB`, `80GiB`, `80GB`; rounded down."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(text) > _MAX_DIGITS:
        raise ValueError(f"wants a size such as 81559MiB or 80GiB, found `{text[:40]}`")
    whole, fraction, unit = match.groups()
    fraction = fraction or ""
    scale = _MIB_OF[unit] if unit else 2**20
    return int(whole + fraction) * scale // 10 ** len(fraction) // 2**20


def parse_switch(text: str) -> bool:
    """A boolean environment variable."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"wants true, 1, yes, y or false, 0, no, n, found `{text}`")


def _case(text: str) -> str:
    """A remark for a unit in the wrong case, or nothing."""
    stripped = text.strip()
    for unit in (*_BINARY, *_DECIMAL):
        size = len(unit)
        if stripped[-size:].lower() == unit.lower() and stripped[:-size].replace(".", "", 1).isdigit():
            return f" (the unit is written {unit})"
    return ""
