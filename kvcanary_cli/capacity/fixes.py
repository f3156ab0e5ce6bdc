"""Sets of changes under which a launch passes, found by solving and proven by running the audit again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcanary_cli.capacity.changes import Change
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rules import errors, find
from kvcanary_cli.capacity.setup import resolve
from kvcanary_cli.capacity.sizes import derive
from kvcanary_cli.errors import KvCanaryError

# One change a rule, and one more where a change brings the next rule up
_MOST_CHANGES = 5
_MOST_FIXES = 6


class Fix(NamedTuple):
    """Changes that together make the whole audit pass."""

    changes: tuple[Change, ...]

    @property
    def note(self) -> str:
        """What is special of a single change's value; nothing for several."""
        return self.changes[0].note if len(self.changes) == 1 else ""


def solve(request: Request) -> list[Fix]:
    """Fixes of a launch that fails, those with the fewest changes first; every one was tried out."""
    found = {frozenset((change.flag, change.value) for change in fix): fix for fix in _search(request, ())}
    ordered = sorted(found.values(), key=len)
    return [Fix(changes=fix) for fix in ordered[:_MOST_FIXES]]


def apply(request: Request, changes: tuple[Change, ...]) -> Request:
    """The launch with changes made, the way a user would paste them."""
    words = [word for change in changes for word in change.words]
    return request.with_changes(words, {change.flag: change.value for change in changes if change.is_env})


def _search(request: Request, made: tuple[Change, ...]) -> Iterator[tuple[Change, ...]]:
    changed = apply(request, made)
    try:
        setup = resolve(changed)
    except KvCanaryError:
        # the server would refuse this change for another reason
        return
    sizes = derive(setup)
    failing = errors(find(setup, sizes))
    if not failing:
        yield made
        return
    if len(made) == _MOST_CHANGES:
        return
    for change in failing[0].rule.changes(changed, setup, sizes):
        if all(earlier.flag != change.flag for earlier in made):
            yield from _search(request, (*made, change))
