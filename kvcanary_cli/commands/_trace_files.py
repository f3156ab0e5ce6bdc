"""What the commands that write a changed trace share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvcanary_cli.commands._options import check_output, refuse_overwriting
from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:  # costs --help a quarter of a second
    from kvcanary_cli.trace.events import Event, Header, Note


def check_target(output: str | None, source: str) -> str:
    """The file that gets the trace. Raises: UsageError for none, or for the one that is read."""
    if not output:
        raise UsageError("the trace needs a file to go to, none was given", hint="`--output smaller.jsonl`")
    if output == "-":
        return output
    check_output(output)
    refuse_overwriting([("FILE", source)], [("--output", output)])
    return output


def write_trace(output: str, header: Header, events: Iterable[Event]) -> None:
    """Write a trace."""
    from kvcanary_cli.trace.writer import TraceWriter

    with TraceWriter(output, header) as writer:
        for event in events:
            writer.write(event)


def note(text: str) -> Note:
    """A line that readers skip."""
    from kvcanary_cli.trace.events import Note

    return Note(text=text)
