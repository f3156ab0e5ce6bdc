"""One line of a trace to one event.

Nearly every line takes the fast way: msgspec decodes it, and a look at its keys shows that none is there
twice. What that can't settle (a line that fails, carries `x-` keys, has keys inside keys or escapes) is
parsed a second time with Python's own JSON parser, which sees every key and can say what is wrong where.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

import msgspec
import numpy as np

from kvcanary_cli.trace.events import EVENT_TYPES, Event, Header
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.header import FORMAT, VERSION
from kvcanary_cli.trace.messages import clean_keys, event_type, explain
from kvcanary_cli.trace.slots import describe, parse_slots

_KEY = re.compile(rb'"([^"\\]*)"\s*:')
_KNOWN_KEYS = {b"ev"} | {
    key.encode() for kind in EVENT_TYPES.values() for key in kind.__struct_encode_fields__
}
# a trace has a few dozen key layouts; the limit only keeps a hostile file from filling the memory
_MAX_LAYOUTS = 4096


class NotJsonError(LineError):
    """The line is no JSON text at all, so it may be one that was cut off."""


def dec_hook(kind: type, value: object) -> object:
    """msgspec's way to our slot lists."""
    if kind is np.ndarray:
        return parse_slots(value)
    raise TypeError(f"no decoding for {kind}")


class LineDecoder:
    """Decodes the lines of one trace; remembers which key layouts have no duplicates."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Event, dec_hook=dec_hook).decode
        self._find_keys = _KEY.findall
        self._plain_layouts: set[tuple[bytes, ...]] = set()

    def decode(self, line: bytes) -> Event:
        """The event of a line that is not blank, not yet checked against the header.

        Raises:
            NotJsonError: the line is not JSON.
            LineError: it is JSON, but no event; with JSON path, what was found and what is expected.
        """
        try:
            event = self._decode(line)
        except (msgspec.DecodeError, RecursionError):
            return _decode_slowly(line)
        # Misreading a value as a key is possible here, but gives a name that is not known or a
        # duplicate: so a layout of different known names has every key of the line in it.
        layout = tuple(self._find_keys(line))
        if layout not in self._plain_layouts or b"\\" in line:
            self._look_for_duplicates(line, layout)
        return event

    def _look_for_duplicates(self, line: bytes, layout: tuple[bytes, ...]) -> None:
        if b"\\" not in line and len(set(layout)) == len(layout) and _KNOWN_KEYS.issuperset(layout):
            if len(self._plain_layouts) < _MAX_LAYOUTS:
                self._plain_layouts.add(layout)
        else:
            parse_strictly(line)


def parse_strictly(line: bytes) -> Any:
    """The JSON value of a line.

    Raises:
        NotJsonError: not JSON; NaN and Infinity are not JSON either.
        LineError: a key twice in one object, a number beyond the range of doubles, or nesting too deep.
    """
    try:
        value = json.loads(
            line.rstrip(b"\r\n").decode("utf-8"),
            object_pairs_hook=_object_without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
        if b"\\u" in line:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        reason = (
            reason.replace("invalid", "unexpected").rstrip(": ").removesuffix(" at").removesuffix(" starting")
        )
        raise NotJsonError(f"not JSON ({reason} at column {error.colno})") from None
    except UnicodeEncodeError:
        raise LineError("a string has half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise LineError("lists or objects are nested too deeply") from None
    except ValueError:
        # Python limits the digits of one integer
        raise LineError("a number has too many digits") from None
    return value


def _decode_slowly(line: bytes) -> Event:
    """As `LineDecoder.decode`, for a line that msgspec alone can't take."""
    data = parse_strictly(line)
    kind = event_type(data)
    if kind is Header:
        _check_version(data)
    data = clean_keys(data, kind, "$")
    try:
        return cast(Event, msgspec.convert(data, kind, dec_hook=dec_hook))
    except msgspec.ValidationError as error:
        raise explain(data, kind, error) from None


def _check_version(data: dict[str, Any]) -> None:
    """Say that the file is of another kind or age before complaining about keys it may rightly have."""
    found = data.get("format", FORMAT)
    if found != FORMAT:
        raise LineError(f'format is {describe(found)}, "{FORMAT}" is expected', path="$.format")
    version = data.get("version", VERSION)
    if type(version) is int and version != VERSION:
        raise LineError(
            f"trace version is {version}, this kvcanary reads version {VERSION}",
            path="$.version",
            hint="`pip install -U kvcanary`" if version > VERSION else None,
        )


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise LineError(f'key "{key}" appears twice in one object')
            seen.add(key)
    return result


def _refuse_constant(name: str) -> float:
    raise NotJsonError(f"not JSON ({name} is not a JSON number)")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise LineError(f"number {text[:40]} is out of range")
    return number
