"""Find the canary's lines in a log of any size: blocks of bytes, one substring search, then the patterns.

Nothing of the log is kept but a few kilobytes around each place, and one example of each kind of message.
"""

from __future__ import annotations

import gzip
import itertools
import re
import sys
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, NamedTuple, cast

from kvcanary_cli.errors import InputError
from kvcanary_cli.explain import families, violations

GZIP_MAGIC = b"\x1f\x8b"
BLOCK_BYTES = 1 << 20
# What may belong to a message behind its first word, and the time and rank before it
AFTER_BYTES, BEFORE_BYTES = 2048, 512
# A message broken in the middle of a word is put together from this many lines
JOINED_LINES, JOINED_BYTES = 4, 600
# Tries in a row that come to nothing, after which a log is taken for one whose lines are whole
JOIN_TRIES = 1000

_NEEDLE = b"canary"
_STARTS = (b"kv-", b"kv_")
_COLOUR = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033|#033)\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"kv-canary\s*:\s*|kv_canary\s+violation\s*:\s*")
_NAME_IN_BRACES = re.compile(r"=\{[A-Za-z_]|\bgot \{[A-Za-z_]|: \{[A-Za-z_]")
# A traceback shows the line that raises: the text with names in braces, or in quotes behind a call
_SOURCE_LINE = re.compile(r"""(?:raise\s+\w+\(|^\s*)[rf]*["']$""")


class Place(NamedTuple):
    """A place where a word of the canary stands.

    Args:
        line: 1-based.
        data: bytes around it; the line begins at `begin`, the word at `start`, its line ends at `end`.
    """

    line: int
    data: bytes
    begin: int
    start: int
    end: int

    @property
    def before(self) -> str:
        """The line up to the word."""
        return self.data[self.begin : self.start].decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """The line from the word on."""
        return self.data[self.start : self.end].decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        """The line from the word on, and a few lines after it, without space around them."""
        text = self.data[self.start : self.start + JOINED_BYTES].decode("utf-8", "replace")
        return [line.strip() for line in _plain(text).split("\n")[:JOINED_LINES]]


class Hit(NamedTuple):
    """A line of the canary: a message, a violation, or with neither a text that is not known."""

    line: int
    text: str
    message: families.Match | None = None
    violation: violations.Violation | None = None


class Scan(NamedTuple):
    """One pass over a log.

    `lines` and `others` are filled while `hits` is consumed: the number of lines, and up to `MAX_OTHERS` lines
    that name a canary and hold no message.
    """

    hits: Iterator[Hit]
    others: list[str]
    lines: list[int]


MAX_OTHERS = 20
_LEAST_WORDS = 4


def scan_file(path: str) -> Scan:
    """The canary's lines of a log; `-` is standard input, gzip is unpacked by its content.

    Raises: InputError, while hits are consumed, for a file that can't be read.
    """
    others: list[str] = []
    lines = [0]
    return Scan(_hits_of_file(path, others, lines), others, lines)


def scan_text(text: str) -> list[Hit]:
    """The canary's lines of a pasted text; without any prefix, the first message that stands in it."""
    places = _places(iter([text.encode("utf-8", "replace")]), [], [0])
    reader = _Reader()
    hits = [hit for place in places if (hit := reader.read(place)) is not None]
    if not hits:
        plain = _plain(text)
        message = families.find(plain)
        violation = violations.read_violation(plain) if message is None else None
        if message is not None or violation is not None:
            hits.append(Hit(1, plain, message, violation))
    return hits


def has_prefix(text: str) -> bool:
    """Whether a text holds the beginning of a message."""
    return _PREFIX.search(_plain(text)) is not None


def is_prose(text: str) -> bool:
    """Whether words are a text and no mistyped code: several of them, or a number that is given a name."""
    return len(text.split()) >= _LEAST_WORDS or "=" in text


def _hits_of_file(path: str, others: list[str], lines: list[int]) -> Iterator[Hit]:
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed", where="<stdin>")
        yield from _hits("<stdin>", sys.stdin.buffer, others, lines)
        return
    try:
        with open(path, "rb") as file:
            yield from _hits(path, file, others, lines)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _hits(name: str, stream: BinaryIO, others: list[str], lines: list[int]) -> Iterator[Hit]:
    reader = _Reader()
    for place in _places(_blocks(name, stream), others, lines):
        hit = reader.read(place)
        if hit is not None:
            yield hit


def _blocks(name: str, stream: BinaryIO) -> Iterator[bytes]:
    """The stream in blocks, unpacked."""
    try:
        first = stream.read(BLOCK_BYTES)
        if first.startswith(GZIP_MAGIC):
            from kvcanary_cli.trace.archives import Joined  # deferred: only packed logs need it

            packed = gzip.GzipFile(fileobj=cast(BinaryIO, Joined(first, stream)), mode="rb")
            while block := packed.read(BLOCK_BYTES):
                yield block
            return
        while first:
            yield first
            first = stream.read(BLOCK_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(name, error) from None


def _unreadable(path: str, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError("no such file", where=path)
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"the file can't be read: {reason}", where=repr(path)[1:-1])


def _places(blocks: Iterator[bytes], others: list[str], lines: list[int]) -> Iterator[Place]:
    """Each place with `kv-canary` or `kv_canary`, in order; every place once."""
    kept, done, line = b"", 0, 1  # bytes kept, how far they were searched, line number at `done`
    is_last = False
    while not is_last:
        block = next(blocks, None)
        is_last = block is None
        data = kept + (block or b"")
        # the end of a block may cut a message: it is searched together with the next one
        limit = len(data) if is_last else max(len(data) - AFTER_BYTES, done)
        at = data.find(_NEEDLE, done)
        while 0 <= at < limit:
            line += data.count(b"\n", done, at)
            done = at
            place = _place(data, at, line)
            if data[at - 3 : at] in _STARTS:
                yield place
            elif len(others) < MAX_OTHERS:
                others.append(place.before + place.text)
            at = data.find(_NEEDLE, at + 1)
        line += data.count(b"\n", done, limit)
        cut = max(limit - BEFORE_BYTES, 0)
        kept, done = data[cut:], limit - cut
        lines[0] = line if data and not data.endswith(b"\n") else line - 1


def _place(data: bytes, at: int, line: int) -> Place:
    start = at - 3 if data[at - 3 : at] in _STARTS else at
    first = max(start - BEFORE_BYTES, 0)
    begin = max(data.rfind(b"\n", first, start) + 1, first)
    end = data.find(b"\n", at, start + AFTER_BYTES)
    return Place(line, data, begin, start, end if end >= 0 else start + AFTER_BYTES)


class _Reader:
    """Reads what stands at places; remembers how often lines were put together in vain."""

    def __init__(self) -> None:
        self._tries = JOIN_TRIES

    def read(self, place: Place) -> Hit | None:
        """The line; None for one that is no message: a flag, a path, a line of source code."""
        text = _plain(place.text)
        prefix = _PREFIX.match(text)
        if prefix is None or _is_source(place, text):
            return None
        first = text[prefix.end() :].rstrip()
        if prefix[0].startswith("kv_"):
            violation = violations.read_violation(first)
            return Hit(place.line, f"{violations.PREFIX} {first}", violation=violation)
        message = _read(first)
        if message is None or _lacks_flag(message):
            message = self._read_joined(place, prefix.end()) or message or families.read_shape(first)
        return Hit(place.line, f"{families.PREFIX} {first}" if message is None else message.text, message)

    def _read_joined(self, place: Place, skip: int) -> families.Match | None:
        """A message that a terminal or a log broke into several lines, at a space or within a word."""
        if self._tries == 0:
            return None
        head, *rest = place.lines
        found = [each for text in _joined([head[skip:], *rest]) if (each := families.read(text)) is not None]
        message = min(found, key=_lacks_flag, default=None)
        self._tries = JOIN_TRIES if message is not None else self._tries - 1
        return message


def _joined(lines: list[str]) -> Iterator[str]:
    """Lines put together in each way there is: a break took the place of a space or stands within a word."""
    if len(lines) == 1:
        return
    for glues in itertools.product((" ", ""), repeat=len(lines) - 1):
        yield lines[0] + "".join(glue + line for glue, line in zip(glues, lines[1:], strict=True))


def _lacks_flag(message: families.Match) -> bool:
    """Whether a message names a flag in full, and this one was cut before it."""
    return message.family == families.WITH_FLAG and "flag" not in message.words


def _is_source(place: Place, text: str) -> bool:
    """Whether a line is source code that a traceback shows, and not the message that it makes."""
    if place.data[place.start - 1 : place.start] in (b'"', b"'"):
        return _SOURCE_LINE.search(_plain(place.before)) is not None
    return "{" in text and _NAME_IN_BRACES.search(text) is not None


def _plain(text: str) -> str:
    """Text without colour codes."""
    is_coloured = "\x1b" in text or "\\" in text or "#033" in text
    return _COLOUR.sub("", text) if is_coloured else text


@lru_cache(maxsize=1024)
def _read(first: str) -> families.Match | None:
    return families.read(first)
