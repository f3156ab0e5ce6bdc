"""The server's canary messages as patterns that read the numbers out of them.

The patterns are made from the texts of `kernels/messages.py`, so that both can't drift apart. White space of a
text stands for any white space: logs and terminals break lines.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcanary_cli.kernels import messages
from kvcanary_cli.kernels.consts import SERVER_MAX_SOURCES, SERVER_PLAN_LANES, SERVER_SCATTER_BATCH_BLOCK

PREFIX = "kv-canary:"

# Stand for what varies while a pattern is made; no text has them by itself.
_A, _B, _C = 900000001, 900000003, 900000005
_WORDS = {
    "NAME": r"[\w.\[\]]+",
    "OTHER": r"[\w.\[\]]+",
    "WANT": r"[\w.:]+",
    "GOT": r"[\w.:]+",
    "FLAG": r"--[a-z-]+",
}
_NUMBER = r"-?\d{1,18}"
_SHAPE = r"(?:torch\.Size\()?[\[(][\d, ]*[\])]"


class Match(NamedTuple):
    """A message that was recognised.

    Args:
        family: id of the family.
        text: the message as it was found, on one line.
        numbers: what was read out, integers by the names that the server uses.
        words: the same for words: a flag, the name of a tensor, a type.
    """

    family: str
    text: str
    numbers: dict[str, int]
    words: dict[str, str]


class Family(NamedTuple):
    """One message of the server.

    Args:
        id: what reports call it.
        template: the message with `...` for what varies.
        pattern: matches at the start of the message, without the prefix.
        cue: a piece of the text that a message must hold, looked for before the pattern.
    """

    id: str
    template: str
    pattern: re.Pattern[str]
    cue: str


def _family(id: str, text: str, groups: dict[str, str]) -> Family:
    """A family from one of its messages.

    Args:
        groups: sentinel in the text: name of what stands there.
    """
    body = text.removeprefix(PREFIX).strip()
    pattern, template = re.escape(body), text
    for sentinel, name in groups.items():
        kind = _WORDS.get(sentinel, _SHAPE if sentinel == str((_A, _B)) else _NUMBER)
        pattern = pattern.replace(re.escape(sentinel), f"(?P<{name}>{kind})", 1)
        template = template.replace(sentinel, "...", 1)
    # the advice behind the semicolon is often cut off, and says nothing that is needed but the flag
    needed, semicolon, tail = pattern.replace(r"\ ", r"\s+").partition(";")
    pattern = f"{needed}(?:{semicolon}{tail})?" if semicolon else needed
    plain = re.split("|".join(re.escape(sentinel) for sentinel in groups), body) if groups else [body]
    # no cue spans white space, which a log may break, or comes from the part that may be cut off
    first = body.partition(";")[0]
    cue = max((word for part in plain for word in part.split() if word in first), key=len)
    return Family(id, template, re.compile(pattern), cue)


_PLAN_LIMIT, _BLOCK, _SOURCES = (
    str(SERVER_PLAN_LANES),
    str(SERVER_SCATTER_BATCH_BLOCK),
    str(SERVER_MAX_SOURCES),
)
_N, _M = str(_A), str(_B)

WITH_FLAG = "write-requests"
"""The family whose text names a flag that differs by release."""

FAMILIES: tuple[Family, ...] = (
    _family(
        WITH_FLAG,
        messages.write_req(_A, _B, flag="FLAG"),
        {_N: "batch_size", _M: "write_req_capacity", "FLAG": "flag"},
    ),
    _family("write-entries", messages.write_entry(_A, _B), {_N: "tokens", _M: "write_entry_capacity"}),
    _family("plan-lanes", messages.plan_lanes(_A, _B), {_N: "bs", _M: "write_req_capacity"}),
    _family("plan-batch", messages.plan_batch(_A), {_N: "bs", _PLAN_LIMIT: "limit"}),
    _family("token-ids", messages.scatter_batch(_A - 1), {_N: "rows", _BLOCK: "batch_block"}),
    _family(
        "write-offsets",
        messages.write_offsets_length(_A, _B),
        {_N: "write_offsets_len", _M: "write_req_capacity"},
    ),
    _family("negative-capacity", messages.negative_capacity("NAME", _A), {"NAME": "name", _N: "value"}),
    _family(
        "empty-plan",
        messages.plan_capacity("OTHER", "NAME", _A),
        {"OTHER": "owner", "NAME": "name", _N: "value"},
    ),
    _family("window-map", messages.window_without_map(), {}),
    _family(
        "verify-capacity",
        messages.verify_capacity_mismatch(_A, _B),
        {_N: "verify_capacity", _M: "plan_length"},
    ),
    _family("byte-sources", messages.too_many_sources(_A), {_N: "sources", _SOURCES: "limit"}),
    _family("not-contiguous", messages.not_contiguous("NAME"), {"NAME": "name"}),
    _family(
        "wrong-dtype",
        messages.wrong_dtype("NAME", "WANT", "GOT"),
        {"NAME": "name", "WANT": "want", "GOT": "got"},
    ),
    _family(
        "wrong-rank",
        messages.wrong_rank("NAME", _C, (_A, _B)),
        {"NAME": "name", str(_C): "rank", str((_A, _B)): "shape"},
    ),
    _family("wrong-length", messages.wrong_length("NAME", _A, _B), {"NAME": "name", _N: "want", _M: "got"}),
    _family(
        "wrong-device",
        messages.wrong_device("NAME", "OTHER", "WANT", "GOT"),
        {"NAME": "name", "OTHER": "reference", "WANT": "want", "GOT": "got"},
    ),
)

EXCEEDS, BROKEN_RULE, UNKNOWN = "exceeds", "broken-rule", "unknown-text"
"""Families of the patterns that all messages follow, and of texts that follow none."""

_EXCEEDS = re.compile(
    r"(?:[\w-]+\s+){0,4}?(?P<need_name>[\w.+]+(?:\s+count)?)\s*=\s*(?P<need>\d{1,18})\s+exceeds\s+"
    r"(?:[\w-]+\s+){0,4}?(?P<limit_name>[\w.]+)\s*=\s*(?P<limit>\d{1,18})"
)
_BROKEN_RULE = re.compile(
    r"(?P<name>[\w.\[\]]+(?:[ ][\w.\[\]]+)?)\s+must\s+(?P<rule>[^\n]{1,100}?),\s+got\s+(?P<got>[^\n\"\\]{1,60})"
)
_SHAPES = ((EXCEEDS, "exceeds", _EXCEEDS), (BROKEN_RULE, "must", _BROKEN_RULE))


def read(body: str) -> Match | None:
    """The known message whose text begins `body`, which stands without prefix; None where none does."""
    for family in FAMILIES:
        if family.cue in body:
            found = family.pattern.match(body)
            if found is not None:
                return _match(family.id, found)
    return None


def read_shape(body: str) -> Match | None:
    """A message that is not known by heart and says a need and a room, or a rule, as the known ones do."""
    for id, cue, pattern in _SHAPES:
        found = pattern.match(body) if cue in body else None
        if found is not None:
            return _match(id, found)
    return None


def find(text: str) -> Match | None:
    """The first known message that stands anywhere in a text, with or without its prefix."""
    found = [
        (match.start(), family.id, match)
        for family in FAMILIES
        if family.cue in text and (match := family.pattern.search(text)) is not None
    ]
    return _match(*min(found, key=lambda each: each[0])[1:]) if found else None


def _match(id: str, found: re.Match[str]) -> Match:
    numbers: dict[str, int] = {}
    words: dict[str, str] = {}
    for name, value in found.groupdict().items():
        if value is None:
            continue
        if re.fullmatch(_NUMBER, value):
            numbers[name] = int(value)
        else:
            words[name] = " ".join(value.split())
    return Match(id, f"{PREFIX} {' '.join(found[0].split())}", numbers, words)


def templates() -> dict[str, str]:
    """Text of each family with `...` for what varies."""
    return {family.id: family.template for family in FAMILIES}


def nearest_template(text: str) -> str | None:
    """The known message that a text is most like, by its words; None where they share too few."""
    wanted = _words(text)
    shares = []
    for template in templates().values():
        own = _words(template)
        shares.append((len(wanted & own) / max(len(wanted | own), 1), template))
    share, template = max(shares, key=lambda each: each[0])
    return template if share >= _LEAST_SHARE else None


# Words of both over words of either: one rare word of a long message is enough, none is not
_LEAST_SHARE = 0.07
_COMMON = {
    *("kv", "canary", "kv_canary", "cuda", "must", "be", "have", "on", "at", "in", "to", "the", "or", "if"),
    *("of", "over", "than", "this", "by", "and", "is", "when", "real", "most", "need", "got", "check"),
}


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z][a-z_]+", text.lower())) - _COMMON
