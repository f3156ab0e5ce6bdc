"""Reading one launch: every value that is looked up is noted with its origin, every missing one collected."""

from __future__ import annotations

from kvcanary_cli.capacity.arguments import Given, is_variable
from kvcanary_cli.capacity.flags import FlagValue
from kvcanary_cli.capacity.numbers import MAX_COUNT, parse_int, parse_switch
from kvcanary_cli.capacity.origin import COMMAND_LINE, Input, Origin, Place
from kvcanary_cli.capacity.request import Request

# A model that is not known is like one that is not in the table
_MAY_BE_UNKNOWN = ("--model-path",)


class Inputs:
    """The inputs of one audit as they are resolved, by name, in order."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.noted: dict[str, Input] = {}
        self.missing: list[str] = []

    def note(self, name: str, value: object, origin: Origin, source: str) -> None:
        """Keep a value with who gave it."""
        self.noted[name] = Input(value=value, origin=origin, source=source)

    def default(self, name: str, value: object, source: str) -> None:
        """Keep a value that nobody gave; `source` says where it comes from."""
        self.note(name, value, Origin.DEFAULT, source)

    def lack(self, what: str) -> None:
        """Note that an input is missing; `what` names it and the flags that give it."""
        self.missing.append(what)

    def given(self, flag: str) -> Given | None:
        """What the launch gives for a flag.

        Raises: UsageError or InputError for a shell variable: what is looked up matters.
        """
        given = self.request.arguments.values.get(flag)
        if given is not None and flag not in _MAY_BE_UNKNOWN and is_variable(given.value):
            raise given.place.error(
                f"`{given.spelled}` is `{given.value}`, a shell variable whose value is not known here",
                hint=f"write the value in its place, or give `{given.spelled}` again after `--from-args --`",
            )
        return given

    def beats_log(self, flag: str) -> bool:
        """Whether a flag is given outside of the config, whose flags a start-up log beats."""
        given, config = self.given(flag), self.request.config
        return given is not None and (config is None or given.place.file != config.path)

    def place(self, *flags: str) -> Place:
        """Where the first given of these flags stands; the command line if none is."""
        for flag in flags:
            given = self.given(flag)
            if given is not None:
                return given.place
        return COMMAND_LINE

    def integer(
        self,
        name: str,
        flag: str,
        *,
        low: int | None = None,
        default: int | None = None,
        source: str = "server",
    ) -> int | None:
        """An integer flag inside [low, 2**31 - 1], or the default; noted unless it is None."""
        given = self.given(flag)
        if given is None:
            if default is not None:
                self.default(name, default, source)
            return default
        value = as_int(given)
        check_range(given, value, low=low)
        self.note(name, value, given.place.origin, given.place.name(given.spelled))
        return value

    def count(self, name: str, flag: str, *, default: int) -> int:
        """A flag that is at least 1, or the default."""
        value = self.integer(name, flag, low=1, default=default)
        return default if value is None else value

    def text(self, name: str, flag: str, *, default: str | None) -> str | None:
        """A flag's word, or the default; noted unless it is None."""
        given = self.given(flag)
        if given is None:
            if default is not None:
                self.default(name, default, "server")
            return default
        self.note(name, given.value, given.place.origin, given.place.name(given.spelled))
        return str(given.value)

    def is_on(self, flag: str) -> bool:
        """Whether a switch is given; not noted."""
        given = self.given(flag)
        return given is not None and given.value is True

    def switch(self, name: str, flag: str) -> bool:
        """Whether a switch is given; noted, off by default."""
        given = self.given(flag)
        if given is None:
            self.default(name, False, "server")
            return False
        self.note(name, given.value, given.place.origin, given.place.name(given.spelled))
        return given.value is True

    def env_switch(self, name: str, variable: str) -> bool:
        """A boolean environment variable in front of the command; off by default."""
        given = self.request.arguments.env.get(variable)
        if given is None:
            self.default(name, False, "server")
            return False
        try:
            value = parse_switch(str(given.value))
        except ValueError as error:
            raise given.place.error(f"`{variable}` {error}") from error
        self.note(name, value, Origin.ENVIRONMENT, given.place.name(variable))
        return value

    def env_count(self, name: str, variable: str, *, default: int) -> int:
        """A positive integer variable in front of the command."""
        given = self.request.arguments.env.get(variable)
        if given is None:
            self.default(name, default, "server")
            return default
        try:
            value = parse_int(str(given.value))
        except ValueError as error:
            raise given.place.error(f"`{variable}` {error}") from error
        check_range(given, value, low=1)
        self.note(name, value, Origin.ENVIRONMENT, given.place.name(variable))
        return value


def as_int(given: Given) -> int:
    """The value of an integer flag, which the parser has made one."""
    if isinstance(given.value, bool) or not isinstance(given.value, int):
        raise TypeError(f"{given.spelled} is not an integer flag")
    return given.value


def check_range(given: Given, value: FlagValue, *, low: int | None) -> None:
    """Refuse a number below `low` or above what the server's tables can count."""
    if not isinstance(value, int | float):
        return
    if value > MAX_COUNT or value < -MAX_COUNT:
        raise given.place.error(f"`{given.spelled}` is {value:,}, the server counts to {MAX_COUNT:,}")
    if low is not None and value < low:
        raise given.place.error(f"`{given.spelled}` is {value:,}, it must be at least {low:,}")
