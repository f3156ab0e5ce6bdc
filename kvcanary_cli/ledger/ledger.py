"""Who holds which slot, who wrote it last, and what broke the rules of ownership."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import BreachLog
from kvcanary_cli.ledger.names import Names
from kvcanary_cli.ledger.records import CACHE, Breach, IntArray, SlotFacts
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.runtime.page_table import PageTable
from kvcanary_cli.trace import events as ev

if TYPE_CHECKING:
    from kvcanary_cli.replay.forwards import DecodedForward

Truth = Callable[[str, int, int], Any]


class Ledger:
    """Follows one trace; reads the replay's table, window map and expected tokens, and changes none of them.

    Args:
        header: of the trace.
        table: the replay's page table.
        swa_map: [num_slots] int64, the replay's full-to-window map.
        truth: known tokens of a request at positions `[start, stop)`, -1 where unknown.
    """

    def __init__(self, header: ev.Header, table: PageTable, swa_map: IntArray, truth: Truth) -> None:
        self._names = Names()
        kinds = [group.kind for group in header.groups]
        page_size = header.pool.page_size
        tables = {kind: SlotTable(kind, header.num_slots(kind), page_size, self._names) for kind in kinds}
        # a lone group is the pool, whatever an event calls it
        self._tables = {kind: tables.get(kind, tables[kinds[0]]) for kind in ("full", "swa")}
        self._log = BreachLog(self._names)
        self._events = 0
        self._handlers: dict[type, Callable[[int, int, Any], None]] = {
            ev.Alloc: self._alloc,
            ev.Hold: self._hold,
            ev.Share: self._share,
            ev.Publish: self._publish,
            ev.Free: self._free,
            ev.Evict: self._evict,
            ev.Gap: self._gap,
        }

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
        """Follow a forward, after it was decoded and before its kernels run."""
        self._events += 1

    def forward_done(self, step: int, decoded: DecodedForward) -> None:
        """The kernels of a forward have run: what its rows read was checked."""

    def slot(self, group: str, slot: int) -> SlotFacts:
        """What is known of a slot now."""
        table = self._tables[group]
        table.refresh(slot)
        flags = int(table.slots[slot, c.FLAGS])
        holders = table.holders(slot)
        return SlotFacts(
            slot=slot,
            group=table.kind,
            epoch=int(table.slots[slot, c.EPOCH]),
            known=not flags & c.IS_OPEN,
            holders=holders,
            allocated=table.allocated(slot),
            released=table.released(slot),
            given_up=table.given_up(slot),
            previous=table.previous(slot),
            byte_writer=table.writer(slot, c.BYTES_AT),
            stamp_writer=table.writer(slot, c.STAMP_AT),
            is_written=bool(flags & c.IS_WRITTEN),
            published=any(holder.name == CACHE and holder.how == "publish" for holder in holders),
            token=int(table.slots[slot, c.TOKEN]) if flags & c.HAS_TOKEN else None,
            last_checked_step=None,
        )

    def holder_names(self, group: str, slots: IntArray) -> list[tuple[str, ...]]:
        """Names of the holders of each slot, in the order in which they came."""
        return [self._tables[group].holder_names(slot) for slot in slots.tolist()]

    def counts(self) -> dict[str, object]:
        """Events followed and breaches found."""
        return {"events": self._events, "breaches": len(self.breaches), "unjudged": {}}

    def _alloc(self, step: int, line: int, event: ev.Alloc) -> None:
        table, name = self._tables[event.group], self._names.number(event.to)
        if table.allocate(event.slots, name, step, line):
            table.allocate(event.slots, name, step, line, apply=True)

    def _hold(self, step: int, line: int, event: ev.Hold) -> None:
        self._join(step, line, event.to, event.slots, c.BY_HOLD)

    def _share(self, step: int, line: int, event: ev.Share) -> None:
        self._join(step, line, event.rid, event.slots, c.BY_SHARE)

    def _publish(self, step: int, line: int, event: ev.Publish) -> None:
        self._join(step, line, CACHE, event.slots, c.BY_PUBLISH, event.at)

    def _join(self, step: int, line: int, to: str, slots: IntArray, how: int, at: int = 0) -> None:
        table, name = self._tables["full"], self._names.number(to)
        if table.join(slots, name, step, line, how, at=at):
            table.join(slots, name, step, line, how, at=at, apply=True)

    def _free(self, step: int, line: int, event: ev.Free) -> None:
        self._leave(step, line, event.group, event.by, event.slots, c.WHY_FREE)

    def _evict(self, step: int, line: int, event: ev.Evict) -> None:
        self._leave(step, line, event.group, CACHE, event.slots, c.WHY_EVICT)

    def _leave(self, step: int, line: int, group: str, by: str, slots: IntArray, why: int) -> None:
        table, name = self._tables[group], self._names.number(by)
        if table.leave(slots, name, step, line, why):
            table.leave(slots, name, step, line, why, apply=True)

    def _gap(self, step: int, line: int, event: ev.Gap) -> None:
        for table in {id(table): table for table in self._tables.values()}.values():
            table.lose_history()
