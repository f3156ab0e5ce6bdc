"""Everything that happens to one slot, in order: for arguments about who did what when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcanary_cli.kernels.consts import RING_BITS, RING_SLOT, RING_TAG, LaunchTag, bit_names
from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.replay.forwards import DecodedForward
from kvcanary_cli.replay.state import RunState
from kvcanary_cli.replay.violations import ViolationBatch, group_of_tag
from kvcanary_cli.runtime.layout import SWA
from kvcanary_cli.runtime.page_table import find_cells
from kvcanary_cli.trace import events as ev


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One thing that happened to a slot.

    Attributes:
        step: forward, or the forward before the event; line: 1-based line of the trace, None for checks.
        what: `alloc`, `write`, `check ok`, `check FAIL`, `free`, …
        who: request or holder, None when nobody is named.
        epoch: epoch of the slot after the event.
        text: details.
    """

    step: int
    line: int | None
    what: str
    who: str | None
    epoch: int
    text: str


class SlotHistory:
    """Follows one slot through a replay.

    Args:
        group, slot: which slot.
        state, ledger: of the same replay.
    """

    def __init__(self, group: str, slot: int, state: RunState, ledger: Ledger) -> None:
        self.group = group
        self.slot = slot
        self.moments: list[Moment] = []
        self._state = state
        self._ledger = ledger
        self._wanted = np.array([slot], np.int64)

    def event(self, step: int, line: int, event: ev.Event) -> None:
        """Note an event that names the slot; called after the ledger took it in."""
        if getattr(event, "group", "full") != self.group and not isinstance(event, ev.SwaMap):
            return
        if isinstance(event, ev.Stamp):
            if event.slot == self.slot:
                self._note(step, line, "stamp damaged", None, f"{event.field} xor {event.xor:#x}")
            return
        at = self._place(event)
        if at is None:
            return
        what = type(event).__name__.lower()
        self._note(step, line, *_words(event, what, at))

    def forward(self, step: int, decoded: DecodedForward, batch: ViolationBatch | None) -> None:
        """Note what a forward checked and wrote of the slot."""
        call = decoded.call
        lut = (
            self._state.swa_map
            if self.group == SWA and self._state.layout.maps_window
            else np.zeros(0, np.int64)
        )
        window = self._state.layout.group(self.group).window
        starts = np.maximum(call.prefix - window, 0) if window else np.zeros_like(call.prefix)
        table = self._state.table
        cells = find_cells(table.entries, lut, call.rows, starts, call.prefix, table.width, self._wanted)
        failed = self._failures(batch)
        for lane, column, _ in cells.tolist():
            rid = table.row_rid[int(call.rows[lane])]
            self._check(step, rid, column, failed)
        written = self._state.swa_map[call.slots.clip(0)] if lut.size else call.slots
        lanes = np.repeat(np.arange(call.rows.size), call.lens)
        for i in np.nonzero(written == self.slot)[0].tolist():
            row = int(call.rows[lanes[i]])
            what = "write" if row else "padded write"
            text = f"position {int(call.positions[i])}, token {int(call.tokens[i])}" if row else "bytes alone"
            self._note(step, decoded.line, what, table.row_rid[row] if row else None, text)

    def sweep(self, step: int, held: bool, batch: ViolationBatch | None) -> None:
        """Note a sweep of the prefix cache, if it holds the slot."""
        if held:
            self._check(step, "cache", None, self._failures(batch))

    def _check(self, step: int, rid: str | None, column: int | None, failed: dict[str, list[str]]) -> None:
        where = "" if column is None else f"position {column}"
        if failed:
            reasons = "; ".join(f"{launch}: {' '.join(bits)}" for launch, bits in failed.items())
            self._note(step, None, "check FAIL", rid, ", ".join(part for part in (where, reasons) if part))
        else:
            self._note(step, None, "check ok", rid, where)

    def _failures(self, batch: ViolationBatch | None) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if batch is not None:
            for row in batch.rows.tolist():
                if row[RING_SLOT] == self.slot and group_of_tag(row[RING_TAG]) == self.group:
                    found[LaunchTag(row[RING_TAG]).name] = bit_names(row[RING_BITS])
        return found

    def _place(self, event: ev.Event) -> int | None:
        """Index of the slot in the event's list, None when it is not there."""
        for field in ("full", "slots"):
            slots = getattr(event, field, None)
            if isinstance(slots, np.ndarray):
                found = np.nonzero(slots == self.slot)[0]
                return int(found[0]) if found.size else None
        return None

    def _note(self, step: int, line: int | None, what: str, who: str | None, text: str) -> None:
        epoch = self._ledger.slot(self.group, self.slot).epoch
        self.moments.append(Moment(step=step, line=line, what=what, who=who, epoch=epoch, text=text))


def _words(event: ev.Event, what: str, at: int) -> tuple[str, str | None, str]:
    """What, who and details of an event that names the slot as element `at` of its list."""
    if isinstance(event, ev.Alloc | ev.Hold):
        return what, event.to, ""
    if isinstance(event, ev.Free):
        return what, event.by, ""
    if isinstance(event, ev.Share):
        return what, event.rid, f"position {event.at + at}"
    if isinstance(event, ev.Publish):
        return what, "cache", f"position {event.at + at}" + (f", by {event.rid}" if event.rid else "")
    if isinstance(event, ev.Evict):
        return what, "cache", ""
    if isinstance(event, ev.Map):
        return what, event.by, f"row {event.row}, column {event.at + at}"
    if isinstance(event, ev.SwaMap):
        return "window map", None, f"window slot {int(event.swa[at])}"
    if isinstance(event, ev.Kv):
        return f"kv {event.op}", event.by, "" if event.by is not None else "damage: nobody is named"
    if isinstance(event, ev.Offload | ev.Reload):
        return what, None, f"key {event.key}"
    if isinstance(event, ev.Xfer):
        return f"xfer {event.op}", event.rid, f"id {event.id}"
    return what, None, ""
