"""Reader of splitwise-sim's traces (Mutinifni/splitwise-sim): one row a request, times in seconds."""

from __future__ import annotations

from kvcanary_cli.trace.csv_rows import Cells, CsvFormat
from kvcanary_cli.trace.request_trace import Notes, Row

ID, TYPE, TIME, BATCH = "request_id", "request_type", "arrival_timestamp", "batch_size"
PROMPT, OUTPUT = "prompt_size", "token_size"
GENERATION = 2


class SplitwiseRows:
    """Rows of one pass; remembers the ids, as none may be there twice."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._lines: dict[str, int] = {}

    def row(self, cells: Cells) -> Row:
        """The row; raises LineError."""
        rid = cells.text(ID) if cells.has(ID) else f"req-{cells.line}"
        if not rid:
            raise cells.error(ID, "the id is empty")
        row = Row(cells.line, rid, cells.seconds_ns(TIME), cells.whole(PROMPT), cells.whole(OUTPUT))
        if cells.has(TYPE) and cells.whole(TYPE) != GENERATION:
            self._notes.add(f"has a request type other than {GENERATION} (generation)", cells.line)
        if cells.has(BATCH) and cells.whole(BATCH) != 1:
            self._notes.add("has a batch size other than 1; it counts as one request", cells.line)
        first = self._lines.setdefault(rid, cells.line)
        if first != cells.line:
            raise cells.error(ID, f'the id "{rid}" is that of line {first:,} too')
        return row


SPLITWISE = CsvFormat(
    name="splitwise-sim",
    title="splitwise-sim trace",
    needed=(TIME, PROMPT, OUTPUT),
    known=(ID, TYPE, "application_id", BATCH),
    maker=SplitwiseRows,
)
