"""Reader of Azure's LLM inference traces (Azure/AzurePublicDataset): 2023, 2024 and 2025 with images.

Columns `TIMESTAMP,ContextTokens,GeneratedTokens`; 2025 has `NumImages` too. A time is a date and a clock with
0 to 9 digits below the second, in 2024 none where they are zero, and a zone or none. Times are kept as whole
nanoseconds: a float of seconds since 1970 is off by some 200 ns. There are no block ids.
"""

from __future__ import annotations

import re
from datetime import date

from kvcanary_cli.trace.csv_rows import Cells, CsvFormat
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.request_trace import SECOND_NS, Notes, Row
from kvcanary_cli.trace.slots import describe

TIME, PROMPT, OUTPUT, IMAGES = "TIMESTAMP", "ContextTokens", "GeneratedTokens", "NumImages"
DAY_S = 24 * 3600

_clock = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[ T]"
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?"
    r"(?P<zone>Z|(?P<sign>[+-])(?P<off_hour>[0-9]{2}):?(?P<off_minute>[0-9]{2}))?"
).fullmatch


class AzureRows:
    """Rows of one pass; remembers whether the first time had a zone."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._has_zone: bool | None = None
        self._day = ("", 0)

    def row(self, cells: Cells) -> Row:
        """The row; raises LineError."""
        time_ns, has_zone = self._time(cells)
        row = Row(cells.line, f"req-{cells.line}", time_ns, cells.whole(PROMPT), cells.whole(OUTPUT))
        if self._has_zone is None:
            self._has_zone = has_zone
        if has_zone != self._has_zone:
            here, before = ("a", "none") if has_zone else ("no", "one")
            raise cells.error(TIME, f"the time has {here} zone, the times before have {before}")
        if cells.has(IMAGES) and cells.whole(IMAGES):
            self._notes.add(f"has images ({IMAGES}); its prompt counts as {PROMPT} says", cells.line)
        return row

    def _time(self, cells: Cells) -> tuple[int, bool]:
        """Nanoseconds since 1970 and whether there is a zone; without one it counts as UTC."""
        text = cells.text(TIME)
        found = _clock(text)
        if found is None:
            raise _no_time(cells, text)
        hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"])
        off_hour, off_minute = int(found["off_hour"] or 0), int(found["off_minute"] or 0)
        if hour > 23 or minute > 59 or second > 59 or off_hour > 23 or off_minute > 59:
            raise _no_time(cells, text)
        offset = (off_hour * 60 + off_minute) * 60
        if found["sign"] == "-":
            offset = -offset
        if self._day[0] != found["date"]:
            try:
                days = date.fromisoformat(found["date"]).toordinal() - date(1970, 1, 1).toordinal()
            except ValueError:
                raise _no_time(cells, text) from None
            self._day = (found["date"], days)
        seconds = self._day[1] * DAY_S + (hour * 60 + minute) * 60 + second - offset
        return seconds * SECOND_NS + int((found["fraction"] or "").ljust(9, "0")), found["zone"] is not None


def _no_time(cells: Cells, text: str) -> LineError:
    shown = describe(text) if text else "an empty cell"
    return cells.error(TIME, f"a time like 2023-11-16 18:17:03.9799600 is expected, found {shown}")


AZURE = CsvFormat(
    name="azure",
    title="Azure LLM inference trace",
    needed=(TIME, PROMPT, OUTPUT),
    known=(IMAGES,),
    maker=AzureRows,
)
