"""Host memory of a long replay: resident size at start-up and as steps go by.

Run by hand: `python tests/bench/bench_memory.py [STEPS]`; pytest does not collect it. Four lanes decode; every
request is 96 tokens long and is followed by another, so names, truths and slots turn over all the time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import run_replay
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.trace import events as ev

LANES, PROMPT, LENGTH = 4, 32, 96
HEADER = ev.Header(
    format="kvcanary-trace",
    version=1,
    pool=ev.Pool(slots=16 * 64, page_size=16, rows=LANES + 1, row_width=128),
    sources=[ev.Source(name="k", bytes_per_slot=32, hashed_bytes=16)],
)


def resident_mib() -> float:
    """Resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def stream(steps: int) -> Iterator[tuple[int, ev.Event]]:
    """Events of `steps` decode forwards, numbered as lines of a trace."""
    line, serial, position = 2, 0, LENGTH
    rows = list(range(1, LANES + 1))
    bases = np.array([16 + LENGTH * lane for lane in range(LANES)])
    for step in range(steps):
        if position == LENGTH:
            for lane, row in enumerate(rows):
                held = np.arange(bases[lane], bases[lane] + LENGTH)
                events: list[ev.Event] = []
                if serial:
                    old = f"req-{serial - 1}-{row}"
                    events = [ev.Free(by=old, slots=held), ev.Unbind(row=row), ev.End(rid=old, why="done")]
                rid = f"req-{serial}-{row}"
                events += [
                    ev.Bind(row=row, rid=rid),
                    ev.Truth(rid=rid, at=0, tokens=[(serial + p) % 5000 for p in range(LENGTH)]),
                    ev.Alloc(to=rid, slots=held),
                    ev.Forward(rows=[row], prefix=[0], lens=[PROMPT], slots=held[:PROMPT]),
                ]
                for event in events:
                    yield line, event
                    line += 1
            serial, position = serial + 1, PROMPT
        yield line, ev.Forward(rows=rows, prefix=[position] * LANES, slots=bases + position)
        line, position = line + 1, position + 1
        if step % (steps // 10) == 0:
            print(f"step {step:>9,}  {resident_mib():8.1f} MiB", flush=True)


def main() -> None:
    """Replay and print."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    cpu = DeviceChoice(kind="cpu", index=0, name="cpu", reason="")
    before = resident_mib()
    result = run_replay(HEADER, stream(steps), ReplayOptions(device=cpu, incremental=True), path="bench")
    assert result.totals.violations == 0
    assert not result.incidents
    after = resident_mib()
    print(f"{result.totals.steps:,} forwards: {before:.1f} MiB at start-up, {after:.1f} MiB at the end")


if __name__ == "__main__":
    main()
