"""Readers of Vidur's CSV files (microsoft/vidur): processed traces, and length tables without times.

`arrived_at` is seconds from 0. Lengths may be written as whole floats. Vidur raises lengths below 1 and cuts
prompts to its maximum without a word; here both are kept as they stand.
"""

from __future__ import annotations

from kvcanary_cli.trace.csv_rows import Cells, CsvFormat, check_total
from kvcanary_cli.trace.request_trace import Notes, Row

TIME, PROMPT, OUTPUT, TOTAL = "arrived_at", "num_prefill_tokens", "num_decode_tokens", "num_total_tokens"


class VidurRows:
    """Rows of one pass; without a time column all of them stand at 0."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def row(self, cells: Cells) -> Row:
        """The row; raises LineError."""
        prompt, output = cells.whole(PROMPT), cells.whole(OUTPUT)
        check_total(cells, TOTAL, prompt + output, self._notes)
        time_ns = cells.seconds_ns(TIME) if cells.has(TIME) else 0
        return Row(cells.line, f"req-{cells.line}", time_ns, prompt, output)


VIDUR = CsvFormat(
    name="vidur",
    title="Vidur processed trace",
    needed=(TIME, PROMPT, OUTPUT),
    known=(TOTAL, "pd_ratio"),
    maker=VidurRows,
)
VIDUR_LENGTHS = CsvFormat(
    name="vidur-lengths",
    title="Vidur length table",
    needed=(PROMPT, OUTPUT),
    known=(TOTAL, "pd_ratio"),
    maker=VidurRows,
    has_times=False,
)
