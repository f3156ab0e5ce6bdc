"""Small traces built by hand, and a replay of events that returns what was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from kvcanary_cli.kernels.consts import bit_names
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import ReplayResult, run_replay
from kvcanary_cli.replay.stories import Violation
from kvcanary_cli.replay.violations import ViolationBatch
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.trace import events as ev

CPU = DeviceChoice(kind="cpu", index=0, name="cpu", reason="")
CUDA = DeviceChoice(kind="cuda", index=0, name="cuda", reason="")

DEVICES = [
    pytest.param(CPU, id="cpu"),
    pytest.param(CUDA, id="cuda", marks=pytest.mark.gpu),
]


@dataclass
class Found:
    """A replay's result and every batch of violations, in order."""

    result: ReplayResult
    batches: list[ViolationBatch] = field(default_factory=list)

    @property
    def violations(self) -> list[Violation]:
        return self.result.stories.kept

    def signature(self) -> list[tuple[int, str, int, tuple[str, ...]]]:
        """(step, launch, slot, reasons) of every violation."""
        return [(v.step, v.launch, v.slot, tuple(bit_names(v.bits))) for v in self.violations]


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def replay_events(
    header: ev.Header, events: Iterable[ev.Event], device: DeviceChoice = CPU, **options: object
) -> Found:
    """Replay events as lines 2, 3, … of a trace."""
    found: list[ViolationBatch] = []
    result = run_replay(
        header,
        enumerate(events, 2),
        ReplayOptions(device=device, **options),  # type: ignore[arg-type]
        path="test.jsonl",
        on_violations=found.append,
    )
    return Found(result, found)


def small_header(**changes: object) -> ev.Header:
    """64 slots of pages of 4, 4 rows of 16 columns, one source of 32 bytes."""
    values: dict[str, object] = {
        "format": "kvcanary-trace",
        "version": 1,
        "pool": ev.Pool(slots=64, page_size=4, rows=4, row_width=16),
        "sources": [ev.Source(name="k", bytes_per_slot=32, hashed_bytes=32)],
    }
    return ev.Header(**(values | changes))


def one_request(steps: int = 4, *, first: int = 8, prompt: int = 5) -> list[ev.Event]:
    """Request A in row 1: a prompt at slots `first`…, then decode steps; truth is known."""
    last = prompt + steps
    tokens = [100 + position for position in range(last)]
    span = np.arange(first, first + last)
    events: list[ev.Event] = [
        ev.Bind(row=1, rid="A"),
        ev.Truth(rid="A", at=0, tokens=tokens),
        ev.Alloc(to="A", slots=np.arange(first, first + -(-last // 4) * 4)),
        ev.Forward(rows=[1], prefix=[0], lens=[prompt], slots=span[:prompt]),
    ]
    for position in range(prompt, last):
        events.append(ev.Forward(rows=[1], prefix=[position], slots=span[position : position + 1]))
    return events


def insert(events: Sequence[ev.Event], forward: int, *added: ev.Event) -> list[ev.Event]:
    """The events with `added` put right before forward number `forward`."""
    out: list[ev.Event] = []
    count = 0
    for event in events:
        if isinstance(event, ev.Forward):
            if count == forward:
                out += added
            count += 1
        out.append(event)
    return out
