"""The answer sheet of planted faults, and how a replay's incidents are compared with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from kvcanary_cli.errors import InputError

VERSION = 1

Range = list[int]


class Innocent(Struct, kw_only=True):
    """What must not be blamed: slots as `[first, last]` pairs, and requests as writers."""

    slots: list[Range] = []
    window_slots: list[Range] = []
    rids: list[str] = []


class Answer(Struct, kw_only=True, rename={"innocent": "not"}):
    """One planted fault.

    Attributes:
        kind: code, see `kinds.py`.
        slots: those whose KV is wrong, `[first, last]` pairs; if `damaged` is False, those that the incident
            must name although their KV is right.
        rid: whose slots they were; None when it is nobody's in particular.
        writer: the request that did it; None when no request did.
        step: forward during or after which it happened.
        found_by_step: the latest step by which replay must have noticed.
        innocent: neighbours, written as "not": shadows and requests that were merely there.
        damaged: False for faults that leave every slot's KV right.
        group: buffer group of `slots`.
        window_slots: window slots that are wrong too, in a hybrid pool.
        side: slots that are right, and that an incident may name all the same.
        also: further kinds by which the effect may be called.
        variant: which of its forms the fault has.
    """

    kind: str
    slots: list[Range]
    rid: str | None = None
    writer: str | None = None
    step: int
    found_by_step: int
    innocent: Innocent = field(default_factory=Innocent, name="not")
    damaged: bool = True
    group: str = "full"
    window_slots: list[Range] = []
    side: list[Range] = []
    also: list[str] = []
    variant: str | None = None


class AnswerSheet(Struct, kw_only=True):
    """All faults of one trace, and the seed that placed them."""

    version: int
    seed: int
    faults: list[Answer]


class Match(Struct, kw_only=True):
    """What became of one planted fault.

    Attributes:
        incident: index of the incident that stands for it; None: it was not found.
        others: further incidents that name its slots.
        found: whether there is one.
        named_right: whether that one has its kind.
        first_seen_step: the earlier of breach and first failed check.
        in_time: whether that was no later than the sheet says.
        latency: steps from the fault to there, at least 0.
        false_slots: slots that an incident calls damaged and that are not.
        blamed_rids: innocent requests that an incident names as writers.
    """

    answer: Answer
    incident: int | None = None
    others: list[int] = []
    found: bool = False
    named_right: bool = False
    first_seen_step: int | None = None
    in_time: bool = False
    latency: int | None = None
    false_slots: list[int] = []
    blamed_rids: list[str] = []


def read_answers(path: str) -> AnswerSheet:
    """The answer sheet in a file.

    Raises: InputError if it can't be read or is no answer sheet of this version.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", where=path) from None
    try:
        sheet = msgspec.json.decode(data, type=AnswerSheet)
    except msgspec.DecodeError as error:
        message, _, at = str(error).partition(" - at ")
        message = message[:1].lower() + message[1:]
        raise InputError(
            f"no answer sheet: {message}",
            where=path,
            path=at.strip("`") or None,
            hint="`kvcanary plant` writes one",
        ) from None
    if sheet.version != VERSION:
        raise InputError(
            f"answer sheet of version {sheet.version}, {VERSION} is read", where=path, path="$.version"
        )
    return sheet


def write_answers(path: str, answers: Iterable[Answer], *, seed: int) -> None:
    """Write a sheet; the same answers always give the same bytes.

    Raises: InputError if the file can't be written.
    """
    try:
        Path(path).write_text(sheet_text(answers, seed=seed), encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=path) from None


def sheet_text(answers: Iterable[Answer], *, seed: int) -> str:
    """The sheet as JSON, one line a fault."""
    lines = []
    for answer in answers:
        plain = msgspec.to_builtins(answer)
        # what says nothing is left out, apart from the keys that every sheet has
        for key in ("window_slots", "side", "also", "variant"):
            if not plain[key]:
                del plain[key]
        if answer.group == "full":
            del plain["group"]
        lines.append("  " + json.dumps(plain, ensure_ascii=False))
    return f'{{"version": {VERSION}, "seed": {seed}, "faults": [\n' + ",\n".join(lines) + "\n]}\n"


def compare(answers: Sequence[Answer], incidents: Sequence[dict[str, Any]]) -> list[Match]:
    """What became of each planted fault, given the incidents of a replay as its JSON report has them.

    An incident that names slots of a fault belongs to it; among several, one of the right kind stands for it,
    else the earliest. A fault that has no slots, or whose incident names none, is met by its kind.
    """
    return [_match(answer, incidents) for answer in answers]


def unplanted(matches: Sequence[Match], incidents: Sequence[dict[str, Any]]) -> list[int]:
    """Indices of incidents that belong to no planted fault."""
    known = {index for match in matches for index in (match.incident, *match.others)}
    return [index for index in range(len(incidents)) if index not in known]


def _match(answer: Answer, incidents: Sequence[dict[str, Any]]) -> Match:
    kinds = {answer.kind, *answer.also}
    near = [
        index
        for index, incident in enumerate(incidents)
        if _overlaps(answer, incident)
        or (incident["kind"] in kinds and not (answer.slots and _slots(incident)))
    ]
    match = Match(answer=answer)
    if not near:
        return match
    near.sort(key=lambda index: (_rank(answer, incidents[index]), first_seen(incidents[index]) or 0, index))
    best = incidents[near[0]]
    match.incident, match.others, match.found = near[0], near[1:], True
    match.named_right = best["kind"] in kinds
    steps = [step for step in (first_seen(incidents[index]) for index in near) if step is not None]
    if steps:
        match.first_seen_step = min(steps)
        match.in_time = match.first_seen_step <= answer.found_by_step
        match.latency = max(0, match.first_seen_step - answer.step)
    innocent = set(answer.innocent.rids)
    for incident in (incidents[index] for index in near):
        match.false_slots += sorted(_slots(incident) - _named(answer, _group(incident)))
        writer = (incident.get("writer") or {}).get("rid")
        if writer in innocent:
            match.blamed_rids.append(writer)
    return match


def _rank(answer: Answer, incident: dict[str, Any]) -> int:
    """Which incidents stand for a fault before others: those of its kind, then those of its effect."""
    kind = incident["kind"]
    return 0 if kind == answer.kind else 1 if kind in answer.also else 2


def first_seen(incident: dict[str, Any]) -> int | None:
    """The step at which a replay noticed an incident: its breach or its first failed check."""
    marks = [incident.get("breach"), incident.get("seen")]
    return min((mark["step"] for mark in marks if mark and mark.get("step") is not None), default=None)


def _group(incident: dict[str, Any]) -> str:
    return incident.get("group") or "full"


def _slots(incident: dict[str, Any]) -> set[int]:
    return _expand(incident.get("slots") or [])


def _named(answer: Answer, group: str) -> set[int]:
    """Slots of a group that an incident may name."""
    if group == answer.group:
        return _expand(answer.slots) | _expand(answer.side)
    return _expand(answer.window_slots)


def _overlaps(answer: Answer, incident: dict[str, Any]) -> bool:
    return bool(_slots(incident) & _named(answer, _group(incident)))


def _expand(pairs: Iterable[Range]) -> set[int]:
    return {slot for first, last in pairs for slot in range(first, last + 1)}
