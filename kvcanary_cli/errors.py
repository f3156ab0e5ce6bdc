"""Exceptions that become messages. Anything else that escapes is a bug and exits 70."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kvcanary_cli.exits import Exit


class KvCanaryError(Exception):
    """A condition that a user can understand and act on.

    Args:
        message: one sentence with what was asked, what was found and the limit; no final period.
        where: `file` or `file:line` the message is about.
        path: JSON path inside that line, such as `$.slots[3]`.
        hint: what to do next, best a command that can be pasted.
    """

    code = "error"
    exit_code = Exit.INTERNAL

    def __init__(
        self, message: str, *, where: str | None = None, path: str | None = None, hint: str | None = None
    ) -> None:
        self.message = message
        self.where = where
        self.path = path
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.path, self.message) if part)


class InputError(KvCanaryError):
    """A file, or a value in it, can't be used."""

    code = "input"
    exit_code = Exit.USAGE


class UsageError(KvCanaryError):
    """The command line asks for something that does not fit together."""

    code = "usage"
    exit_code = Exit.USAGE


class MissingError(KvCanaryError):
    """The machine lacks what was explicitly asked for."""

    code = "environment"
    exit_code = Exit.ENVIRONMENT


class PhaseError(KvCanaryError):
    """A runtime was driven out of order: a bug of the caller, not of the user."""

    code = "internal"
    exit_code = Exit.INTERNAL


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None if none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
