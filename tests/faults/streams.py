"""Traces to plant into, and what a replay of the result says slot by slot."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache

from kvcanary_cli.kernels import consts
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import ReplayResult, run_replay
from kvcanary_cli.replay.violations import group_of_tag
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.sim.scenarios import scenario
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import open_trace

CPU = ReplayOptions(device=DeviceChoice(kind="cpu", index=0, name="cpu", reason=""))
BITS = {
    consts.BIT_CHAIN_HASH: "chain",
    consts.BIT_POSITION: "position",
    consts.BIT_KV_HASH: "bytes",
    consts.BIT_WRITE_TOKEN: "write_token",
    consts.BIT_WRITE_POSITION: "write_position",
    consts.BIT_VERIFY_TOKEN: "token",
    consts.BIT_OUT_OF_RANGE: "out_of_range",
}


@cache
def made(
    name: str, *, steps: int = 40, seed: int = 1, page_size: int = 16
) -> tuple[ev.Header, tuple[ev.Event, ...]]:
    """A scenario, made once; events are never changed in place."""
    header, events = scenario(name, steps=steps, seed=seed, page_size=page_size)
    return header, tuple(events)


def recorded(name: str) -> tuple[ev.Header, list[ev.Event]]:
    """A trace recorded from SGLang's classes."""
    with open_trace(f"tests/traces/sglang-classes/{name}.jsonl.gz") as reader:
        return reader.header, [event for _, event in reader]


@dataclass
class Seen:
    """Bits of every slot that ever failed, by (group, slot), and the step at which one of them did first."""

    result: ReplayResult
    bits: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    first: dict[tuple[str, int], int] = field(default_factory=dict)


def replayed(header: ev.Header, events: list[ev.Event]) -> Seen:
    """Replay on the CPU and collect every violation."""
    batches = []
    result = run_replay(header, enumerate(events, 2), CPU, path="t", on_violations=batches.append)
    seen = Seen(result)
    for batch in batches:
        for row in batch.rows.tolist():
            key = (group_of_tag(row[consts.RING_TAG]), row[consts.RING_SLOT])
            seen.bits[key] |= {word for bit, word in BITS.items() if row[consts.RING_BITS] & bit}
            seen.first.setdefault(key, batch.step)
    return seen


def expand(pairs: list[list[int]], group: str = "full") -> set[tuple[str, int]]:
    """(group, slot) of `[first, last]` pairs."""
    return {(group, slot) for first, last in pairs for slot in range(first, last + 1)}
