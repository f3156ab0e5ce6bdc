"""Tables of a report: plain columns in a pipe, one block per row where a line is too short for columns.

No cell is ever shortened, in any of the forms; a terminal that is too narrow wraps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvcanary_cli.report.text import ascii_lines, name

NARROW = 60
"""Below this many columns a table is printed as one `key: value` block per row."""

GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and the side its cells stand on (numbers stand right)."""

    name: str
    align: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text cells.

    Args:
        columns: headings from left to right.
        rows: one list of cells a row, as many as there are columns.
        detail: for each row the text printed under it, or None; it may hold several lines, each of which
            starts at the table's indent.
        indent: spaces before each line.
        header: False leaves the line of headings out (block form still uses them).
    """

    columns: list[Column]
    rows: list[list[str]]
    detail: list[str | None] = field(default_factory=list)
    indent: int = 2
    header: bool = True

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} has {len(row)} cells for {len(self.columns)} columns")
        if self.detail and len(self.detail) != len(self.rows):
            raise ValueError(f"{len(self.detail)} details for {len(self.rows)} rows")

    def details_of(self, row: int) -> list[str]:
        """The lines under a row, without the table's indent."""
        text = self.detail[row] if self.detail else None
        return [] if text is None else ascii_lines(text).split("\n")

    def cells(self) -> list[list[str]]:
        """The rows, each cell one line of printable ASCII."""
        return [[name(cell) for cell in row] for row in self.rows]

    def starts(self) -> list[int]:
        """The column, counted without the indent, at which each table column begins."""
        starts, at = [], 0
        for width in self._widths(self.cells()):
            starts.append(at)
            at += width + len(GAP)
        return starts

    def lines(self, width: int | None = None) -> list[str]:
        """The table in plain text; `width` is the terminal's number of columns, None in a pipe."""
        if width is not None and width < NARROW:
            return self._blocks()
        cells = self.cells()
        widths = self._widths(cells)
        lines = [self._line([column.name for column in self.columns], widths)] if self.header else []
        for number, row in enumerate(cells):
            lines.append(self._line(row, widths))
            lines += self.details_of(number)
        pad = " " * self.indent
        return [(pad + line).rstrip() for line in lines]

    def _widths(self, cells: list[list[str]]) -> list[int]:
        return [
            max([len(column.name) if self.header else 0, *(len(row[i]) for row in cells)])
            for i, column in enumerate(self.columns)
        ]

    def _line(self, row: list[str], widths: list[int]) -> str:
        return GAP.join(
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for cell, width, column in zip(row, widths, self.columns, strict=True)
        )

    def _blocks(self) -> list[str]:
        lines: list[str] = []
        for number, row in enumerate(self.cells()):
            if lines:
                lines.append("")
            for column, cell in zip(self.columns, row, strict=True):
                lines.append(f"{column.name}: {cell}".rstrip())
            lines += [line.strip() for line in self.details_of(number)]
        return lines
