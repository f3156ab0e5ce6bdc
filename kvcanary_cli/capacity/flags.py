"""The server's flags: spellings, arity, types; lookup by exact name or unique prefix, as argparse does it."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kvcanary_cli.capacity.numbers import parse_float, parse_human_int, parse_int
from kvcanary_cli.capacity.tables import Version, read_table

PHASELESS_GRAPH_FLAGS = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
}
"""Spellings that older releases accept, and the flag of this release that they mean."""

PIECEWISE_FLAGS = {
    "--piecewise-cuda-graph-max-tokens": "--cuda-graph-max-bs-prefill",
    "--piecewise-cuda-graph-tokens": "--cuda-graph-bs-prefill",
}
"""The same for the prefill graph, which older releases call piecewise."""
_PREFILL_BACKEND = "--cuda-graph-backend-prefill"

FlagValue = str | int | float | bool | tuple[int | float | str, ...]


class Flag(NamedTuple):
    """One flag.

    Args:
        name: its first spelling, under which values are kept.
        takes: `switch`, `value`, `list` (one or more words) or `optional` (none or one word).
        type: of each word, as the server's parser names it.
        choices: accepted words, empty for any.
    """

    name: str
    takes: str
    type: str
    choices: tuple[str, ...]

    def convert(self, word: str) -> str | int | float:
        """One word as the flag's type; ValueError with a phrase that follows the flag's name."""
        if self.choices and word not in self.choices:
            raise ValueError(f"takes {', '.join(self.choices)}, found `{word}`")
        if self.type == "int":
            return parse_int(word)
        if self.type == "float":
            return parse_float(word)
        if self.type == "human_readable_int":
            return parse_human_int(word)
        return word


class AmbiguousPrefixError(Exception):
    """An abbreviation fits several spellings; `matches` in alphabetical order."""

    def __init__(self, matches: list[str]) -> None:
        self.matches = matches
        super().__init__(", ".join(matches))


class FlagTable:
    """All spellings of one release."""

    def __init__(self, spellings: dict[str, Flag]) -> None:
        self._spellings = spellings

    def spellings(self) -> list[str]:
        """Every spelling there is."""
        return list(self._spellings)

    def find(self, spelled: str) -> Flag | None:
        """The flag that `spelled` means, exactly or as a unique prefix; None if none starts so.

        Raises: AmbiguousPrefixError where several spellings start so, be it two of the same flag.
        """
        exact = self._spellings.get(spelled)
        if exact is not None:
            return exact
        matches = [known for known in self._spellings if known.startswith(spelled)]
        if len(matches) > 1:
            raise AmbiguousPrefixError(sorted(matches))
        return self._spellings[matches[0]] if matches else None


@cache
def flag_table(version: Version) -> FlagTable:
    """The flags of 0.5.23 with the spellings that an older release still accepts."""
    spellings: dict[str, Flag] = {}
    for row in read_table("flags"):
        names = row["flags"].split(" ")
        flag = Flag(
            name=names[0],
            takes=row["takes"],
            type=row["type"],
            choices=tuple(row["choices"].split(",")) if row["choices"] else (),
        )
        for name in names:
            spellings[name] = flag
    if version.phaseless_graph_flags:
        for old, new in (PHASELESS_GRAPH_FLAGS | PIECEWISE_FLAGS).items():
            spellings[old] = spellings[new]
        backend = spellings[_PREFILL_BACKEND]
        spellings[_PREFILL_BACKEND] = backend._replace(choices=(*backend.choices, "tc_piecewise"))
    return FlagTable(spellings)


def is_switch(table: FlagTable, spelled: str) -> bool:
    """Whether a spelling or unique prefix is that of a switch; False for what the table doesn't know."""
    try:
        flag = table.find(spelled)
    except AmbiguousPrefixError:
        return False
    return flag is not None and flag.takes == "switch"
