"""What is wrong with a line that is JSON but no event: JSON path, what was found, what is expected."""

from __future__ import annotations

import re
import typing
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from kvcanary_cli.errors import nearest
from kvcanary_cli.trace.events import EVENT_TYPES
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.slots import SlotListError, describe

REQUEST_HINT = (
    "a request trace is read by `inspect`, `simulate` and `replay`, from a pipe with `--input-format NAME`"
)
_PATH = re.compile(r" - at `(\$.*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `[^`]*`)?(.*)", re.DOTALL)
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def event_type(data: object) -> type[Struct]:
    """The struct of a decoded line.

    Raises:
        LineError: no object, no `ev`, or an `ev` that is not known.
    """
    if not isinstance(data, dict):
        raise LineError(f"an object is expected, found {describe(data)}", path="$")
    if "ev" not in data:
        hint = REQUEST_HINT if "timestamp" in data else None
        raise LineError('key "ev" is missing, every event names its kind', path="$", hint=hint)
    name = data["ev"]
    if not isinstance(name, str):
        raise LineError(f"a string is expected, found {describe(name)}", path="$.ev")
    if name not in EVENT_TYPES:
        raise LineError(
            f"unknown event {describe(name)}{_closest(name, EVENT_TYPES)}",
            path="$.ev",
            hint="events are " + ", ".join(EVENT_TYPES),
        )
    return EVENT_TYPES[name]


def clean_keys(value: Any, kind: Any, path: str) -> Any:
    """`value` without its `x-` keys, down to the sub-objects of a header.

    Raises:
        LineError: a key that `kind` does not have, or lacks one that it needs.
    """
    if isinstance(value, list) and typing.get_origin(kind) is list:
        (item,) = typing.get_args(kind)
        return [clean_keys(element, item, f"{path}[{index}]") for index, element in enumerate(value)]
    if not isinstance(value, dict) or not _is_struct(kind):
        return value
    what = "event " + kind.__struct_config__.tag if kind.__struct_config__.tag else path.rpartition(".")[2]
    types = field_types(kind)
    result = {}
    for key, element in value.items():
        if key in types:
            result[key] = clean_keys(element, types[key], f"{path}.{key}")
        elif not key.startswith("x-"):
            raise LineError(
                f"unknown key of {what}{_closest(key, types)}",
                path=f"{path}.{key}",
                hint=f"keys of {what} are {', '.join(types)}; keys of your own begin with x-",
            )
    missing = [key for key in types if key not in value and key in _required(kind)]
    if missing:
        raise LineError(f'key "{missing[0]}" of {what} is missing', path=path)
    return result


def explain(data: object, kind: type[Struct], error: msgspec.ValidationError) -> LineError:
    """The error of a value that does not fit its key; `data` is the line without `x-` keys."""
    text = str(error)
    found = _PATH.search(text)
    path = found[1] if found else "$"
    text = text[: found.start()] if found else text
    cause = error.__cause__
    if isinstance(cause, SlotListError):
        return LineError(cause.message, path=path + cause.path)
    value, expected_type = _walk(data, kind, path)
    if typing.get_origin(expected_type) is Literal:
        allowed = typing.get_args(expected_type)
        closest = _closest(value, allowed) if isinstance(value, str) else ""
        return LineError(f"{describe(value)} is not one of {', '.join(allowed)}{closest}", path=path)
    parts = _EXPECTED.match(text)
    if parts is None:
        return LineError(f"{describe(value)} does not fit ({text[:1].lower()}{text[1:]})", path=path)
    return LineError(
        f"{_expectation(parts[1], parts[2].strip())} is expected, found {describe(value)}", path=path
    )


@cache
def field_types(kind: type[Struct]) -> dict[str, Any]:
    """JSON key -> type without None and constraints, `ev` first for events."""
    hints = typing.get_type_hints(kind)
    types: dict[str, Any] = {"ev": str} if kind.__struct_config__.tag else {}
    for name, key in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        types[key] = _without_none(hints[name])
    return types


@cache
def _required(kind: type[Struct]) -> set[str]:
    return {item.encode_name for item in msgspec.structs.fields(kind) if item.required}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _without_none(kind: Any) -> Any:
    args = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    if type(None) in typing.get_args(kind) and len(args) == 1:
        return args[0]
    return kind


def _walk(data: Any, kind: Any, path: str) -> tuple[Any, Any]:
    """The value at a JSON path, and its type; None where the path leads out of the data."""
    for key, index in _STEP.findall(path):
        try:
            data = data[int(index)] if index else data[key]
        except (LookupError, TypeError):
            return None, None
        if index:
            kind = typing.get_args(kind)[0] if typing.get_origin(kind) is list else None
        else:
            kind = field_types(kind).get(key) if _is_struct(kind) else None
    return data, kind


def _expectation(types: str, limit: str) -> str:
    """msgspec's expectation in words: type names joined by |, and the limit that was broken."""
    words = [_WORDS.get(name, name) for name in types.split(" | ") if name != "null"]
    text = " or ".join(words)
    if limit.startswith(">="):
        return f"{text} of at least {limit[3:]}"
    if limit.startswith("<="):
        return f"{text} of at most {limit[3:]}"
    if limit.startswith("of length"):
        return f"{text} that is not empty"
    if limit.startswith("matching"):
        return '"0x" with 1 to 16 hex digits'
    return text


def _closest(name: str, known: typing.Iterable[str]) -> str:
    found = nearest(name, known)
    return f', did you mean "{found}"?' if found else ""
