"""What follows from the order of events alone: errors that stop a replay, and remarks about what looks unusual.

Nothing here needs a kernel. What an engine may have done, however wrong, is for a replay to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.files import LineError


class OrderChecks:
    """Checks of the events of one trace, in their order.

    Attributes:
        remarks: called with a sentence about what replay accepts but a recorder hardly means.
    """

    def __init__(self, header: ev.Header, remark: Callable[[str], None]) -> None:
        self._remark = remark
        self._width = header.pool.row_width
        self._knows_all = header.state == "empty" and header.continues is None
        self._records = None if header.records is None else set(header.records)
        self._mapped: dict[int, np.ndarray] = {}
        self._row_rid: dict[int, str] = {}
        self._rid_row: dict[str, int] = {}
        self._used: set[int] = set()
        self._early: dict[str, list[tuple[int, int]]] = {}
        self._transfers: dict[str, tuple[int | None, str]] = {}
        self._stored: dict[str, int] = {}
        self._checks: dict[type, Callable[[Any], None]] = {
            ev.Bind: self._bind,
            ev.Unbind: self._unbind,
            ev.Move: self._move,
            ev.Share: self._share,
            ev.Map: lambda event: self._map(event.row, event.at, event.slots != 0),
            ev.Forward: self._forward,
            ev.Offload: self._offload,
            ev.Reload: self._reload,
            ev.Xfer: self._xfer,
            ev.Gap: self._gap,
        }

    def check(self, event: ev.Event) -> None:
        """Go one event on. Raises `LineError` for what a replay would stop at."""
        check = self._checks.get(type(event))
        if check is not None:
            check(event)

    @property
    def pending_transfers(self) -> list[str]:
        """Transfers that started and neither landed nor were called off."""
        return sorted(self._transfers)

    def _cells(self, row: int) -> np.ndarray:
        return self._mapped.setdefault(row, np.zeros(self._width, np.bool_))

    def _bind(self, event: ev.Bind) -> None:
        self._leave(event.row)
        if event.rid in self._rid_row:
            self._leave(self._rid_row[event.rid])
        self._row_rid[event.row], self._rid_row[event.rid] = event.rid, event.row
        self._used.add(event.row)
        self._mapped.pop(event.row, None)
        for at, count in self._early.pop(event.rid, ()):
            self._map(event.row, at, np.ones(count, np.bool_))

    def _leave(self, row: int) -> None:
        rid = self._row_rid.pop(row, None)
        if rid is not None:
            self._rid_row.pop(rid, None)

    def _unbind(self, event: ev.Unbind) -> None:
        if event.row not in self._row_rid and self._knows_all:
            self._remark(f"row {event.row} is unbound, but no request has it")
        self._leave(event.row)

    def _move(self, event: ev.Move) -> None:
        old = self._rid_row.get(event.rid)
        cells = self._cells(old).copy() if old is not None else None
        if old is None and self._knows_all:
            self._remark(f"request {event.rid!r} moves, but has no row")
        self._bind(ev.Bind(row=event.row, rid=event.rid))
        if cells is not None:
            self._mapped[event.row] = cells

    def _share(self, event: ev.Share) -> None:
        row = self._rid_row.get(event.rid)
        if row is None:
            self._early.setdefault(event.rid, []).append((event.at, event.slots.size))
        else:
            self._map(row, event.at, event.slots != 0)

    def _map(self, row: int, at: int, is_mapped: np.ndarray) -> None:
        """Columns past a row's last one are the next row's, as in memory."""
        while is_mapped.size:
            row, at = row + at // self._width, at % self._width
            inside = min(is_mapped.size, self._width - at)
            self._cells(row)[at : at + inside] = is_mapped[:inside]
            is_mapped, at = is_mapped[inside:], self._width

    def _forward(self, event: ev.Forward) -> None:
        lens = event.lens if event.lens is not None else [1] * len(event.rows)
        first = 0
        for lane, (row, prefix, count) in enumerate(zip(event.rows, event.prefix, lens, strict=True)):
            given = event.slots[first : first + count] if event.slots is not None else None
            first += count
            if not row:
                continue
            if row not in self._used and self._knows_all:
                self._remark(f"lane {lane} runs row {row}, which no request was ever bound to")
                self._used.add(row)
            self._lane(lane, row, prefix, count, given)

    def _lane(self, lane: int, row: int, prefix: int, count: int, given: np.ndarray | None) -> None:
        if given is not None:
            written = self._cells(row)[prefix : prefix + count]
            written |= given[: written.size] > 0
            return
        columns = np.arange(prefix, prefix + count)
        inside = self._cells(row)[columns[columns < self._width]]
        if not inside.all():
            column = prefix + int(np.argmin(inside))
            raise LineError(
                f"lane {lane} writes column {column} of row {row}, which names no slot, and the forward gives none",
                path="$.slots",
                hint="record `slots` with the forward, or a `map` of the row before it",
            )

    def _offload(self, event: ev.Offload) -> None:
        self._stored[event.key] = event.slots.size

    def _reload(self, event: ev.Reload) -> None:
        held = self._stored.get(event.key)
        count = event.slots.size if event.count is None else event.count
        if held is None:
            if self._knows_all:
                raise LineError(
                    f"key {event.key!r} is reloaded, but nothing was offloaded under it",
                    path="$.key",
                    hint="record the `offload` of that key, or a `gap` where the recording lost it",
                )
        elif count > held:
            raise LineError(
                f"{count} slots are reloaded from key {event.key!r}, which holds {held}", path="$.slots"
            )

    def _xfer(self, event: ev.Xfer) -> None:
        if event.op == "start":
            size = event.slots.size if event.slots is not None else None
            self._transfers[event.id] = (size, event.group)
            return
        started = self._transfers.pop(event.id, None)
        if event.op == "cancel":
            if started is None and self._knows_all:
                self._remark(f"transfer {event.id!r} is called off, but it never started")
            return
        if event.slots is None and started is None:
            raise LineError(
                f"transfer {event.id!r} is done, but neither it nor its start names slots", path="$.slots"
            )
        if started is None:
            if self._knows_all:
                self._remark(f"transfer {event.id!r} is done, but it never started")
            return
        self._landed(event, *started)

    def _landed(self, event: ev.Xfer, size: int | None, group: str) -> None:
        if event.slots is None and group != event.group:
            raise LineError(
                f'transfer {event.id!r} lands in group "{event.group}", '
                f'its start addresses slots of group "{group}"',
                path="$.group",
            )
        count = event.slots.size if event.slots is not None else size
        if count is not None and event.tokens is not None and len(event.tokens) < count:
            raise LineError(
                f"{count} slots are delivered with {len(event.tokens)} tokens; {count} are needed, "
                f"or {event.at + count} with those before position {event.at}",
                path="$.tokens",
            )

    def _gap(self, event: ev.Gap) -> None:
        """From here on a name that nobody introduced may have been introduced in the gap."""
        self._knows_all = False
        self._mapped.clear()
