"""What a rule is, and what it says when it fires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from kvcanary_cli.capacity.changes import Change
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes

Severity = Literal["error", "warning", "info"]

When = Literal[
    "at start-up",
    "at first capture",
    "at the first step",
    "at the first long prompt",
    "at a full batch",
    "at the first sweep",
    "under load",
    "silently",
]
"""At which moment of a server's life a rule bites."""

ChangeSets = list[tuple[Change, ...]]
"""Sets of changes, each of which makes a rule hold; those of one set are made together."""


class Hit(NamedTuple):
    """A rule that fires.

    Args:
        text: what happens, in words.
        when: the moment at which it happens.
        server_message: the server's own text, word for word where it is known; None where it says nothing.
        value, need: what there is room for and what is asked, where the rule compares numbers.
        setting: the flag or variable that decides it.
    """

    text: str
    when: When
    server_message: str | None = None
    value: int | None = None
    need: int | None = None
    setting: str = ""


class Rule(NamedTuple):
    """One rule.

    Args:
        id: never reused; what `kvcanary explain` knows it by.
        severity: `error` where the server raises or checks the wrong memory, `warning` where it may, `info`
            where it depends on traffic alone.
        title: one line, without a final period.
        check: the hit, or None where the rule holds.
        changes: sets of changes that make the rule hold, the least intrusive first.
        code: of the capacity fault it belongs to, empty for none.
        capacity: the row of the report that it judges, empty for a row of its own.
        since, until: first and last release it applies to; None for no bound.
        needs_canary: whether it holds by itself where the launch says `--kv-canary none`.
        is_bound: whether it bounds a need by flags; where a workload is measured, that counts in its place.
    """

    id: str
    severity: Severity
    title: str
    check: Callable[[Setup, Sizes], Hit | None]
    changes: Callable[[Request, Setup, Sizes], ChangeSets]
    code: str = ""
    capacity: str = ""
    since: str | None = None
    until: str | None = None
    needs_canary: bool = True
    is_bound: bool = False

    def applies_to(self, version: str) -> bool:
        """Whether a release has what the rule is about."""
        release = _ordered(version)
        return (self.since is None or _ordered(self.since) <= release) and (
            self.until is None or release <= _ordered(self.until)
        )


class Finding(NamedTuple):
    """A rule that fired, with its hit."""

    rule: Rule
    hit: Hit


def no_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    """No flag makes the rule hold."""
    return []


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
