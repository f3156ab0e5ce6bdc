"""From a pasted launch command, or a file that holds one, to the server's own words and its environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from kvcanary_cli.capacity.arguments import Arguments, Given, parse_words
from kvcanary_cli.capacity.flags import FlagTable
from kvcanary_cli.capacity.origin import Place
from kvcanary_cli.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# What ends a command for a shell; a redirection may be glued to its target
_ENDS = re.compile(r"(\||\|\||&|&&|;|\d?>>?.*|&>.*|<.*)")


def read_command(words: Sequence[str], table: FlagTable, place: Place) -> Arguments:
    """Arguments of a launch command, with or without the program in front of its flags.

    Words before the program are searched for environment assignments (`A=1 python …`, `docker run -e A=1 …`)
    and otherwise passed over. A pipe, a redirection or `;` ends the command.

    Raises: UsageError or InputError where there is no command, or the parser refuses a word.
    """
    if not words:
        raise place.error(
            "there is no launch command",
            hint="... --from-args -- python -m sglang.launch_server --model-path ...",
        )
    kept = _until_shell_word(list(words))
    start = _first_flag(kept, place)
    env = {}
    for word in kept[:start]:
        match = _ASSIGNMENT.fullmatch(word)
        if match is not None:
            env[match[1]] = Given(value=match[2].removesuffix(";"), spelled=match[1], place=place)
    return parse_words(kept[start:], table, place).with_env(env)


def read_args_file(path: str, table: FlagTable) -> Arguments:
    """Arguments of the launch command in a file, quoted as for a shell; `#` begins a comment.

    Raises: InputError with the line where a quote is opened and not closed, or where the file can't be read.
    """
    text = read_text(path)
    try:
        words = shlex.split(_joined(text), comments=True)
    except ValueError as error:
        raise InputError(
            "a quote or backslash begins here and does not end before the file does",
            where=f"{path}:{_open_line(text)}",
        ) from error
    if not words:
        raise InputError("the file holds no launch command", where=path)
    return read_command(words, table, Place(file=path))


def read_text(path: str) -> str:
    """A text file in UTF-8; InputError where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the file can't be read: {error.strerror or error}", where=path) from error
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start:,} is not UTF-8 text", where=path) from error
    except ValueError as error:
        # a NUL in the name: the operating system is never asked
        raise InputError(f"the file can't be read: {error}", where=path) from error


def _until_shell_word(words: list[str]) -> list[str]:
    """The words up to the shell's end of the command; assignments and `export` lines before it stay."""
    launch = _launch_end(words)
    for at in range(launch, len(words)):
        if _ENDS.fullmatch(words[at]):
            return words[:at]
        if words[at].endswith(";"):
            return [*words[:at], words[at].removesuffix(";")]
    return words


def _launch_end(words: list[str]) -> int:
    """Index behind the words that name the server program, 0 if it is not named."""
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        name = word.rsplit("/", 1)[-1]
        if (word == "sglang.launch_server" and before == "-m") or name == "launch_server.py":
            return at + 1
        if word == "serve" and before.rsplit("/", 1)[-1] == "sglang":
            return at + 1
    return 0


def _first_flag(words: list[str], place: Place) -> int:
    """Index of the server's first own word."""
    start = _launch_end(words)
    if start:
        return start
    while start < len(words) and _ASSIGNMENT.fullmatch(words[start]):
        start += 1
    if start < len(words) and not words[start].startswith("-"):
        raise place.error(
            f"`{words[start]}` starts no server: no `sglang.launch_server` and no `sglang serve` follows",
            hint="give the launch command, or only its flags",
        )
    return start


def _joined(text: str) -> str:
    """The text with lines that end in a backslash joined to the next, as a shell does."""
    return re.sub(r"\\\r?\n", "", text)


def _open_line(text: str) -> int:
    """Number of the line on which the quote stands that is still open at the end."""
    lines = text.splitlines()
    for at in range(len(lines) - 1, 0, -1):
        try:
            shlex.split(_joined("\n".join(lines[:at]) + "\n"), comments=True)
        except ValueError:
            continue
        return at + 1
    return 1
