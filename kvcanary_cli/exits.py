"""Exit codes of every command, in one place; `docs/exit-codes.md` explains them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the process returns; when several apply, `worst` picks one."""

    PASS = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    INCOMPLETE = 4
    INTERNAL = 70
    INTERRUPTED = 130


# A finding outweighs a gap, a gap outweighs a pass; what stopped the run outweighs both.
SEVERITY = (
    Exit.INTERRUPTED,
    Exit.INTERNAL,
    Exit.USAGE,
    Exit.ENVIRONMENT,
    Exit.FINDINGS,
    Exit.INCOMPLETE,
    Exit.PASS,
)


def worst(*codes: Exit) -> Exit:
    """The code to exit with when several apply; PASS when none is given."""
    return min(codes, key=SEVERITY.index, default=Exit.PASS)
