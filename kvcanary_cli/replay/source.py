"""What a replay reads: a trace v1, or a request trace run through the scheduler model on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvcanary_cli.errors import UsageError
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.formats import TRACE_V1, known_format, sniff
from kvcanary_cli.trace.reader import TraceReader, open_trace
from kvcanary_cli.trace.writer import TraceWriter


@dataclass(kw_only=True, slots=True)
class Source:
    """An open input of a replay.

    Attributes:
        path: name for messages.
        format: what the file is, in words.
        header, events: as a trace v1 gives them.
        reader: the trace's reader, None for a model's output.
        details: further facts for the report.
        limited: what the user had the model leave out.
        keep: gets every event that the replay has applied; reading ahead of it does not count.
    """

    path: str
    format: str
    header: ev.Header
    events: Iterator[tuple[int, ev.Event]]
    reader: TraceReader | None = None
    details: dict[str, Any] = field(default_factory=dict)
    limited: dict[str, int] = field(default_factory=dict)
    keep: Callable[[ev.Event], object] = lambda event: None

    @property
    def bad_lines(self) -> list[int]:
        """Lines that were skipped."""
        if self.reader is not None:
            return list(self.reader.bad_lines)
        return list(self.details.get("bad_lines", ()))

    def bad_lines_to(self, last_line: int) -> list[int]:
        """Those of them that a run met which ended early at `last_line`: a device reads ahead of where it stands."""
        if self.reader is None:
            return self.bad_lines  # of a request trace, whose lines are others than those of the events
        return [line for line in self.bad_lines if line <= last_line]

    @property
    def truncated(self) -> int | None:
        """Line in which the trace ends, if it ends inside one."""
        return self.reader.truncated if self.reader else None

    def describe(self) -> dict[str, Any]:
        """What the report says of the input."""
        return {"path": self.path, "format": self.format, **self.details}


@contextmanager
def open_source(
    path: str,
    *,
    skip_bad_lines: bool = False,
    limit_requests: int | None = None,
    save_trace: str | None = None,
    seed: int = 0,
    scheduler: str | None = None,
    capacities: str | None = None,
    input_format: str | None = None,
    block_size: int | None = None,
) -> Iterator[Source]:
    """Open a trace or a request trace, recognised by content unless its format is named.

    Args:
        skip_bad_lines: go on after lines that can't be read, and count them.
        limit_requests: requests that the model schedules; a trace v1 is cut by the replay itself.
        save_trace: file that gets the model's events.
        seed: of the model.
        scheduler, capacities: the modelled server; a trace v1 has been served already.
        input_format: name of the file's format; None: by content.
        block_size: tokens that a block id of a request trace names, where it does not say.

    Raises:
        InputError: the file can't be used.
        UsageError: `save_trace` or `block_size` with a trace v1, or a format that is not known.
    """
    kind = sniff(path) if input_format is None else known_format(input_format)
    if kind == TRACE_V1:
        if scheduler is not None:
            raise UsageError(f"`--scheduler` serves a request trace, {path} is a trace v1 already")
        if block_size is not None:
            raise UsageError(
                f"`--block-size` is for request traces, {path} is a trace v1, which has its page size in its header"
            )
        if save_trace is not None:
            raise UsageError(
                f"`--save-trace` keeps what the model makes of a request trace, {path} is a trace v1 already"
            )
        reader = open_trace(path, skip_bad_lines=skip_bad_lines)
        yield Source(path=path, format="trace v1", header=reader.header, events=iter(reader), reader=reader)
        return
    from kvcanary_cli.sim.run import simulate_file  # deferred: a trace v1 needs no model

    model = simulate_file(
        path,
        kind,
        limit_requests=limit_requests,
        skip_bad_lines=skip_bad_lines,
        block_size=block_size,
        seed=seed,
        scheduler=scheduler,
        capacities=capacities,
    )
    reached = limit_requests is not None and model.details["requests"] == limit_requests

    def source(events: Iterator[tuple[int, ev.Event]]) -> Source:
        return Source(
            path=path,
            format=model.format,
            header=model.header,
            events=events,
            details=model.details,
            limited={"requests": limit_requests} if reached and limit_requests is not None else {},
        )

    if save_trace is None:
        yield source(_numbered(model.events))
        return
    with TraceWriter(save_trace, model.header) as writer:
        opened = source(_numbered(model.events))
        opened.keep = writer.write
        yield opened


def _numbered(events: Iterator[ev.Event]) -> Iterator[tuple[int, ev.Event]]:
    """Events with the line that each would have in a file, the header being line 1."""
    yield from enumerate(events, start=2)
