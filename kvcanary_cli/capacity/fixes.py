"""Sets of changes under which a launch passes, found by solving and proven by running the audit again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcanary_cli.capacity.changes import Change, canary_off
from kvcanary_cli.capacity.features import SWEEP
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import Finding, Severity
from kvcanary_cli.capacity.rules import find, of_severity
from kvcanary_cli.capacity.setup import resolve
from kvcanary_cli.capacity.sizes import derive
from kvcanary_cli.errors import KvCanaryError

# Sets of changes on top of each other: one a rule, and some more where a change brings the next rule up
_MOST_STEPS = 12
_MOST_FIXES = 6
# Launches that are tried before the search takes what it has
_MOST_TRIED = 400

Changes = tuple[Change, ...]


class Fix(NamedTuple):
    """Changes that together make the whole audit pass."""

    changes: Changes

    @property
    def note(self) -> str:
        """What is special of a single change's value; nothing for several."""
        return self.changes[0].note if len(self.changes) == 1 else ""


def solve(request: Request, *severities: Severity) -> list[Fix]:
    """Fixes of a launch that fails, those with the fewest changes first; every one was tried out.

    Args:
        severities: of the rules that have to hold afterwards.
    """
    search = _Search(request, severities)
    found: dict[frozenset[tuple[str, str, bool]], Changes] = {}
    for changes in search.run((), 0):
        least = search.least(changes)
        found.setdefault(frozenset((c.flag, c.value, c.is_removal) for c in least), least)
    ordered = sorted(found.values(), key=len)
    if not ordered and "warning" not in severities:
        # no setting makes the canary work with this launch
        sweeps = (Change(flag=SWEEP, value="0"),) if SWEEP in request.arguments.values else ()
        ordered = [off for off in [(canary_off(), *sweeps)] if search.passes(off)]
    return [Fix(changes=fix) for fix in ordered[:_MOST_FIXES]]


def apply(request: Request, changes: Changes) -> Request:
    """The launch with changes made, the way a user would paste them."""
    words = [word for change in changes for word in change.words]
    env = {change.flag: change.value for change in changes if change.is_env}
    return request.with_changes(words, env, [change.flag for change in changes if change.is_removal])


class _Search:
    """Depth first: the changes of the first rule that fails, on top of those made before."""

    def __init__(self, request: Request, severities: tuple[Severity, ...]) -> None:
        self._request = request
        self._severities = severities
        self._tried: dict[Changes, bool] = {}

    def run(self, made: Changes, steps: int) -> Iterator[Changes]:
        """Sets of changes that pass and begin with those made."""
        if made in self._tried or len(self._tried) >= _MOST_TRIED:
            return
        self._tried[made] = True
        changed = apply(self._request, made)
        try:
            setup = resolve(changed)
        except KvCanaryError:
            # the server would refuse this change for another reason
            return
        sizes = derive(setup)
        failing = of_severity(find(setup, sizes), *self._severities)
        if not failing:
            yield made
        elif steps < _MOST_STEPS:
            for more in failing[0].rule.changes(changed, setup, sizes):
                together = _joined(made, more)
                if together is not None:
                    yield from self.run(together, steps + 1)

    def passes(self, changes: Changes) -> bool:
        """Whether the launch passes with some changes."""
        return failing_with(self._request, changes, *self._severities) == []

    def least(self, changes: Changes) -> Changes:
        """The changes without those that others have made needless."""
        for change in changes:
            fewer = tuple(kept for kept in changes if kept != change)
            if fewer and len(changes) > 1 and self.passes(fewer):
                return self.least(fewer)
        return changes


def failing_with(request: Request, changes: Changes, *severities: Severity) -> list[Finding] | None:
    """What still fires with some changes made; None where the server would refuse them."""
    try:
        setup = resolve(apply(request, changes))
    except KvCanaryError:
        return None
    return of_severity(find(setup, derive(setup)), *severities)


def _joined(made: Changes, more: Changes) -> Changes | None:
    """Earlier changes with more behind them, which replace those of the same flag; None if nothing is new."""
    flags = {change.flag for change in more}
    kept = tuple(change for change in made if change.flag not in flags)
    return None if all(change in made for change in more) else (*kept, *more)
