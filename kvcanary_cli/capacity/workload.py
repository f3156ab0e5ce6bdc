"""What a workload needs, step by step: from a trace as it is, from a request trace through the scheduler model.

The only part of the audit that loads NumPy, so everything heavy is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcanary_cli.errors import InputError, KvCanaryError, UsageError

if TYPE_CHECKING:
    from kvcanary_cli.capacity.audit import Reading
    from kvcanary_cli.capacity.setup import Setup
    from kvcanary_cli.capacity.sizes import Sizes
    from kvcanary_cli.trace.events import Event, Forward, Header


class Peak(NamedTuple):
    """The largest need of any step, and the first step that has it, from 0."""

    need: int = 0
    step: int = 0

    def with_step(self, need: int, step: int) -> Peak:
        """The larger of this and one more step."""
        return Peak(need, step) if need > self.need else self


class Workload(NamedTuple):
    """Measured needs.

    Args:
        format: of the file, in words.
        steps: forwards that were looked at.
        requests: lanes of a forward, or the width of its graph.
        tokens: written by a forward, padded lanes included.
        details: facts about a request trace; empty for a trace v1.
        verify: entries of a verify pass by group; a window group reads at most its window of each request.
    """

    path: str
    format: str
    steps: int
    requests: Peak
    tokens: Peak
    verify: tuple[tuple[str, Peak], ...]
    details: dict[str, Any]

    @property
    def most_verified(self) -> tuple[str, Peak]:
        """The group that needs the most entries, and how many."""
        return max(self.verify, key=lambda pair: pair[1].need)


def measure_file(
    path: str,
    setup: Setup,
    sizes: Sizes,
    reading: Reading | None = None,
    on_progress: Callable[[int, int], None] = lambda steps, entries: None,
) -> Workload:
    """Needs of a trace v1, or of a request trace served by a modelled server with these settings.

    Raises: InputError for a file that is neither, has a bad line, or whose requests the pool can't hold,
        UsageError for a format that is not known and for a block size of a trace v1.
    """
    from kvcanary_cli.trace.formats import TRACE_V1, known_format, sniff
    from kvcanary_cli.trace.reader import LIST_HINT, open_trace

    named, block_size = reading or (None, None)
    kind = sniff(path) if named is None else known_format(named)
    if kind == TRACE_V1:
        if block_size is not None:
            raise UsageError(f"`--block-size` is for request traces, {path} is a trace v1")
        with open_trace(path, hint=LIST_HINT) as reader:
            return measure(path, "trace v1", reader.header, (event for _, event in reader))
    from kvcanary_cli.capacity.served import measure_requests, server_settings
    from kvcanary_cli.sim.config import SimConfig

    try:
        config = SimConfig(**server_settings(setup, sizes))
    except KvCanaryError as error:
        raise InputError(f"the scheduler model can't serve this: {error.message}", where=path) from error
    return measure_requests(path, config, input_format=kind, block_size=block_size, on_progress=on_progress)


def measure(path: str, format_: str, header: Header, events: Iterable[Event]) -> Workload:
    """Needs of the forwards among some events.

    Raises: InputError where there is none.
    """
    from kvcanary_cli.trace.events import Forward

    windows = {group.kind: group.window or 0 for group in header.groups}
    requests = tokens = Peak()
    verify = dict.fromkeys(windows, Peak())
    step = 0
    for event in events:
        if type(event) is not Forward:
            continue
        requests = requests.with_step(max(len(event.rows), event.width or 0), step)
        tokens = tokens.with_step(len(event.rows) if event.lens is None else sum(event.lens), step)
        for kind, window in windows.items():
            verify[kind] = verify[kind].with_step(_verified(event, window), step)
        step += 1
    if step == 0:
        raise InputError("the workload has no forward", where=path)
    return Workload(path, format_, step, requests, tokens, tuple(verify.items()), {})


def _verified(event: Forward, window: int) -> int:
    """Entries that one verify pass of a group takes; row 0 is padding."""
    lanes = zip(event.rows, event.prefix, strict=True)
    return sum(min(prefix, window) if window else prefix for row, prefix in lanes if row)
