"""How long a launch takes on a GPU: medians over replays of a captured graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

MIN_REPLAY_US = 300.0  # events tick in half microseconds; a replay holds as many launches as this takes
MAX_LAUNCHES = 100
WARM_UPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Microseconds a launch: median, 20th and 80th percentile over replays."""

    median_us: float
    p20_us: float
    p80_us: float


def time_graph(launch: Callable[[], object], *, replays: int) -> Timing:
    """Time a launch without its host cost.

    Args:
        launch: enqueues work on the current stream; called a few times first, so that what it compiles and
            allocates is not timed.
        replays: how many samples are taken.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            launch()
        stream.synchronize()
        once = _sample(_capture(launch, 1, stream), 5, 1, stream)
        number = int(np.clip(np.ceil(MIN_REPLAY_US / max(np.median(once), 0.1)), 1, MAX_LAUNCHES))
        samples = _sample(_capture(launch, number, stream), replays, number, stream)
    p20, median, p80 = (float(value) for value in np.percentile(samples, [20, 50, 80]))
    return Timing(median_us=median, p20_us=p20, p80_us=p80)


def _capture(launch: Callable[[], object], number: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(number):
            launch()
    return graph


def _sample(graph: torch.cuda.CUDAGraph, replays: int, number: int, stream: torch.cuda.Stream) -> list[float]:
    """Microseconds a launch, one sample a replay."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    graph.replay()
    events[0].record(stream)
    for event in events[1:]:
        graph.replay()
        event.record(stream)
    stream.synchronize()
    return [before.elapsed_time(after) * 1000.0 / number for before, after in pairwise(events)]


COPY_BYTES = 2**31
_COPIES = 30


def copy_bandwidth(device: torch.device) -> float:
    """GB/s of a large device-to-device copy, bytes read and written: the limit that other numbers stand beside."""
    source = torch.randint(-(2**31), 2**31 - 1, (COPY_BYTES // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    # without a graph, where the driver copies with its fastest kernel; the first copies wake the clocks up
    times = []
    for _ in range(_COPIES):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return 2 * COPY_BYTES / float(np.median(times[_COPIES // 3 :])) / 1e6
