"""A time series on its way to a file: a row at a time, as a long trace has more rows than memory holds."""

from __future__ import annotations

import json
from types import TracebackType

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.series import Tick, csv_line
from kvcanary_cli.trace.drafts import Draft

PIECE_ROWS = 1024  # rows of one write


class SeriesFile:
    """Writes a list of objects if the name ends in `.json`, else CSV; takes its place when it is whole.

    Attributes:
        num_rows: written so far.

    Raises: InputError where the file can't be written.
    """

    def __init__(self, path: str) -> None:
        self.num_rows = 0
        self._path = path
        self._is_json = path.endswith(".json")
        self._lines: list[str] = ["[" if self._is_json else ",".join(Tick._fields) + "\n"]
        try:
            self._draft = Draft(path)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, row: Tick) -> None:
        """One more row."""
        if self._is_json:
            self._lines.append(("," if self.num_rows else "") + "\n" + json.dumps(row._asdict()))
        else:
            self._lines.append(csv_line(row) + "\n")
        self.num_rows += 1
        if len(self._lines) >= PIECE_ROWS:
            self._flush()

    def _flush(self) -> None:
        try:
            self._draft.file.write("".join(self._lines).encode("ascii"))
        except OSError as error:
            raise self._failed(error) from error
        self._lines.clear()

    def _failed(self, error: OSError) -> InputError:
        return InputError(f"can't be written: {error.strerror or error}", where=self._path)

    def __enter__(self) -> SeriesFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._is_json:
                    self._lines.append("\n]\n")
                self._flush()
                self._draft.keep()
        except OSError as failed:
            raise self._failed(failed) from failed
        finally:
            # nothing to drop once it is in its place
            self._draft.drop()
