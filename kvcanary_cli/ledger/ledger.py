"""Who holds which slot, who wrote it last, and what broke the rules of ownership."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import BreachLog
from kvcanary_cli.ledger.facts import overview, slot_facts
from kvcanary_cli.ledger.host_store import HostStore
from kvcanary_cli.ledger.judged import unjudged_rules
from kvcanary_cli.ledger.names import Names
from kvcanary_cli.ledger.ownership import Ownership
from kvcanary_cli.ledger.records import Breach, End, IntArray, SlotFacts
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.rules.holders import tree_names_released
from kvcanary_cli.ledger.sharing import Sharing
from kvcanary_cli.ledger.state import Truth, new_state
from kvcanary_cli.ledger.transfers import Transfers
from kvcanary_cli.ledger.windows import Windows
from kvcanary_cli.ledger.writes import Writes
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.trace import events as ev

if TYPE_CHECKING:
    from kvcanary_cli.replay.forwards import DecodedForward


class Ledger:
    """Follows one trace; reads the replay's page table, window map and known tokens, and changes none of them.

    Args:
        header: of the trace.
        table: the replay's page table.
        swa_map: [num_slots] int64, the replay's full-to-window map.
        truth: known tokens of a request at positions `[start, stop)`, -1 where unknown.
    """

    def __init__(self, header: ev.Header, table: PageTable, swa_map: IntArray, truth: Truth) -> None:
        self._unjudged = unjudged_rules(header)
        self._log = BreachLog(Names(), self._unjudged)
        self._state = new_state(header, table, swa_map, truth, self._log)
        self._rows = Rows(self._state)
        self._windows = Windows(self._state, self._rows)
        self._sharing = Sharing(self._state, self._rows, self._windows)
        self._transfers = Transfers(self._state, self._rows)
        self._host = HostStore(self._state)
        self._ownership = Ownership(self._state, self._rows, self._windows)
        self._writes = Writes(self._state, self._rows, self._sharing, self._windows, self._transfers)
        self._events = 0
        self._last_sweep = -1
        self._handlers: dict[type, Callable[[int, int, Any], None]] = {
            ev.Bind: self._bind,
            ev.Unbind: self._rows.unbind,
            ev.Move: self._rows.move,
            ev.End: self._end,
            ev.Alloc: self._ownership.alloc,
            ev.Hold: self._ownership.hold,
            ev.Share: self._sharing.share,
            ev.Publish: self._sharing.publish,
            ev.Free: self._ownership.free,
            ev.Evict: self._ownership.evict,
            ev.Map: self._rows.map,
            ev.SwaMap: self._windows.remap,
            ev.Kv: self._writes.kv,
            ev.Offload: self._host.offload,
            ev.Reload: self._host.reload,
            ev.Xfer: self._transfers.xfer,
            ev.Sweep: self._sweep,
            ev.Gap: self._gap,
        }
        if header.state == "unknown" or header.continues is not None:
            self.begin_unknown()

    @property
    def breaches(self) -> list[Breach]:
        """Breaches so far, in order of discovery."""
        return self._log.breaches

    def event(self, step: int, line: int, event: ev.Event) -> None:
        """Follow any event but a forward, before the replay acts on it."""
        self._events += 1
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(step, line, event)

    def forward(self, step: int, decoded: DecodedForward) -> None:
        """Follow a forward, after it was decoded (which fills the table) and before its kernels run."""
        self._events += 1
        self._writes.forward(step, decoded)

    def forward_done(self, step: int, decoded: DecodedForward) -> None:
        """The kernels of a forward have run: what its rows read was verified."""
        self._writes.forward_done(step, decoded)

    def begin_unknown(self) -> None:
        """What happened before is unknown: the recorder was attached late, or lost something."""
        for table in {id(table): table for table in self._state.tables.values()}.values():
            table.lose_history()
        self._rows.lose_history()
        self._sharing.lose_history()
        self._transfers.lose_history()
        self._windows.lose_history()
        self._state.ghosts.clear()

    def swept(self, step: int) -> None:
        """A sweep verified everything that the cache holds."""
        self._last_sweep = step

    def slot(self, group: str, slot: int) -> SlotFacts:
        """What is known of a slot now; `group` as events name it."""
        return slot_facts(self._state, self._rows, group, slot, self._last_sweep)

    def epoch(self, group: str, slot: int) -> int:
        """Which stay of the slot this is; 0 for one outside of the pool."""
        table = self._state.tables[group]
        return int(table.slots[slot, c.EPOCH]) if 0 <= slot < table.num_slots else 0

    def holder_names(self, group: str, slots: IntArray) -> list[tuple[str, ...]]:
        """Names of the holders of each slot, in the order in which they came."""
        table = self._state.tables[group]
        return [self._state.holder_names(table, (slot,)) for slot in slots.tolist()]

    def overview(self, group: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """[num_slots] each: whether a slot was ever written, and whether it was ever verified."""
        return overview(self._state, self._rows, group, self._last_sweep)

    def ending(self, rid: str) -> End | None:
        """How a request ended last; None while it did not."""
        return self._state.ended.get(rid)

    def counts(self) -> dict[str, object]:
        """Events followed, breaches, and the rules that could not be judged with the missing kinds of event."""
        return {
            "events": self._events,
            "breaches": len(self.breaches) + self._state.log.dropped,
            "unjudged": self._unjudged,
        }

    def _bind(self, step: int, line: int, event: ev.Bind) -> None:
        self._rows.bind(step, line, event)

    def _end(self, step: int, line: int, event: ev.End) -> None:
        self._rows.end(step, line, event)
        self._sharing.forget(event.rid)

    def _sweep(self, step: int, line: int, event: ev.Sweep) -> None:
        if self._state.ghosts:
            tree_names_released(self._state, (step, line))
        self.swept(step)

    def _gap(self, step: int, line: int, event: ev.Gap) -> None:
        self.begin_unknown()
