"""Options that mean the same in every command, declared once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.output import EmitOptions, Format
from kvcanary_cli.report.text import name

FormatOption = Annotated[
    Format,
    typer.Option(
        "--format", help="What stdout gets: a text report, JSON, JSON Lines, or GitHub annotations."
    ),
]
OutputOption = Annotated[
    str | None,
    typer.Option("--output", metavar="FILE", help="Also write the report to FILE as JSON; - is stdout."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print only the verdict line.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Print more of the body.")]
ExitZeroOption = Annotated[
    bool, typer.Option("--exit-zero", help="Exit 0 in place of 1 and 4; the report keeps its code.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat TIGHT and WARN as findings.")]
NoProgressOption = Annotated[bool, typer.Option("--no-progress", help="Print no progress on stderr.")]
NoTokensOption = Annotated[bool, typer.Option("--no-tokens", help="Leave token ids out of the report.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", metavar="auto|cpu|cuda[:N]", help="Where to run; auto takes a GPU if there is one."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="Threads of the CPU backend; all cores if not given."),
]
InputFormatOption = Annotated[
    str | None,
    typer.Option("--input-format", metavar="NAME", help="Format of the trace; by content if not given."),
]
BlockSizeOption = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        metavar="N",
        min=1,
        help="Tokens that a block id of a request trace names, where it does not say.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed; same seed, same bytes.")]


def emit_options(
    *,
    output_format: Format = Format.text,
    output: str | None = None,
    quiet: bool = False,
    verbose: bool = False,
    exit_zero: bool = False,
    strict: bool = False,
) -> EmitOptions:
    """The shared options as one value, checked before the work begins.

    Raises: InputError if `output` names a folder, or a file in a folder that doesn't exist.
    """
    if output is not None and output != "-":
        check_output(output)
    return EmitOptions(
        format=output_format, output=output, quiet=quiet, verbose=verbose, exit_zero=exit_zero, strict=strict
    )


def check_output(output: str, *, flag: str = "--output") -> None:
    """Refuse a file that can't be written before an hour of work is lost on it."""
    path = Path(output)
    if path.is_dir():
        raise InputError(f"`{flag}` needs a file, this is a folder", where=name(output))
    if not path.parent.is_dir():
        folder = name(path.parent)
        raise InputError(
            f"`{flag}` needs a file in a folder that exists, there is no folder {folder}",
            where=name(output),
            hint=f"`mkdir -p {folder}`",
        )


Named = tuple[str, str | None]
"""A flag, or the word of an argument, and the file that it names; None: it was not given."""


def refuse_overwriting(read: Iterable[Named], written: Iterable[Named]) -> None:
    """Refuse to write over a file that is read, or two results into one file.

    Standard streams and devices may be named twice. A file is the same by whatever name or link it is reached.

    Raises: UsageError that names both; also for a name that is empty.
    """
    taken = {place: flag for flag, path in read if (place := _identity(flag, path)) is not None}
    for flag, path in written:
        place = _identity(flag, path)
        if place is None:
            continue
        if place in taken:
            raise UsageError(
                f"`{flag}` would write over {path}, the file of `{taken[place]}`",
                hint=f"`{flag}` takes a file of its own",
            )
        taken[place] = flag


def _identity(flag: str, path: str | None) -> object | None:
    """What two names of one file have in common; None for what is no file of the disk."""
    if path == "":
        raise UsageError(f"the file name of `{flag}` is empty")
    if path is None or path == "-":
        return None
    try:
        if Path(path).is_char_device():
            return None
        # a hard link has a path of its own
        found = Path(path).stat()
    except (OSError, ValueError):
        return Path(path).absolute()
    return found.st_dev, found.st_ino
