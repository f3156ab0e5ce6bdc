"""Parts of one rotated recording, replayed as one trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.source import Source
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import TraceReader, open_trace

SIZES = ("pool", "groups", "sources", "token_position_offset")


@dataclass(slots=True)
class Part:
    """One file of a recording; `offset` is the number of lines before it, -1 while it is not read yet."""

    path: str
    number: int
    offset: int = -1


@dataclass(kw_only=True, slots=True)
class Parts(Source):
    """Several files as one input; line numbers count on from file to file."""

    readers: list[tuple[Part, TraceReader]] = field(default_factory=list)

    @property
    def bad_lines(self) -> list[int]:
        """Lines that were skipped."""
        return [part.offset + line for part, reader in self.readers for line in reader.bad_lines]

    def bad_lines_to(self, last_line: int) -> list[int]:
        """Those of them that a run met which ended early at `last_line`."""
        return [line for line in self.bad_lines if line <= last_line]

    @property
    def truncated(self) -> int | None:
        """Line in which the last part ends, if it ends inside one."""
        part, reader = self.readers[-1]
        return part.offset + reader.truncated if reader.truncated is not None else None


@contextmanager
def open_parts(
    paths: Sequence[str], *, skip_bad_lines: bool = False, save_trace: str | None = None, **_: object
) -> Iterator[Source]:
    """Open the parts of one recording, which are in order. Takes what `open_source` takes.

    A part that is missing between two others becomes a gap. Part 1 begins as its header says, any other in the middle.

    Raises: InputError where a part has other sizes than the first, or can't be read.
    """
    with ExitStack() as stack:
        readers = [
            (path, stack.enter_context(open_trace(path, skip_bad_lines=skip_bad_lines))) for path in paths
        ]
        first = readers[0][1].header
        for path, reader in readers[1:]:
            _require_same(first, reader.header, path, paths[0])
        parts = [
            (Part(path, reader.header.continues.part if reader.header.continues else 1), reader)
            for path, reader in readers
        ]
        header = replace(first, continues=None) if parts[0][0].number == 1 else first
        name = " + ".join(paths)
        source = Parts(
            path=name,
            format=f"trace v1 in {len(paths)} parts",
            header=header,
            events=_chained(parts),
            details={"parts": list(paths)},
            readers=parts,
        )
        try:
            yield source
        except InputError as error:
            error.where = _place(error.where, name, parts)
            raise


def _require_same(first: ev.Header, other: ev.Header, path: str, first_path: str) -> None:
    for key in SIZES:
        if getattr(first, key) != getattr(other, key):
            raise InputError(f"its `{key}` is not that of {first_path}, of which it is a part", where=path)


def _chained(parts: Sequence[tuple[Part, TraceReader]]) -> Iterator[tuple[int, ev.Event]]:
    line, number = 0, parts[0][0].number - 1
    for part, reader in parts:
        part.offset = line
        if part.number != number + 1:
            yield line, ev.Gap(why=f"part {number + 1} is missing")
        number = part.number
        for own, event in reader:
            line = part.offset + own
            yield line, event
        line = max([line, *(part.offset + bad for bad in reader.bad_lines)])


def _place(where: str | None, name: str, parts: Sequence[tuple[Part, TraceReader]]) -> str | None:
    """The file and its line, for a line that was counted through."""
    line = (where or "").removeprefix(f"{name}:")
    if where == line or not line.isdigit():
        return where
    part = next(part for part, _ in reversed(parts) if 0 <= part.offset < int(line))
    return f"{part.path}:{int(line) - part.offset}"
