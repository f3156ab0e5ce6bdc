"""Which request traces are CSV files, told by their header line."""

from __future__ import annotations

# name for `--input-format` -> "module:attribute" of its Format, imported when it is needed
CSV_FORMATS: dict[str, str] = {}


def csv_format(header_cells: list[str]) -> str | None:
    """The format whose columns these are, by the name that `CSV_FORMATS` has; None if it is none of them."""
    return None
