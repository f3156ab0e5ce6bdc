"""The words of a launch command as flag values, by the rules of the server's own parser (argparse).

Unique prefixes are accepted, `--flag value` and `--flag=value` mean the same, the last occurrence wins.
Unlike the server, flags that the table does not know are kept and counted: a newer release may have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kvcanary_cli.capacity.flags import AmbiguousPrefixError, Flag, FlagTable, FlagValue
from kvcanary_cli.capacity.origin import Place
from kvcanary_cli.errors import nearest

_NOTHING: Mapping[str, Given] = MappingProxyType({})
# What a shell would have put a value in place of
_VARIABLE = re.compile(r"\$[\w{(@*#]|`")
_NUMBERS = frozenset({"int", "float", "human_readable_int"})
# argparse takes these for values and not for flags, as long as no flag looks like a number
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


class Given(NamedTuple):
    """A value that somebody gave: already of the flag's type, with its spelling and place."""

    value: FlagValue
    spelled: str
    place: Place


class Arguments(NamedTuple):
    """A launch command, read.

    Args:
        values: by the flag's first spelling.
        env: environment assignments in front of the command, as text.
        unknown: spellings that the table doesn't know, once each, in order.
    """

    values: Mapping[str, Given] = _NOTHING
    env: Mapping[str, Given] = _NOTHING
    unknown: tuple[str, ...] = ()

    def over(self, lower: Arguments) -> Arguments:
        """These arguments on top of `lower`: what both give is taken from here."""
        return Arguments(
            values={**lower.values, **self.values},
            env={**lower.env, **self.env},
            unknown=tuple(dict.fromkeys((*lower.unknown, *self.unknown))),
        )

    def with_env(self, env: Mapping[str, Given]) -> Arguments:
        """The same with more environment assignments, which win."""
        return self._replace(env={**self.env, **env})


def parse_words(words: Sequence[str], table: FlagTable, place: Place) -> Arguments:
    """Flag values of the words that follow `sglang.launch_server`.

    Raises: UsageError, or InputError inside a file, for what the server's parser refuses.
    """
    values: dict[str, Given] = {}
    unknown: dict[str, None] = {}
    rest = list(words)
    at = 0
    while at < len(rest):
        word = rest[at]
        if not _is_flag(word) and is_variable(word):
            # flags that the shell would put here
            unknown[word] = None
            at += 1
            continue
        if not _is_flag(word):
            raise place.error(_stray(word, rest[at - 1] if at else None))
        spelled, has_value, attached = word.partition("=")
        flag = _find(spelled, table, place)
        end = at + 1
        if not has_value:
            while end < len(rest) and not _is_flag(rest[end]) and _wants_more(flag, end - at - 1):
                end += 1
        found = [attached] if has_value else rest[at + 1 : end]
        at = end
        if flag is None:
            unknown[spelled] = None
        else:
            values[flag.name] = Given(
                value=_value(flag, spelled, found, has_value=bool(has_value), place=place),
                spelled=spelled,
                place=place,
            )
    return Arguments(values=values, unknown=tuple(unknown))


def is_variable(word: object) -> bool:
    """Whether a shell would put something else in place of a word, or of a part of it."""
    return isinstance(word, str) and _VARIABLE.search(word) is not None


def _is_flag(word: str) -> bool:
    """Whether argparse would take a word for a flag: a dash, no space, not a number, not a lone dash."""
    return (
        word.startswith("-")
        and len(word) > 1
        and (" " not in word or ("=" in word and " " not in word.partition("=")[0]))
        and _NEGATIVE_NUMBER.fullmatch(word) is None
    )


def _wants_more(flag: Flag | None, taken: int) -> bool:
    """Whether a flag takes another word after `taken`; an unknown one takes all words up to the next flag."""
    if flag is None or flag.takes == "list":
        return True
    return flag.takes in ("value", "optional") and taken < 1


def _find(spelled: str, table: FlagTable, place: Place) -> Flag | None:
    if not spelled.startswith("--"):
        hint = f"did you mean `-{spelled}`?" if table_has(table, f"-{spelled}") else None
        raise place.error(
            f"`{spelled}` is not a flag of the server, all of which begin with two dashes", hint=hint
        )
    if spelled == "--":
        raise place.error(
            "a second `--` stands inside the launch command", hint="write it once, before the command"
        )
    try:
        return table.find(spelled)
    except AmbiguousPrefixError as error:
        raise place.error(
            f"ambiguous option: {spelled} could match {', '.join(error.matches)}",
            hint="the server refuses it too; write the flag in full",
        ) from error


def table_has(table: FlagTable, spelled: str) -> bool:
    """Whether a spelling or unique prefix is known, without complaint."""
    try:
        return table.find(spelled) is not None
    except AmbiguousPrefixError:
        return False


def _value(flag: Flag, spelled: str, words: list[str], *, has_value: bool, place: Place) -> FlagValue:
    if flag.takes == "switch":
        if has_value:
            raise place.error(f"`{spelled}` is a switch and takes no value, found `{words[0]}`")
        return not spelled.startswith("--no-")
    if not words:
        if flag.takes == "optional":
            return True
        raise place.error(f"`{spelled}` needs {'at least one value' if flag.takes == 'list' else 'a value'}")
    variable = next((word for word in words if is_variable(word)), None)
    if variable is not None and (flag.type in _NUMBERS or flag.choices):
        return variable
    try:
        converted = [flag.convert(word) for word in words]
    except ValueError as error:
        raise place.error(f"`{spelled}` {error}") from error
    return tuple(converted) if flag.takes == "list" else converted[0]


def _stray(word: str, before: str | None) -> str:
    after = f" after `{before}`" if before is not None else ""
    return f"`{word}`{after} is neither a flag nor the value of one"


def closest_flag(spelled: str, table: FlagTable) -> str | None:
    """The known flag that an unknown one may have been meant for."""
    return nearest(spelled, table.spellings())
