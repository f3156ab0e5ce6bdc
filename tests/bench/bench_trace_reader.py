"""Time the trace reader: lines a second of decode forwards and of a mixed trace.

Run by hand: `python tests/bench/bench_trace_reader.py [LANES]`; pytest does not collect it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kvcanary_cli.trace.events import Alloc, Event, Forward, Header, Map, Pool
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import TraceWriter

STEPS = 2000
REPEATS = 5


def decode_forwards(num_lanes: int, rng: np.random.Generator) -> list[Event]:
    """STEPS decode forwards with scattered slots, tokens and a truth for each."""
    rows = list(range(1, num_lanes + 1))
    return [
        Forward(
            mode="decode",
            rows=rows,
            prefix=(1000 + step + rng.integers(0, 500, num_lanes)).tolist(),
            tokens=rng.integers(0, 128_000, num_lanes).tolist(),
            slots=rng.permutation(400_000)[:num_lanes],
        )
        for step in range(STEPS)
    ]


def with_lifecycle(forwards: list[Event]) -> list[Event]:
    """Before each forward, one `alloc` and one `map` a lane, as a recorder of one-token decodes writes."""
    events: list[Event] = []
    for step, forward in enumerate(forwards[: STEPS // 20]):
        assert isinstance(forward, Forward)
        assert forward.slots is not None
        for lane, slot in enumerate(forward.slots):
            events.append(Alloc(to=f"r{lane}", slots=np.array([slot])))
            events.append(Map(row=lane + 1, at=1000 + step, slots=np.array([slot])))
        events.append(forward)
    return events


def main() -> None:
    """Write each kind of trace to a temporary folder, and read it REPEATS times."""
    num_lanes = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    header = Header(
        format="kvcanary-trace",
        version=1,
        pool=Pool(slots=400_001, rows=num_lanes + 1, row_width=131_072),
    )
    forwards = decode_forwards(num_lanes, np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        for name, events in (("decode forwards", forwards), ("with lifecycle", with_lifecycle(forwards))):
            path = str(Path(folder) / "trace.jsonl")
            start = time.perf_counter()
            with TraceWriter(path, header) as writer:
                for event in events:
                    writer.write(event)
            wrote = time.perf_counter() - start
            best = min(read_seconds(path) for _ in range(REPEATS))
            print(
                f"{name} ({num_lanes} lanes): {len(events):,} lines, write {wrote / len(events) * 1e6:.1f} us,"
                f" read {best / len(events) * 1e6:.1f} us a line ({len(events) / best:,.0f} lines/s)"
            )


def read_seconds(path: str) -> float:
    """Seconds to read and check all of a trace."""
    start = time.perf_counter()
    for _ in open_trace(path):
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
