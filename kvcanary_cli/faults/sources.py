"""Byte sources whose damage a hash can show."""

from __future__ import annotations

from kvcanary_cli.faults.stream import NotApplicable, Stream
from kvcanary_cli.trace.header import Header, Source


def hashed_sources(header: Header) -> list[Source]:
    """Byte sources of the full group whose bytes are hashed."""
    return [source for source in header.sources if source.group == "full" and source.hashed_bytes]


def need_bytes(stream: Stream) -> None:
    """Raise NotApplicable if no byte source of the full group is hashed."""
    if not hashed_sources(stream.header):
        raise NotApplicable("no byte source of the full group is hashed")
