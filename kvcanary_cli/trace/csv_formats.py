"""Which request traces are CSV files, told by their header line, and which CSV files hold no requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvcanary_cli.trace.files import LineError

# name for `--input-format` -> "module:attribute" of its Format, imported when it is needed
CSV_FORMATS: dict[str, str] = {
    "azure": "kvcanary_cli.trace.azure:AZURE",
    "burstgpt": "kvcanary_cli.trace.burstgpt:BURSTGPT",
    "vidur": "kvcanary_cli.trace.vidur:VIDUR",
    "vidur-lengths": "kvcanary_cli.trace.vidur:VIDUR_LENGTHS",
    "splitwise-sim": "kvcanary_cli.trace.splitwise:SPLITWISE",
}
MARKS = {
    "azure": ("ContextTokens",),
    "burstgpt": ("Request tokens",),
    # tried in this order: a processed Vidur trace has all columns of a length table
    "vidur": ("num_prefill_tokens", "arrived_at"),
    "vidur-lengths": ("num_prefill_tokens",),
    "splitwise-sim": ("prompt_size", "token_size"),
}
NO_REQUESTS = (
    (("request id", "latency", "TTFT", "TPOT"), "the output of a simulator (LLMServingSim)"),
    (("t", "running", "waiting", "kv_cache_pct"), "a time series of a server's load"),
)
REQUESTS_HINT = "a file with one row a request is needed, with prompt and output tokens"
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_is_number = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?").fullmatch


def csv_format(header_cells: Sequence[str]) -> str | None:
    """The format whose columns these are, by the name that `CSV_FORMATS` has; None if it is none of them.

    A header with another case or separator counts too, as its reader can say what is wrong.

    Raises: LineError, without a place, for a CSV that is known to hold no requests or that has no header.
    """
    cells = re.split(f"[,{re.escape(''.join(SEPARATORS))}]", ",".join(header_cells))
    columns = {cell.strip().strip('"').casefold() for cell in cells}
    for name, marks in MARKS.items():
        if _has(columns, marks):
            return name
    for marks, what in NO_REQUESTS:
        if _has(columns, marks):
            raise LineError(f"is {what}, not a request trace", hint=REQUESTS_HINT)
    if len(cells) > 1 and _is_number(cells[0].strip()):
        raise LineError(
            "the CSV has no header, so its columns have no meaning; it may be a client profile of ServeGen, "
            "which holds arrival rates and no requests",
            hint=REQUESTS_HINT,
        )
    return None


def _has(columns: set[str], wanted: Sequence[str]) -> bool:
    return {name.casefold() for name in wanted} <= columns
