"""Reader of BurstGPT (HPMLL/BurstGPT): v1, v2, and v3, which inserts `Session ID` and `Elapsed time`.

`Timestamp` is seconds, whole or with a fraction. Calls that failed have no response tokens, and in v1 no
request tokens either; rows without a prompt can't be served by anything. There are no block ids.
"""

from __future__ import annotations

from kvcanary_cli.trace.csv_rows import Cells, CsvFormat, check_total
from kvcanary_cli.trace.request_trace import Notes, Row

TIME, PROMPT, OUTPUT, TOTAL = "Timestamp", "Request tokens", "Response tokens", "Total tokens"
SESSION, MODEL = "Session ID", "Model"
FAILED = "has no response tokens, a failed call: it is served, and generates nothing"
OTHER_MODEL = "is for another model than the first row; models share no KV pool, a replay puts them into one"


class BurstRows:
    """Rows of one pass."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._model: str | None = None

    def row(self, cells: Cells) -> Row:
        """The row; raises LineError."""
        prompt, output = cells.whole(PROMPT), cells.whole(OUTPUT)
        time_ns = cells.seconds_ns(TIME)
        if prompt == 0:
            raise cells.error(
                PROMPT,
                "the prompt has 0 tokens, there is nothing to serve",
                hint="`--skip-bad-lines` leaves such rows out, and counts them",
            )
        check_total(cells, TOTAL, prompt + output, self._notes)
        if output == 0:
            self._notes.add(FAILED, cells.line)
        model = cells.text(MODEL)
        if self._model is None:
            self._model = model
        elif model != self._model:
            self._notes.add(OTHER_MODEL, cells.line)
        return Row(
            cells.line, f"req-{cells.line}", time_ns, prompt, output, session=cells.text(SESSION) or None
        )


BURSTGPT = CsvFormat(
    name="burstgpt",
    title="BurstGPT trace",
    needed=(TIME, PROMPT, OUTPUT),
    known=(SESSION, "Elapsed time", MODEL, TOTAL, "Log Type"),
    maker=BurstRows,
)
