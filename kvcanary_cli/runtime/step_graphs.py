"""Launches that repeat step after step, captured as a CUDA graph and replayed in one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

CAPTURE_AFTER = 3
"""Steps of one shape in a row before they are captured: a capture costs as much as a few tens of launches."""

MAX_GRAPHS = 64


class StepGraphs:
    """Graphs by shape.

    Args:
        device: on anything but CUDA (Triton's interpreter) every step is launched as it is.
        capture_after: steps of one shape in a row before the shape is captured.
    """

    def __init__(self, device: torch.device, *, capture_after: int = CAPTURE_AFTER) -> None:
        self._capture_after = capture_after
        self._is_cuda = device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._shape: Hashable = None
        self._repeats = 0

    def run(self, shape: Hashable, launch: Callable[[], None]) -> None:
        """Run a step.

        Args:
            shape: equal for two steps if `launch` would launch the same kernels with the same arguments.
            launch: enqueues the step on the current stream; nothing in it waits for the device.
        """
        graph = self._graphs.get(shape)
        if graph is not None:
            graph.replay()
            return
        self._repeats = self._repeats + 1 if shape == self._shape else 0
        self._shape = shape
        if not self._is_cuda or self._repeats < self._capture_after:
            launch()
            return
        if len(self._graphs) == MAX_GRAPHS:
            self._graphs.clear()
        graph = self._graphs[shape] = _capture(launch)
        graph.replay()


def _capture(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # torch.cuda.graph would collect garbage first, which takes long where a replay holds many objects
    with torch.cuda.stream(stream):
        graph.capture_begin()
        launch()
        graph.capture_end()
    return graph
