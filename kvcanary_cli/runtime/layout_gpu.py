"""What a run takes of a GPU's memory, beside what it takes everywhere."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvcanary_cli.kernels.consts import RING_WORDS, STAMP_BYTES
from kvcanary_cli.runtime.layout import Layout

# The log is emptied after each forward and can't grow while kernels write it; these 4 MiB hold more rows than
# a forward of a few thousand lanes has tokens to complain about.
RING_ROWS = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLayout(Layout):
    """A layout whose memory includes what the kernels need beside a run's own buffers."""

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by purpose on a GPU before the first event."""
        largest = max(group.num_slots for group in self.groups)
        return {
            **Layout.memory_bytes(self),
            "ring": RING_ROWS * RING_WORDS * 8,
            "seeds": largest * STAMP_BYTES,
        }


def device_layout(layout: Layout) -> DeviceLayout:
    """The same layout, with the memory that it takes on a GPU."""
    return DeviceLayout(**{field.name: getattr(layout, field.name) for field in fields(layout)})
