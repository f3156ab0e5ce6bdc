"""What the rules share: where an event stands, how a finding is made, how a hash is written."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.kvevents.events import Source
from kvcanary_cli.kvevents.findings import Finding, Place


def hex_hash(found: int) -> str:
    """A hash as reports write it."""
    return f"0x{found:016x}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """The batch that is looked at."""

    source: Source
    place: Place
    is_certain: bool

    def finding(
        self, code: str, text: str, *, group: int | None, medium: str, hash: int | None, blocks: int = 1
    ) -> Finding:
        """A finding in this batch; those that rest on what was cached before are certain where batches are numbered."""
        rests = code in ("S01", "S03")
        return Finding(
            code=code,
            source=self.source,
            group=group,
            medium=medium,
            hash=hash,
            blocks=blocks,
            place=self.place,
            text=text,
            is_certain=self.is_certain or not rests,
        )
