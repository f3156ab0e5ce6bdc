"""Tensors on their way to the host: copied on the stream that uses them, read later by another thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


class Staged:
    """A copy of tensors as they are now, one after the other.

    On a GPU the copy into pinned memory is put on the current stream and an event after it, so that neither
    this thread nor the GPU waits. Other devices copy at once.
    """

    __slots__ = ("_event", "_host")

    def __init__(self, parts: Sequence[Any]) -> None:
        import torch

        # joining copies; a single tensor may be a view of memory that the engine changes later
        whole = torch.cat(list(parts)) if len(parts) > 1 else parts[0].detach()
        self._event: Any = None
        if whole.device.type == "cuda":
            self._host = whole.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        elif whole.device.type == "cpu":
            self._host = whole if len(parts) > 1 else whole.clone()
        else:
            self._host = whole.to("cpu")

    def wait(self) -> npt.NDArray[Any]:
        """The copy, once it has arrived."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        array: npt.NDArray[Any] = self._host.numpy()
        return array

    def numbers(self) -> IntArray:
        """The copy as int64."""
        return self.wait().astype(np.int64, copy=False)
