"""The same report on a terminal: Rich tables, bold headings, colour on the words that carry the verdict.

Colour only repeats what a word says. Layout comes from `frame.layout`; nothing here adds or drops text.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from rich.box import Box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kvcanary_cli.report.tables import GAP, NARROW, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLES = {
    "OK": "green",
    "PASS": "green",
    "TIGHT": "yellow",
    "WARN": "yellow",
    "INCOMPLETE": "yellow",
    "OVER": "red",
    "FAIL": "red",
}

# a rule under the headings and nothing else, in ASCII: eight lines of four characters, as Rich wants them
_BOX = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

_LABEL = re.compile(r"^[a-z-]+( {2,}|: *)")
_VERDICT = re.compile(r"^(status: +|kvcanary: )(PASS|FAIL|INCOMPLETE)\b")


def to_ansi(parts: Sequence[str | Table], *, width: int | None = None) -> str:
    """The parts with escape codes, as a terminal of `width` columns would get them."""
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        no_color=False,
        width=width or 80,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as capture:
        print_parts(console, parts)
    return capture.get()


def print_parts(console: Console, parts: Sequence[str | Table]) -> None:
    """Print a report on a console; no line is cut, the terminal wraps what is too long."""
    for part in parts:
        lines = _table(part, console.width) if isinstance(part, Table) else [_line(part)]
        for line in lines:
            console.print(line, soft_wrap=True, crop=False, no_wrap=True, overflow="ignore")


def _line(text: str) -> Text:
    line = Text(text.rstrip())
    if match := _LABEL.match(text):
        line.stylize("bold", 0, match.end())
    if match := _VERDICT.match(text):
        line.stylize(STYLES[match.group(2)], match.start(2), match.end(2))
    return line


def _cell(text: str) -> Text:
    return Text(text, style=STYLES.get(text, ""))


def _table(table: Table, width: int) -> list[Text]:
    """Lines of a Rich table at its natural width, with the details of each row put under its line."""
    if width < NARROW:
        return [Text(line) for line in table.lines(width)]
    rich = RichTable(
        box=_BOX,
        show_header=table.header,
        show_edge=False,
        header_style="bold",
        padding=(0, len(GAP) - 1, 0, 0),
        collapse_padding=True,
    )
    for column in table.columns:
        rich.add_column(column.name, justify=column.align, no_wrap=True)
    for row in table.cells():
        rich.add_row(*(_cell(cell) for cell in row))
    lines = _natural_lines(rich)
    heading = len(lines) - len(table.rows)
    pad = " " * table.indent
    placed = lines[:heading]
    for number, line in enumerate(lines[heading:]):
        placed += [line, *(Text(detail) for detail in table.details_of(number))]
    return [Text(pad) + line for line in placed]


def _natural_lines(rich: RichTable) -> list[Text]:
    """The table's lines as styled text; the canvas is wide enough that Rich shortens no cell."""
    canvas = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100_000)
    lines = []
    for segments in canvas.render_lines(rich, canvas.options, pad=False):
        line = Text()
        for segment in segments:
            line.append(segment.text, segment.style)
        line.rstrip()
        lines.append(line)
    return lines
