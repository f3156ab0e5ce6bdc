"""A measured time series: one row a second (or another step) of what a real server did."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcanary_cli.errors import InputError

Column = npt.NDArray[np.float64]
NEEDED = ("t", "prompt_throughput", "gen_throughput")
STATE = ("running", "waiting", "kv_cache_pct")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a time series says, an array element a row.

    Attributes:
        t: seconds at the end of each row.
        prompted, sampled: prompt tokens and output tokens up to there.
        running, waiting, kv_cache_pct: at that time; None where the file has no such column, or never filled it.
        missing: state columns that are None, with the reason in words.
    """

    path: str
    t: Column
    prompted: Column
    sampled: Column
    running: Column | None
    waiting: Column | None
    kv_cache_pct: Column | None
    missing: dict[str, str]

    @property
    def tick_s(self) -> float:
        """Seconds from row to row, as most of them have it."""
        return float(np.median(np.diff(self.t, prepend=0.0)))

    @property
    def makespan_s(self) -> float:
        """When the last token came, as the rows show it."""
        return last_token_s(self.t, self.sampled)


def last_token_s(t: Column, sampled: Column) -> float:
    """When the last token came, as rows show it: in the middle of the last row that has one."""
    row = int(np.flatnonzero(np.diff(sampled, prepend=0.0)).max())
    return float((t[row - 1] if row else 0.0) + t[row]) / 2


def read_series(path: str) -> Measured:
    """Read a CSV with the columns of `NEEDED`, and those of `STATE` where it has them.

    A state column that is 0 in every row of a run that did something was never filled; it is missing, not idle.

    Raises: InputError that names line and column.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise InputError(f"can't be read ({error.strerror or error})", where=path) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError("is no CSV in UTF-8", where=path) from error
    names = [name.strip() for name in rows[0]] if rows else []
    lacking = [name for name in NEEDED if name not in names]
    if lacking:
        raise InputError(
            f"a time series has the columns {', '.join(NEEDED)}, this has no {lacking[0]}",
            where=f"{path}:1",
            hint="`kvcanary simulate REQUESTS --time-series OUT.csv` writes one",
        )
    columns = {name: _column(path, rows, names.index(name)) for name in (*NEEDED, *STATE) if name in names}
    t = columns["t"]
    if not len(t):
        raise InputError("the time series has no row", where=path)
    steps = np.diff(t, prepend=0.0)
    if (steps <= 0).any():
        row = int(np.flatnonzero(steps <= 0)[0])
        raise InputError("`t` has to grow from row to row, from above 0", where=f"{path}:{row + 2}")
    sampled = np.cumsum(columns["gen_throughput"] * steps)
    if not sampled[-1]:
        raise InputError("`gen_throughput` is 0 in every row: there is nothing to compare with", where=path)
    missing: dict[str, str] = {}
    for name in STATE:
        if name not in columns:
            missing[name] = "no such column"
        elif not columns[name].any() and name != "waiting":
            missing[name] = "0 in every row, so it was never filled"
    state = {name: None if name in missing else columns[name] for name in STATE}
    prompted = np.cumsum(columns["prompt_throughput"] * steps)
    return Measured(path=path, t=t, prompted=prompted, sampled=sampled, missing=missing, **state)


def _column(path: str, rows: list[list[str]], at: int) -> Column:
    values = []
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        text = row[at] if at < len(row) else ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise InputError(
                f"column {rows[0][at].strip()!r} has {text!r}, a number from 0 on is needed",
                where=f"{path}:{number}",
            )
        values.append(value)
    return np.array(values)
