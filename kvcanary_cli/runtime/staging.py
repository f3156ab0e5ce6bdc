"""Host arrays on their way to a device: packed into one buffer, sent in one copy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from kvcanary_cli.runtime.calls import IntArray

# Every array begins at a multiple of 128 bytes. Triton compiles a kernel anew for pointers that are less
# aligned, so arrays of changing lengths, packed tightly, would cost a compilation for each new mix.
_GRAIN_WORDS = 16

_FIRST_WORDS = 1 << 14


class Staging:
    """A pinned host buffer and its device counterpart, both reused by each `send`.

    Args:
        device: where arrays go; on "cpu" (Triton's interpreter) memory is not pinned.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._copied: torch.cuda.Event | None = torch.cuda.Event() if self._is_cuda else None
        self._allocate(_FIRST_WORDS)

    def send(self, arrays: Mapping[str, IntArray]) -> dict[str, torch.Tensor]:
        """Copy arrays to the device, in stream order and without waiting for it.

        Args:
            arrays: name -> [n] int64.

        Returns:
            name -> [n] int64 on the device; what earlier calls returned is overwritten.
        """
        starts, words = [], 0
        for array in arrays.values():
            starts.append(words)
            words += -(-array.size // _GRAIN_WORDS) * _GRAIN_WORDS
        if self._copied is not None:
            self._copied.synchronize()  # the copy before may still be reading the pinned buffer
        if words > self._host.size:
            self._allocate(2 * words)
        for start, array in zip(starts, arrays.values(), strict=True):
            self._host[start : start + array.size] = array
        if words:
            self._on_device[:words].copy_(self._pinned[:words], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return {
            name: self._on_device[start : start + array.size]
            for start, (name, array) in zip(starts, arrays.items(), strict=True)
        }

    def _allocate(self, words: int) -> None:
        self._pinned = torch.zeros(words, dtype=torch.int64, pin_memory=self._is_cuda)
        self._host: IntArray = self._pinned.numpy()
        self._on_device = torch.zeros(words, dtype=torch.int64, device=self._device)


def last_of_each(slots: IntArray, num_slots: int) -> IntArray:
    """Places in `slots` that a device may store in any order with the result of storing all in list order.

    Args:
        slots: [n] int64, repetitions allowed.
        num_slots: those outside [0, num_slots) are left out.

    Returns:
        [m] int64 indices into `slots`, the last one of each slot.
    """
    inside = np.nonzero((slots >= 0) & (slots < num_slots))[0]
    _, from_end = np.unique(slots[inside][::-1], return_index=True)
    places: IntArray = inside[inside.size - 1 - from_end]
    return places
