"""A server's start-up log: the sizes that it states, whatever colours, times and ranks stand around them.

A later start in the same file wins. Where ranks state different sizes the smallest pool counts, as it does
for the server; for all else the first rank.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kvcanary_cli.capacity.formula import VERIFY_PER_TOKEN
from kvcanary_cli.capacity.numbers import MAX_COUNT
from kvcanary_cli.capacity.origin import Origin
from kvcanary_cli.errors import InputError

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"\[[^\]]*?((?:\b(?:DP|PP|TP|EP|CP)\d+\s*)+)\]")
# field: the spelling in the log, longest first where one ends in another
_FIELDS = {
    "swa_tokens": r"swa_(?:max_total_num_tokens|layer_tokens)",
    "full_tokens": r"full_(?:max_total_num_tokens|layer_tokens)",
    "tokens": r"max_total_num_tokens",
    "chunk": r"chunked_prefill_size",
    "max_prefill": r"max_prefill_tokens",
    "running": r"max_running_requests",
    "context": r"context_len(?:gth)?",
    "verify": r"per_forward_verify_capacity",
    "write_req": r"per_forward_write_req_capacity",
    "write_entry": r"per_forward_write_entry_capacity",
}
_VALUE = re.compile(
    r"(?<![A-Za-z0-9_.])(?:"
    + "|".join(f"(?P<{name}>{word})" for name, word in _FIELDS.items())
    + r")\s*[=:]\s*(-?\d+)"
)
# a line is looked at only if it can hold one of the above
_START_UP = ("max_total_num_tokens", "install_canary", "_layer_tokens")
_MOST_DIGITS = 12


class Stated(NamedTuple):
    """A number of the log and where it stands."""

    value: int
    source: str


class LogFacts(NamedTuple):
    """What a log states; None for what it doesn't.

    Args:
        ranks: names of the ranks that stated anything, empty where lines carry none.
        differing: fields that ranks state differently, with their values.
        graph_batch: upper bound of the largest decode graph, which follows from the write requests.
        origin: FILE where a config states the capacities alone, which is as good as a log.
        is_past: whether flags were changed since, so that nothing is to be compared.
    """

    path: str
    tokens: Stated | None = None
    swa_tokens: Stated | None = None
    running: Stated | None = None
    context: Stated | None = None
    chunk: Stated | None = None
    max_prefill: Stated | None = None
    write_req: Stated | None = None
    write_entry: Stated | None = None
    verify: Stated | None = None
    ranks: tuple[str, ...] = ()
    differing: tuple[tuple[str, tuple[int, ...]], ...] = ()
    graph_batch: Stated | None = None
    is_past: bool = False
    origin: Origin = Origin.LOG

    def as_inputs(self) -> LogFacts:
        """What still holds where flags change: what the launch started from, and not what came of it."""
        return self._replace(
            running=None,
            write_req=None,
            write_entry=None,
            verify=None,
            graph_batch=self.write_req or self.graph_batch,
            is_past=True,
        )


def stated_capacities(path: str, *, write_req: int, write_entry: int, verify: int) -> LogFacts:
    """Capacities that a config states without anything that they follow from, as if a log had stated them.

    What they followed from is bounded by them: the pool exactly, requests and prefills from above.
    """

    def stated(value: int, name: str) -> Stated:
        return Stated(value, f"{path}: capacities.{name}")

    tokens = stated(verify // VERIFY_PER_TOKEN, "verify")
    return LogFacts(
        path=path,
        tokens=tokens,
        context=tokens,
        running=stated(write_req, "write_req"),
        chunk=stated(write_entry, "write_entry"),
        max_prefill=stated(write_entry, "write_entry"),
        write_req=stated(write_req, "write_req"),
        write_entry=stated(write_entry, "write_entry"),
        verify=stated(verify, "verify"),
        origin=Origin.FILE,
    )


def read_log(path: str) -> LogFacts:
    """Read a start-up log.

    Raises: InputError for a file that can't be read, or that states nothing that is wanted.
    """
    found: dict[str, dict[str, Stated]] = {}
    lines = 0
    try:
        # undecodable bytes happen in logs, and numbers are ASCII
        with open(path, encoding="utf-8", errors="replace") as file:
            for lines, line in enumerate(file, 1):
                if any(word in line for word in _START_UP):
                    _read_line(line, f"{path}:{lines}", found)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the file can't be read: {reason}", where=path) from error
    if not found:
        raise InputError(
            f"{lines:,} lines hold no start-up line of a server (max_total_num_tokens=..., install_canary: ...)",
            where=path,
        )
    if "tokens" not in found and "full_tokens" in found:
        found["tokens"] = found["full_tokens"]
    found.pop("full_tokens", None)
    stated: dict[str, Any] = {name: _one(name, by_rank) for name, by_rank in found.items()}
    facts = LogFacts(
        path=path,
        ranks=tuple(sorted({rank for by_rank in found.values() for rank in by_rank if rank})),
        differing=tuple(_differing(found)),
    )
    return facts._replace(**stated)


def _read_line(line: str, source: str, found: dict[str, dict[str, Stated]]) -> None:
    plain = _COLOUR.sub("", line)
    rank = _RANK.search(plain)
    name = " ".join(rank[1].split()) if rank else ""
    for match in _VALUE.finditer(plain):
        field = next(name for name in _FIELDS if match[name] is not None)
        digits = match[match.re.groups]
        if len(digits) > _MOST_DIGITS or not -1 <= int(digits) <= MAX_COUNT:
            raise InputError(f"`{match[0][:60]}` is no size that a server can have", where=source)
        found.setdefault(field, {})[name] = Stated(int(digits), source)


def _one(name: str, by_rank: dict[str, Stated]) -> Stated:
    stated = list(by_rank.values())
    return min(stated, key=lambda each: each.value) if name in ("tokens", "swa_tokens") else stated[0]


def _differing(found: dict[str, dict[str, Stated]]) -> list[tuple[str, tuple[int, ...]]]:
    differing = []
    for name, by_rank in found.items():
        values = tuple(sorted({stated.value for stated in by_rank.values()}))
        if len(values) > 1:
            differing.append((name, values))
    return differing
