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

    Attributes:
        shape: names and sizes of what was sent last. With an equal shape and `generation`, arrays lie where they
            lay before.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._copied: torch.cuda.Event | None = torch.cuda.Event() if self._is_cuda else None
        self._stream = torch.cuda.current_stream(device) if self._is_cuda else None
        self._allocate(_FIRST_WORDS)
        self.generation = 0
        self._lay_out(())

    def send(self, arrays: Mapping[str, IntArray]) -> dict[str, torch.Tensor]:
        """Copy arrays to the device, in stream order and without waiting for it.

        Args:
            arrays: name -> [n] int64.

        Returns:
            name -> [n] int64 on the device; what earlier calls returned is overwritten.
        """
        shape = tuple((name, array.size) for name, array in arrays.items())
        if shape != self.shape:
            self._lay_out(shape)
        if self._copied is not None:
            self._copied.synchronize()  # the copy before may still be reading the pinned buffer
        for place, array in zip(self._places, arrays.values(), strict=True):
            self._host[place] = array
        if self._words:
            self._sent_part.copy_(self._pinned_part, non_blocking=True)
        if self._copied is not None:
            self._copied.record(self._stream)
        return self._views

    def _lay_out(self, shape: tuple[tuple[str, int], ...]) -> None:
        """Places of arrays with these names and sizes; steps of one shape keep them."""
        starts, words = [], 0
        for _name, number in shape:
            starts.append(words)
            words += -(-number // _GRAIN_WORDS) * _GRAIN_WORDS
        if words > self._host.size:
            if self._copied is not None:
                self._copied.synchronize()
            self._allocate(2 * words)
            self.generation += 1
        self.shape, self._words = shape, words
        self._places = [
            slice(start, start + number) for start, (_, number) in zip(starts, shape, strict=True)
        ]
        self._views = {name: self._on_device[p] for p, (name, _) in zip(self._places, shape, strict=True)}
        self._pinned_part, self._sent_part = self._pinned[:words], self._on_device[:words]

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
