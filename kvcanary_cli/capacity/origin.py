"""Where a value came from: every input of an audit carries it into the report."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from kvcanary_cli.errors import InputError, KvCanaryError, UsageError


class Origin(StrEnum):
    """Who said so."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    LOG = "log"
    DEFAULT = "default"


class Input(NamedTuple):
    """A resolved input: its value, who gave it, and the flag, key or rule by name."""

    value: object
    origin: Origin
    source: str


class Place(NamedTuple):
    """Where words of a launch command were read: the command line, or a file (and line, where known)."""

    file: str | None = None
    line: int | None = None

    @property
    def origin(self) -> Origin:
        """FILE inside a file, else FLAG."""
        return Origin.FILE if self.file is not None else Origin.FLAG

    def error(self, message: str, hint: str | None = None) -> KvCanaryError:
        """The error class that fits the place: InputError in a file, UsageError on the command line."""
        if self.file is None:
            return UsageError(message, hint=hint)
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return InputError(message, where=where, hint=hint)

    def name(self, spelled: str) -> str:
        """`spelled` with the file it stands in, for the list of inputs."""
        return spelled if self.file is None else f"{self.file}: {spelled}"


COMMAND_LINE = Place()
