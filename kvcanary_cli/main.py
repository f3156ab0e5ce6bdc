"""The `kvcanary` program: registration of commands, and the one place that turns errors into exit codes."""

from __future__ import annotations

import errno
import importlib
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from kvcanary_cli import __version__, output, settings
from kvcanary_cli.errors import InputError, KvCanaryError, UsageError
from kvcanary_cli.exits import Exit
from kvcanary_cli.report.text import name

COMMANDS = {
    "check-capacities": "kvcanary_cli.commands.check_capacities:check_capacities",
    "replay": "kvcanary_cli.commands.replay:replay",
    "inspect": "kvcanary_cli.commands.inspect:inspect",
    "explain": "kvcanary_cli.commands.explain:explain",
    "simulate": "kvcanary_cli.commands.simulate:simulate",
    "synth": "kvcanary_cli.commands.synth:synth",
    "plant": "kvcanary_cli.commands.plant:plant",
    "selftest": "kvcanary_cli.commands.selftest:selftest",
    "doctor": "kvcanary_cli.commands.doctor:doctor",
    "bench": "kvcanary_cli.commands.bench:bench",
    "scrub": "kvcanary_cli.commands.scrub:scrub",
    "audit": "kvcanary_cli.commands.audit:audit",
    "record-events": "kvcanary_cli.commands.record_events:record_events",
}
GROUPS = {
    "trace": (
        "Work on trace files.\n\nExample: kvcanary trace validate recorded.jsonl",
        {
            "validate": "kvcanary_cli.commands.trace_validate:validate",
            "cut": "kvcanary_cli.commands.trace_cut:cut",
            "minimise": "kvcanary_cli.commands.trace_minimise:minimise",
        },
    ),
}
"""Words that other commands stand behind: what `--help` says of each, and its commands."""
ALIASES = {"synthesize": "synth"}

EXIT_TEXT = {
    Exit.PASS: "done, nothing found",
    Exit.FINDINGS: "the thing examined is not in order",
    Exit.USAGE: "the command line or a file can't be used",
    Exit.ENVIRONMENT: "the machine lacks what was asked for",
    Exit.INCOMPLETE: "nothing found, but less checked than planned",
    Exit.INTERNAL: "a bug in kvcanary",
    Exit.INTERRUPTED: "stopped by Ctrl-C",
}


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What a full or failing disk says, whichever write meets it first."""


class InternalError(KvCanaryError):
    """An exception that is not ours, which is a bug, as the user sees it."""

    code = "internal"
    exit_code = Exit.INTERNAL


class InterruptedRun(KvCanaryError):
    """Ctrl-C before a report could be written."""

    code = "interrupted"
    exit_code = Exit.INTERRUPTED


def exit_table() -> str:
    """The exit codes as they stand under each `--help`."""
    rows = [f"  {int(code):>3}  {text}" for code, text in EXIT_TEXT.items()]
    # \b keeps Typer from joining the lines into a paragraph
    return "\n".join(["\b", "Exit codes:", *rows])


def _show_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"kvcanary {__version__}\n")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Audit the integrity of a paged KV cache."""


def build_app(names: Iterable[str] | None = None) -> typer.Typer:
    """The Typer app with the named commands, all of them by default; only these modules are imported."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog=exit_table())(_root)
    for command in (*COMMANDS, *GROUPS) if names is None else names:
        if command in GROUPS:
            _register_group(app, command)
        else:
            _register(app, command, command)
    for alias, command in ALIASES.items():
        if names is None or command in names:
            _register(app, alias, command, hidden=True)
    return app


def _register(app: typer.Typer, word: str, command: str, *, hidden: bool = False) -> None:
    app.command(word, epilog=exit_table(), hidden=hidden)(_load(COMMANDS[command]))


def _register_group(app: typer.Typer, word: str) -> None:
    about, commands = GROUPS[word]
    group = typer.Typer(
        no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=exit_table()
    )
    for command, place in commands.items():
        group.command(command, epilog=exit_table())(_load(place))
    app.add_typer(group, name=word, help=about)


def _load(place: str) -> Any:
    module, function = place.split(":")
    return getattr(importlib.import_module(module), function)


def _asked_for(argv: Sequence[str]) -> list[str] | None:
    """The command that is named, so that the others need not be imported; None for help and mistakes."""
    if argv and argv[0] == "--version":
        return []
    if not argv or argv[0].startswith("-"):
        return None
    command = ALIASES.get(argv[0], argv[0])
    return [command] if command in COMMANDS or command in GROUPS else None


def _asked_format(argv: Sequence[str]) -> output.Format | None:
    """The format a command line asks for, read without Typer because Typer may be what refuses it."""
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--format":
            found = following
        elif word.startswith("--format="):
            found = word.partition("=")[2]
    return output.Format(found) if found in list(output.Format) else None


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are written, never raised."""
    try:
        code = build_app(_asked_for(argv))(args=list(argv), prog_name="kvcanary", standalone_mode=False)
        if code == Exit.INTERRUPTED and not isinstance(code, Exit):
            # a plain 130 is Typer's for Ctrl-C; `emit` leaves with a member of Exit, after its report
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return _report(InterruptedRun("stopped before a report could be written"), argv)
    except Exception as error:
        if (not argv or list(argv) in [[group] for group in GROUPS]) and hasattr(error, "show"):
            # Typer's way to say that a bare `kvcanary`, or a bare group, gets the help on stderr
            error.show()
            return int(Exit.USAGE)
        if settings.is_debug() and not hasattr(error, "format_message"):
            traceback.print_exc()
        return _report(_as_ours(error, argv), argv)


def _report(error: KvCanaryError, argv: Sequence[str]) -> int:
    output.write_error(error, output_format=_asked_format(argv))
    return int(error.exit_code)


def _as_ours(error: Exception, argv: Sequence[str]) -> KvCanaryError:
    if isinstance(error, KvCanaryError):
        return error
    if hasattr(error, "format_message"):
        return _usage_error(error, argv)
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        output.abandon_stdout()
        return InputError(f"can't be written: {error.strerror}", where=name(error.filename or "stdout"))
    what = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "`KVCANARY_DEBUG=1` before the command shows where; a report with that text helps to fix it"
    return InternalError(f"a bug in kvcanary: {what}", hint=hint)


def _usage_error(error: Any, argv: Sequence[str]) -> UsageError:
    """Typer's refusal of a command line in our words; its classes are not public, so it's known by shape."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = re.sub(r"^Invalid value for ('[^']*'): ", r"\1: ", message)
    message = message[:1].lower() + message[1:]
    command = _asked_for(argv)
    if command and command[0] in GROUPS and len(argv) > 1 and argv[1] in GROUPS[command[0]][1]:
        command = [*command, argv[1]]
    return UsageError(message, hint=f"`{' '.join(['kvcanary', *(command or []), '--help'])}`")


def main() -> NoReturn:
    """Entry point of the program."""
    if hasattr(signal, "SIGPIPE"):
        # a reader that goes away ends the program silently, as it does every other Unix tool
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(run(sys.argv[1:]))
