"""What a decode step costs on the host: `python tests/bench/bench_host_path.py [--device cuda|none]`.

A trace of lanes with 1,000 tokens each, then decode steps. `none` replaces the kernels by nothing, so it shows what
reading, decoding, ownership and bookkeeping cost. With a GPU: the runtime alone from decoded steps, and the whole
replay from file to result.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from kvcanary_cli.kernels.consts import RING_WORDS
from kvcanary_cli.replay import run as run_module
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import run_replay
from kvcanary_cli.replay.run_ahead import RunAhead
from kvcanary_cli.replay.state import new_state
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.runtime.layout import layout_of
from kvcanary_cli.trace.reader import open_trace

PROMPT = 1000
EMPTY = np.zeros((0, RING_WORDS), np.int64)


def lines(lanes: int, steps: int, *, alloc_each: bool = False) -> Iterator[dict]:
    """The trace, line by line; `alloc_each`: every slot is allocated right before its step, as a server does."""
    width = PROMPT + steps
    pool = {"slots": lanes * width + 1, "page_size": 1, "rows": lanes + 1, "row_width": width}
    yield {"ev": "header", "format": "kvcanary-trace", "version": 1, "pool": pool}
    rows = list(range(1, lanes + 1))
    slot = 1 + np.random.default_rng(0).permutation(lanes * width).reshape(lanes, width)
    for row in rows:
        yield {"ev": "bind", "row": row, "rid": f"r{row}"}
        first = slot[row - 1, :PROMPT] if alloc_each else slot[row - 1]
        yield {"ev": "alloc", "to": f"r{row}", "slots": first.tolist()}
        yield {
            "ev": "forward",
            "rows": [row],
            "prefix": [0],
            "lens": [PROMPT],
            "slots": slot[row - 1, :PROMPT].tolist(),
            "tokens": list(range(PROMPT)),
        }
    for step in range(steps):
        at = PROMPT + step
        if alloc_each:
            for row in rows:
                yield {"ev": "alloc", "to": f"r{row}", "slots": [int(slot[row - 1, at])]}
        yield {
            "ev": "forward",
            "rows": rows,
            "prefix": [at] * lanes,
            "slots": slot[:, at].tolist(),
            "tokens": [step] * lanes,
        }


class NoKernels(Runtime):
    """Finds nothing and does nothing."""

    max_stretch = 32

    def start_stretch(self, stretch) -> None:
        self.ran = stretch.num_steps

    def end_stretch(self) -> bool:
        return True

    def forward(self, call) -> None:
        if self.table.changed:
            self.table.changed.clear()

    def drain(self):
        return EMPTY, 0

    def finish(self):
        return self.counters


NoKernels.__abstractmethods__ = frozenset()


def whole_replay(path: Path, device: str, steps: int) -> float:
    """Steps a second from the file's first decode step to the result."""
    began = []
    with open_trace(str(path)) as trace:
        lanes = trace.header.pool.rows - 1

        def note(done: int, *_: int) -> None:
            if done == lanes + 1:  # the first decode step is done
                began.append(time.perf_counter())

        options = ReplayOptions(
            device=DeviceChoice(kind="cpu" if device == "cpu" else "cuda", index=0, name=device, reason="")
        )
        run_replay(trace.header, trace, options, path=str(path), on_progress=note)
    return (steps - 1) / (time.perf_counter() - began[0])


def runtime_alone(path: Path, steps: int) -> float:
    """Steps a second of the runtime from planned stretches, reading and ownership left out."""
    from kvcanary_cli.replay.engine import Replay
    from kvcanary_cli.replay.forwards import decode_forward
    from kvcanary_cli.runtime.ahead_gpu import AheadRuntime

    with open_trace(str(path)) as trace:
        events = list(trace)
        layout = layout_of(trace.header)
    state = new_state(layout, track_changes=True)
    runtime = AheadRuntime(layout, state.table, state.swa_map, state.expected)
    lanes = layout.num_rows - 1
    replay = Replay(
        runtime, state, _NoLedger(), run_module.Limits(), path="x", on_violations=lambda batch: None
    )
    for line, event in islice(events, 3 * lanes):
        replay.apply(line, event)
    ahead = RunAhead(runtime, state, lambda: None)
    stretches = []
    forwards = events[3 * lanes :]
    for start in range(0, len(forwards) - 31, 32):
        window = forwards[start : start + 32]
        stretches.append(ahead._stretch(window))
        for line, event in window:
            decode_forward(event, line, state, "x")
        state.table.changed.clear()
    assert all(stretches)
    times = []
    for stretch in stretches:
        began = time.perf_counter()
        runtime.start_stretch(stretch)
        assert runtime.end_stretch()
        times.append(time.perf_counter() - began)
        runtime._steps_ahead = 0
    print(f"  median stretch of 32: {1e6 * float(np.median(times)):.0f} us")
    return 32 * len(times) / sum(times)


class _NoLedger:
    def __getattr__(self, name):
        return lambda *_: None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="none", choices=("none", "cuda", "cpu"))
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--alloc-each", action="store_true", help="an alloc event a lane and step")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decode.jsonl"
        with path.open("w", encoding="ascii") as out:
            out.writelines(
                json.dumps(line) + "\n"
                for line in lines(given.lanes, given.steps, alloc_each=given.alloc_each)
            )
        if given.device == "none":
            run_module.open_runtime = lambda _device, *masters, **_: NoKernels(*masters[:4])
        for number in range(3):
            print(f"whole replay, run {number}: {whole_replay(path, given.device, given.steps):,.0f} steps/s")
        if given.device == "cuda":
            print(f"runtime alone: {runtime_alone(path, given.steps):,.0f} steps/s")


if __name__ == "__main__":
    main()
