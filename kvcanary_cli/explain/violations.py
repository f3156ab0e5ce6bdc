"""`kv_canary violation:` lines of a server's log: which launch, which checks, and what the numbers say.

The fields are those of a ring row. Releases differ in how they spell reasons (`verify_chain_hash` or
`chain_hash`) and launches (a name or its number); both are read.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from kvcanary_cli.kernels.consts import BIT_NAMES, LaunchTag, bit_names

PREFIX = "kv_canary violation:"

CHAIN_HASH, WRITE_POSITION, VERIFY_TOKEN, WRITE_TOKEN = (
    "chain_hash",
    "write_position",
    "verify_token",
    "write_token",
)

_FIELD = re.compile(r"\b(\w+)\s*[=:]\s*(0x[0-9a-fA-F]{1,16}|-?\d{1,20}|[A-Za-z_][\w.+|]*)")
# the order in which the server writes them: one match in place of eight
_ORDERED = re.compile(
    r"\s*launch_tag=(?P<launch_tag>[\w.]+) fail_reason=(?P<fail_reason>[\w.+|]+) slot_idx=(?P<slot_idx>-?\d{1,20}) "
    r"position=(?P<position>-?\d{1,20}) stored_token=(?P<stored_token>-?\d{1,20}) "
    r"expected_token=(?P<expected_token>-?\d{1,20}) stored_chain_hash=(?P<stored_chain_hash>0x[0-9a-fA-F]{1,16}) "
    r"expected_aux=(?P<expected_aux>0x[0-9a-fA-F]{1,16})"
)
_NAMES = frozenset(BIT_NAMES.values())
_MASK = (1 << 64) - 1

PHASES = {
    "HEAD": "before the model ran",
    "TAIL": "after the model ran",
    "SWEEP": "a sweep over idle cached slots",
}
HALVES = {"K": "the K half", "V": "the V half"}
GROUPS = {"FULL": "the group with full attention", "SWA": "the group with a sliding window"}


class Violation(NamedTuple):
    """One line, decoded.

    Args:
        launch: name of the launch, such as `HEAD_K_FULL`, or what the line has where that is none.
        reasons: checks that failed, by the names that have a page; what is not known stays as it is.
        slot, position, stored_token, expected_token: as in the line, None where it lacks them.
        stored_hash, aux: unsigned 64-bit; `aux` is the expected hash, or for `write_position` a position.
    """

    launch: str
    reasons: tuple[str, ...]
    slot: int | None
    position: int | None
    stored_token: int | None
    expected_token: int | None
    stored_hash: int | None
    aux: int | None

    @property
    def is_unstamped(self) -> bool:
        """Whether all stored fields are 0, as in a slot that was never stamped."""
        return (self.stored_token, self.position, self.stored_hash) == (0, 0, 0)


def read_violation(body: str) -> Violation | None:
    """The violation whose fields stand in `body`; None without a launch and a reason."""
    ordered = _ORDERED.match(body)
    fields = ordered.groupdict() if ordered is not None else dict(_FIELD.findall(body))
    launch, reason = fields.get("launch_tag"), fields.get("fail_reason")
    if launch is None or reason is None:
        return None
    return Violation(
        launch=_launch(launch),
        reasons=_reasons(reason),
        slot=_number(fields.get("slot_idx")),
        position=_number(fields.get("position")),
        stored_token=_number(fields.get("stored_token")),
        expected_token=_number(fields.get("expected_token")),
        stored_hash=_unsigned(fields.get("stored_chain_hash")),
        aux=_unsigned(fields.get("expected_aux")),
    )


def decoded_launch(launch: str) -> dict[str, str] | None:
    """Phase, half and group of a launch in words; None for a name that no release has."""
    parts = launch.split("_")
    if launch not in LaunchTag.__members__:
        return None
    phase, half, group = parts
    return {"phase": PHASES[phase], "half": HALVES[half], "group": GROUPS[group]}


def is_known(reason: str) -> bool:
    """Whether a reason is a check that has a page."""
    return reason in _NAMES


def facts(violation: Violation) -> list[str]:
    """What the numbers of a violation say beside that a check failed, one sentence each."""
    found: list[str] = []
    if violation.is_unstamped:
        found.append("all stored fields are 0: the slot was never stamped, or was wiped since")
    if CHAIN_HASH in violation.reasons and violation.aux is not None and violation.stored_hash is not None:
        found.append(
            f"stored prev-hash {_hex(violation.stored_hash)}, {_hex(violation.aux)} follows from the slot before it"
        )
    if WRITE_POSITION in violation.reasons and violation.aux is not None:
        found.append(f"position {_text(violation.position)} was written, {_signed(violation.aux):,} was due")
    if VERIFY_TOKEN in violation.reasons:
        found.append(
            f"token {_text(violation.stored_token)} is stored, the request has {_text(violation.expected_token)}"
        )
    if WRITE_TOKEN in violation.reasons:
        found.append(
            f"token {_text(violation.stored_token)} was written, {_text(violation.expected_token)} was expected"
        )
    return found


@lru_cache(maxsize=256)
def _launch(value: str) -> str:
    name = value.rpartition(".")[2].upper()
    if name.isdigit() and int(name) < len(LaunchTag):
        return LaunchTag(int(name)).name
    return name if name in LaunchTag.__members__ else value


@lru_cache(maxsize=256)
def _reasons(value: str) -> tuple[str, ...]:
    if value.isdigit():
        return tuple(bit_names(int(value))) or (value,)
    reasons = []
    for word in re.split(r"[+|]", value):
        name = word.rpartition(".")[2].lower()
        short = name.removeprefix("verify_")
        reasons.append(name if name in _NAMES else short if short in _NAMES else word)
    return tuple(reason for reason in reasons if reason)


def _number(value: str | None) -> int | None:
    if value is None or not value.lstrip("-")[:1].isdigit():
        return None
    return int(value, 16) if value[:2] == "0x" else int(value)


def _unsigned(value: str | None) -> int | None:
    number = _number(value)
    return None if number is None else number & _MASK


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _hex(value: int) -> str:
    return f"0x{value:016x}"


def _text(value: int | None) -> str:
    return "(not in the line)" if value is None else str(value)
