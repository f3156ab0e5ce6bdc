"""Time the scheduler model: requests with lengths like Azure's, served with nothing written, and the memory it takes.

Run by hand: `python tests/bench/bench_simulate.py [REQUESTS [CASE…]]`; pytest does not collect it. One core is used.
Each case runs in a process of its own, for its peak memory. `overload` has far more requests than the server can
take, so that the queue grows all the time; `one` has pages of one slot.
"""

from __future__ import annotations

import math
import random
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.facts import StepFacts
from kvcanary_cli.sim.scheduler import observe, simulate
from kvcanary_cli.trace.requests import Request

REQUESTS = 100_000
CODE, CHAT = (2048, 28), (1155, 211)  # mean prompt and output of the two Azure traces of 2023
CASES: dict[str, tuple[tuple[int, int], float, bool, dict[str, Any]]] = {
    "code": (CODE, 7.0, False, {}),
    "chat": (CHAT, 6.0, False, {}),
    "chat, events": (CHAT, 6.0, True, {}),
    "chat, mixed": (CHAT, 6.0, False, {"mixed_chunk": True}),
    "chat, one": (CHAT, 6.0, False, {"page_size": 1, "pool_slots": 400_001}),
    "chat, overload": (CHAT, 60.0, False, {}),
    "chat, pressure": (CHAT, 6.0, False, {"pool_slots": 60_016, "conservativeness": 0.1}),
    "code, vllm": (CODE, 7.0, False, {"scheduler": "vllm"}),
    "chat, vllm": (CHAT, 6.0, False, {"scheduler": "vllm"}),
}


def requests(means: tuple[int, int], rate: float, count: int) -> Iterator[Request]:
    """Lengths of a wide log-normal spread around the means, arrivals at random."""
    rng = random.Random(0)
    at = 0.0
    for number in range(count):
        at += rng.expovariate(rate)
        prompt, output = (
            max(1, min(16_000, int(rng.lognormvariate(math.log(mean) - 0.32, 0.8)))) for mean in means
        )
        yield Request(rid=f"r{number}", arrival_s=at, input_length=prompt, output_length=output)


def measure(name: str, count: int) -> str:
    means, rate, with_events, settings = CASES[name]
    config = SimConfig(**{"max_running_requests": 256, "row_width": 40_000, **settings})
    steps = lanes = 0
    last: StepFacts | None = None

    def see(fact: StepFacts) -> None:
        nonlocal steps, lanes, last
        steps += 1
        lanes += fact.lanes
        last = fact

    begin = time.perf_counter()
    if with_events:
        deque(simulate(requests(means, rate, count), config, on_step=see)[1], maxlen=0)
    else:
        observe(requests(means, rate, count), config, see)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert last is not None
    return (
        f"{name:16} {seconds:7.1f} s  {peak:6.0f} MiB  {steps:9,} steps  {lanes / steps:6.1f} lanes  "
        f"{last.retracted:6,} retracted  {last.evicted_slots:12,} evicted"
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    chosen = sys.argv[2:] or list(CASES)
    if len(chosen) == 1:
        print(measure(chosen[0], count), flush=True)
        return
    for name in chosen:
        subprocess.run([sys.executable, __file__, str(count), name], check=True)


if __name__ == "__main__":
    main()
