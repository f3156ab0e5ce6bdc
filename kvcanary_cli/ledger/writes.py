"""Events that write slots: forwards, their padded lanes, and known writers outside of forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.arrivals import nowhere
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.forward_jit import (
    LANE_ACCEPTED,
    LANE_COLUMNS,
    LANE_FIRST,
    LANE_FLAGS,
    LANE_LAST,
    LANE_LENGTH,
    LANE_LENS,
    follow_forward,
    mark_checked,
)
from kvcanary_cli.ledger.records import IntArray
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.rules import holders as holder_rules
from kvcanary_cli.ledger.rules import rows as row_rules
from kvcanary_cli.ledger.rules import writes as rules
from kvcanary_cli.ledger.rules.window import window_reused
from kvcanary_cli.ledger.rules.writes import Written
from kvcanary_cli.ledger.sharing import Sharing
from kvcanary_cli.ledger.slot_table import SlotTable
from kvcanary_cli.ledger.state import NONE, LedgerState
from kvcanary_cli.ledger.transfers import Transfers
from kvcanary_cli.ledger.windows import Windows
from kvcanary_cli.ledger.writes_jit import record_writes
from kvcanary_cli.trace import events as ev

if TYPE_CHECKING:
    from kvcanary_cli.replay.forwards import DecodedForward

_WHOSE = c.NOT_HELD | c.NOT_THEIRS


class Writes:
    """Follows forwards: first what they read, then their lanes, then what they write."""

    def __init__(
        self, state: LedgerState, rows: Rows, sharing: Sharing, windows: Windows, transfers: Transfers
    ) -> None:
        self._state = state
        self._rows = rows
        self._sharing = sharing
        self._windows = windows
        self._transfers = transfers
        self._lane_flags = np.zeros((64, LANE_COLUMNS), np.int64)
        self._token_flags = np.zeros(1024, np.int64)
        no_window = SlotTable("swa", 0, 1, state.names)
        self._window = state.window if state.window is not None else no_window
        self._swa_map = state.swa_map if state.window is not None else NONE
        self._entries = (state.page.entries, rows.leftovers, rows.state, state.page.width)

    def forward(self, step: int, decoded: DecodedForward) -> None:
        """A forward is launched."""
        state, call, line = self._state, decoded.call, decoded.line
        where = (step, line)
        self._judge_reads(where, call.rows, call.prefix)
        if self._lane_flags.shape[0] < call.rows.size:
            self._lane_flags = np.zeros((2 * call.rows.size, LANE_COLUMNS), np.int64)
        if self._token_flags.size < call.slots.size:
            self._token_flags = np.zeros(2 * call.slots.size, np.int64)
        # the decoder hands over one list for both where the trace names none
        is_strict = decoded.accepted is not call.lens
        bad_lanes, bad_tokens = follow_forward(
            state.book(state.full), state.book(self._window), self._swa_map, self._rows.window_size, self._entries,
            (self._lane_flags, self._token_flags), (call.rows, call.prefix, call.lens, decoded.accepted),
            (call.slots, call.tokens, call.positions, decoded.column_state),
            (step, line, call.chain_positions, is_strict),
        )  # fmt: skip
        if bad_lanes:
            self._judge_lanes(where, decoded)
        if bad_tokens:
            self._judge_tokens(where, decoded)
        if call.pad_slots.size and call.pad_slots.any():
            self._pad(where, call.pad_slots)
        if state.lists_pages is None and state.full.page_size > 1:
            self._learn_pages(call.lens, call.prefix, call.slots, call.rows)

    def forward_done(self, step: int, decoded: DecodedForward) -> None:
        """The kernels have run: what the rows read was verified."""
        mark_checked(self._rows.state, decoded.call.rows, decoded.call.prefix, step)
        if self._sharing.has_unwritten:
            self._sharing.judge_published()

    def kv(self, step: int, line: int, event: ev.Kv) -> None:
        """Bytes replaced outside of a forward; without `by` it is damage that nobody records."""
        if event.by is None:
            return
        state, table, slots, where = self._state, self._state.tables[event.group], event.slots, (step, line)
        name = state.names.number(event.by)
        found = state.judge(table, slots, name)
        row = state.page.rid_row.get(event.by)
        writes = Written(table, slots, *nowhere(slots.size), row, event.by, "kv")
        wrong = (found & _WHOSE) != 0
        if wrong.any():
            gave_up = np.array(
                [holder_rules.gave_up(state, table, slot, event.by) for slot in slots.tolist()]
            )
            if (wrong & gave_up).any():
                rules.write_after_free(state, where, writes.only(wrong & gave_up))
            if (wrong & ~gave_up).any():
                rules.kv_foreign(state, where, writes.only(wrong & ~gave_up))
        held = (found & _WHOSE) == 0
        record_writes(
            state.book(table), found, held, slots, NONE, name, step, line, c.KV, c.NOBODY, -1, False
        )

    def _judge_reads(self, where: Where, rows: IntArray, prefix: IntArray) -> None:
        if self._state.ghosts:
            holder_rules.tree_names_released(self._state, where)
        if self._windows.has_released:
            self._windows.judge_released(where)
        doubts, transfers = self._rows.doubts, self._transfers
        if not doubts and not transfers.is_waiting:
            return
        for row, count in zip(rows.tolist(), prefix.tolist(), strict=True):
            if transfers.is_waiting and row:
                transfers.judge_reads(where, row, count)
            if row not in doubts:
                continue
            self._rows.judge_reads(where, row, count)
            self._sharing.judge_reads(where, row)
            self._windows.judge_reads(where, row, count)
            if doubts[row].is_empty:
                del doubts[row]

    def _judge_lanes(self, where: Where, decoded: DecodedForward) -> None:
        state, call, flags = self._state, decoded.call, self._lane_flags
        starts = np.cumsum(call.lens) - call.lens
        for lane in np.flatnonzero(flags[: call.rows.size, LANE_FLAGS]).tolist():
            found, row = int(flags[lane, LANE_FLAGS]), int(call.rows[lane])
            prefix, count, start = int(call.prefix[lane]), int(call.lens[lane]), int(starts[lane])
            rid, slots = self._rows.request(row), call.slots[start : start + count]
            length = int(flags[lane, LANE_LENGTH])
            if found & c.ROW_TWICE:
                row_rules.row_twice(state, where, row, rid, slots[slots >= 0])
            if found & c.LENGTH_MISMATCH:
                between = state.page.slots_of(row, min(length, prefix), max(length, prefix))
                before = length, int(flags[lane, LANE_ACCEPTED]), int(flags[lane, LANE_LENS])
                row_rules.length_mismatch(state, where, row, rid, between[between > 0], prefix, before)
            if found & c.LENGTH_JUMP:
                self._judge_jump(
                    where,
                    row,
                    rid,
                    prefix,
                    length,
                    (int(flags[lane, LANE_FIRST]), int(flags[lane, LANE_LAST])),
                )
            if found & c.POSITION_DRIFT:
                columns = np.arange(prefix, prefix + count)
                positions = call.positions[start : start + count]
                row_rules.position_drift(state, where, row, rid, slots, positions, columns)

    def _judge_jump(
        self, where: Where, row: int, rid: str | None, prefix: int, length: int, columns: tuple[int, int]
    ) -> None:
        state = self._state
        slots = state.page.slots_of(row, columns[0], columns[1] + 1)
        slots = slots[slots > 0]
        row_rules.length_jump(state, where, row, rid, slots, prefix, length, columns)
        for slot in slots[slots < state.full.num_slots].tolist() if rid is not None else ():
            state.unwritten_reads[slot] = (str(rid), where[0], int(state.full.slots[slot, c.EPOCH]))

    def _judge_tokens(self, where: Where, decoded: DecodedForward) -> None:
        call, page = decoded.call, self._state.page
        lanes = np.repeat(np.arange(call.rows.size), call.lens)
        columns = call.prefix[lanes] + np.arange(lanes.size) - (np.cumsum(call.lens) - call.lens)[lanes]
        flags = self._token_flags[: call.slots.size]
        for lane in np.unique(lanes[flags != 0]).tolist():
            row = int(call.rows[lane])
            mine = (lanes == lane) & (flags != 0)
            cells = row * page.width + columns[mine]
            entries = np.full(cells.size, -1, np.int64)
            entries[cells < page.entries.size] = page.entries[cells[cells < page.entries.size]]
            rid = self._rows.request(row)
            writes = Written(self._state.full, call.slots[mine], entries, columns[mine], row, rid, "forward")
            self._judge_lane_writes(where, writes, flags[mine])
        for i in np.flatnonzero(flags & c.WRITTEN_TWICE).tolist():
            slot = int(call.slots[i])
            both = np.flatnonzero((call.slots[: i + 1] == slot) & (call.rows[lanes[: i + 1]] != 0)).tolist()
            names = [self._rows.request(int(call.rows[lanes[j]])) for j in both]
            rules.two_writers(self._state, where, slot, names, columns[both].tolist())

    def _judge_lane_writes(self, where: Where, writes: Written, flags: IntArray) -> None:
        state, row = self._state, writes.row or 0

        def part(flag: int) -> Written | None:
            mask = (flags & flag) != 0
            return writes.only(mask) if mask.any() else None

        if (found := part(c.OUT_OF_RANGE)) is not None:
            rules.slot_out_of_range(state, where, found)
        if (found := part(c.SPILLED)) is not None:
            first = int(found.columns[0])
            row_rules.spill(state, where, row, first, found.slots, found.name, how="forward")
        if (found := part(c.OUTSIDE_ROW)) is not None:
            rules.write_outside_row(state, where, found)
        if (found := part(c.LEFTOVER)) is not None:
            rules.leftover(state, where, found, state.names.name(int(self._rows.state[row, c.ROW_FORMER])))
        if (found := part(_WHOSE)) is not None:
            self._judge_whose(where, writes, flags)
        if (found := part(c.SHARED)) is not None:
            rules.write_shared(state, where, found)
        if state.window is not None:
            self._judge_window(where, writes, flags)

    def _judge_whose(self, where: Where, writes: Written, flags: IntArray) -> None:
        state, row = self._state, writes.row or 0
        unheld, foreign = (flags & c.NOT_HELD) != 0, (flags & c.NOT_THEIRS) != 0
        if self._rows.state[row, c.ROW_NAME] == c.NOBODY:
            # a row without request: its former one may still have had a forward under way
            late = np.array(
                [
                    holder_rules.gave_up(state, writes.table, slot, writes.name)
                    for slot in writes.slots.tolist()
                ]
            )
            late &= unheld | foreign
            if late.any():
                rules.write_after_free(state, where, writes.only(late))
            unheld, foreign = unheld & ~late, foreign & ~late
        if unheld.any():
            rules.write_unheld(state, where, writes.only(unheld))
        if foreign.any():
            rules.write_foreign(state, where, writes.only(foreign))

    def _judge_window(self, where: Where, writes: Written, flags: IntArray) -> None:
        state = self._state
        for i in np.flatnonzero(flags & c.NO_WINDOW_SLOT).tolist():
            self._windows.suspect_written(writes.row or 0, int(writes.columns[i]), int(writes.slots[i]))
        foreign = (flags & c.FOREIGN_WINDOW_SLOT) != 0
        if foreign.any() and state.window is not None:
            slots = state.swa_map[writes.slots[foreign]]
            others = state.window.slots[slots, c.MAPPED_BY].astype(np.int64)
            window_reused(state, where, slots, writes.slots[foreign], others, how="written-through-old-map")

    def _pad(self, where: Where, slots: IntArray) -> None:
        state, table = self._state, self._state.full
        inside = (slots >= 0) & (slots < table.num_slots)
        if not inside.all():
            wild = slots[~inside]
            rules.slot_out_of_range(
                state, where, Written(table, wild, *nowhere(wild.size), None, None, "pad")
            )
        slots = slots[inside & (slots != 0)]
        if slots.size:
            rules.pad_write(state, where, slots)
            found = state.judge(table, slots, c.NOBODY)
            not_in_row = np.zeros(slots.size, np.bool_)
            record_writes(
                state.book(table),
                found,
                not_in_row,
                slots,
                NONE,
                c.NOBODY,
                *where,
                c.PAD,
                c.NOBODY,
                -1,
                False,
            )

    def _learn_pages(self, lens: IntArray, prefix: IntArray, slots: IntArray, rows: IntArray) -> None:
        """The allocator lists whole pages if, after a lane that ends inside one, all of that page is held."""
        table, at = self._state.full, -1
        for row, count, start in zip(rows.tolist(), lens.tolist(), prefix.tolist(), strict=True):
            at += count
            if not row or not count or (start + count) % table.page_size == 0:
                continue
            page = int(slots[at]) // table.page_size
            held = table.slots[page * table.page_size : (page + 1) * table.page_size, c.NUM]
            if page > 0 and held.size:
                self._state.lists_pages = bool((held > 0).all())
                return
