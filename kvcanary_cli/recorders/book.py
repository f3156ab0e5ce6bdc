"""From what hooks saw to events: keeps each row's request, entries and known tokens. Runs in the writer's thread.

A method of `Book` is one thing that a hook saw; they are called in the order in which it happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from kvcanary_cli.recorders.lines import Lines
from kvcanary_cli.recorders.rows import Row, changed_runs
from kvcanary_cli.recorders.staged import IntArray, Staged
from kvcanary_cli.recorders.tokens import Tokens
from kvcanary_cli.trace import events as ev

Ids = bytes  # token ids as int64, copied from the request
BoundRow = tuple[int, Any, Ids]  # row, request, its tokens
Lane = tuple[int, Any, int, int, bool]  # row, request, prefix, new columns, whether bound in this batch
Published = tuple[Ids, int, Staged]  # tokens from position 0 on, of which the cache had n, their slots


class Book:
    """Events of one recording.

    Args:
        write: takes encoded lines.
        kinds: events that may be written; what was seen of others is dropped.
        num_slots, page_size: of the pool.
        unseen: why a prefill may read slots that were filled or handed over where no hook looks; empty if it
            can't. Each prefill then begins with a gap, so that nobody is accused for what was not seen.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        kinds: Collection[str],
        tokens: Tokens,
        *,
        num_slots: int,
        page_size: int,
        unseen: str = "",
    ) -> None:
        self._lines = Lines(write, kinds)
        self._tokens = tokens
        self._page_size = page_size
        self._unseen = unseen
        self._num_slots = num_slots
        self._rows: dict[int, Row] = {}
        self._owner = np.full(num_slots, None, object)  # [num_slots] name of the last one that got the slot

    # rows and requests

    def relearned(self, rows: Sequence[BoundRow], lengths: Sequence[int], staged: Staged) -> None:
        """Rows that were bound while nothing was recorded, and the columns [0, length) of each."""
        numbers = staged.numbers()
        self.bound(rows)
        at = 0
        for (number, _, _), length in zip(rows, lengths, strict=True):
            self._remap(number, 0, numbers[at : at + length])
            at += length

    def bound(self, rows: Sequence[BoundRow]) -> None:
        """Requests got rows; their tokens so far are known."""
        for number, req, ids in rows:
            tokens = np.frombuffer(ids, np.int64)
            row = self._rows[number] = Row(number, req, len(tokens))
            self._lines.event(ev.Bind(row=number, rid=row.rid))
            if len(tokens):
                known = self._tokens.run(tokens, 0).tolist()
                self._lines.event(ev.Truth(rid=row.rid, at=0, tokens=known))

    def unbound(self, number: int, req: Any, why: Any, staged: Staged | None) -> None:
        """A request gives its row back, and with it what it shared with the cache: the columns in `staged`."""
        row = self._rows.pop(number, None)
        shared = staged.numbers() if staged is not None else np.zeros(0, np.int64)
        if row is not None:
            self._tell_truth([row])
            # what the request took is what it gives up, whatever its row says by now
            shared = row.slots(0, len(shared))
        if len(shared):
            self._lines.event(ev.Free(by=Row.name_of(req), slots=shared))
        self._lines.event(ev.End(rid=Row.name_of(req), why=why))
        self._lines.event(ev.Unbind(row=number))

    # slots

    def extended(self, lanes: Sequence[Lane], staged: Staged) -> None:
        """Slots for a prefill: the new ones of all lanes, then of each lane its prefix and what its row says.

        `staged` holds, after the sum of new columns, for a lane bound in this batch its prefix as the cache gave
        it and its row's columns [0, end), for others the new columns.
        """
        for number, req, _, _, _ in lanes:
            row = self._rows.get(number)
            if row is not None and row.req is not req:
                self.lost(0, f"row {number} went from {row.rid} to {Row.name_of(req)} without a release")
        if self._unseen:
            self._lines.event(ev.Gap(forwards=0, why=self._unseen))
        numbers = staged.numbers()
        at = 0
        for _, req, _, count, _ in lanes:
            self._allocated(Row.name_of(req), numbers[at : at + count])
            at += count
        for number, _, prefix, count, is_fresh in lanes:
            row = self._rows.get(number)
            shared = numbers[at : at + prefix] if is_fresh else None
            at += prefix if is_fresh else 0
            first = 0 if is_fresh else prefix
            entries = numbers[at : at + prefix + count - first]
            at += len(entries)
            if row is None:
                continue
            if shared is not None and len(shared):
                row.put(0, shared)
                self._shared(row, row.rid, 0, shared)
            self._map(row, first, entries)

    def decoded(self, reqs: Sequence[Any], staged: Staged) -> None:
        """One slot a lane for a decode: [4, num_lanes] rows, columns, slots handed out, the rows' entries."""
        numbers = staged.numbers().reshape(4, -1).tolist()
        taken = []
        odd: list[ev.Event] = []
        for req, number, column, slot, entry in zip(reqs, *numbers, strict=False):
            row = self._rows.get(number)
            if slot % self._page_size == 0:
                is_own = row is not None and row.req is req
                taken.append((row.json_name if is_own and row is not None else Row.json_name_of(req), slot))
                self._owner[slot : slot + self._page_size] = Row.name_of(req)
            if row is not None:
                row.put_one(column, entry)
                # a forward maps what it writes, so an entry needs a line only if it is not the slot handed out
                if entry != slot:
                    odd.append(ev.Map(row=number, at=column, slots=np.array([entry])))
        self._lines.allocs(taken, self._page_size)
        for event in odd:
            self._lines.event(event)

    def mapped(self, staged: Staged, row: int | None, first: int) -> None:
        """The table was written outside of allocations: one row from `first` on, or [3, n] rows, columns, slots."""
        numbers = staged.numbers()
        if row is not None:
            self._remap(row, first, numbers)
            return
        for number, column, slot in numbers.reshape(3, -1).T.tolist():
            self._remap(number, column, np.array([slot]))

    def read_back(self, rows: Sequence[tuple[int, int]], staged: Staged) -> None:
        """Rows as they stand on the device: (row, columns) each; what differs was written unseen."""
        numbers = staged.numbers()
        at = 0
        for number, count in rows:
            entries = numbers[at : at + count]
            at += count
            row = self._rows.get(number)
            if row is not None:
                for first, end in changed_runs(row.slots(0, count), entries):
                    self._remap(number, first, entries[first:end])

    def freed(self, req: Any, staged: Staged, is_pages: bool) -> None:
        """The allocator takes slots back from a request; None: from whoever had them last."""
        slots = self._whole_pages(staged.numbers(), is_pages=is_pages)
        if req is not None:
            self._lines.event(ev.Free(by=Row.name_of(req), slots=slots))
            return
        names = self._owner[slots]
        for name in dict.fromkeys(names.tolist()):
            if name is not None:
                self._lines.event(ev.Free(by=name, slots=slots[names == name]))

    def evicted(self, staged: Staged, is_pages: bool = False) -> None:
        """The cache gives slots up."""
        slots = self._whole_pages(staged.numbers(), is_pages=is_pages)
        if len(slots):
            self._lines.event(ev.Evict(slots=slots))

    def checkpointed(
        self, number: int, req: Any, published: Sequence[Published], first: int, staged: Staged | None
    ) -> None:
        """A request was put into the cache; its row was then rewritten to the cache's slots from `first` on."""
        row = self._rows.get(number)
        entries = staged.numbers() if staged is not None else np.zeros(0, np.int64)
        before = row.slots(first, first + len(entries)) if row is not None else entries.copy()
        name = Row.name_of(req) if req is not None else None
        for ids, num_known, values in published:
            if row is None and req is not None:
                # an unknown row: what the cache had already is what the request shares with it now
                before[: max(0, num_known - first)] = 0
            slots = values.numbers()[num_known:]
            if not len(slots):
                continue
            column = num_known - 1
            after: int | None = None
            if first <= column < first + len(entries):
                after = int(entries[column - first])
            elif row is not None and 0 <= column < row.length:
                after = row.entry(column)
            tokens = self._tokens.run(np.frombuffer(ids, np.int64)[: num_known + len(slots)], 0)
            known = tokens[num_known:].tolist()
            self._lines.event(ev.Publish(rid=name, at=num_known, slots=slots, tokens=known, after=after))
        for begin, end in changed_runs(before, entries):
            if row is not None:
                row.put(first + begin, entries[begin:end])
            if name is not None:
                self._shared(row, name, first + begin, entries[begin:end])

    # forwards

    def launched(
        self, seconds: float, mode: Any, lens: Sequence[Sequence[int]] | None, num_tokens: int, staged: Staged
    ) -> None:
        """A forward: (prefix, lens) of its lanes or None for a decode; rows, lengths, then ids, slots, positions."""
        numbers = staged.numbers()
        num_lanes = (len(numbers) - 3 * num_tokens) // 2
        rows, lengths = numbers[:num_lanes], numbers[num_lanes : 2 * num_lanes]
        ids, slots, positions = numbers[2 * num_lanes :].reshape(3, -1)
        if lens is None:
            prefix, counts = lengths - 1, np.ones(num_lanes, np.int64)
        else:
            prefix, counts = (np.array(part, np.int64) for part in lens)
        ends = np.cumsum(counts)
        own = np.repeat(prefix - (ends - counts), counts) + np.arange(num_tokens)
        known = [
            (lane, row) for lane, row in enumerate(map(self._rows.get, rows.tolist())) if row is not None
        ]
        self._tell_truth([row for _, row in known])
        if lens is None:
            for lane, row in known:
                self._pin(row, int(prefix[lane]), int(slots[lane]))
        self._lines.event(
            ev.Forward(
                t=round(seconds, 6),
                mode=mode,
                rows=rows.tolist(),
                prefix=prefix.tolist(),
                lens=None if lens is None else counts.tolist(),
                tokens=self._tokens.at(ids, own).tolist(),
                positions=None if np.array_equal(own, positions) else positions.tolist(),
                slots=slots,
            )
        )

    def hashed(self, source: str, staged_slots: Staged, staged_words: Staged) -> None:
        """The first bytes of slots as they are in the pool: [num_slots] and [num_slots, 16] bytes."""
        slots = staged_slots.numbers().reshape(-1)
        words = staged_words.wait().view(np.uint64).reshape(-1, 2)
        is_real = (slots > 0) & (slots < self._num_slots)
        if is_real.any():
            self._lines.digest(source, slots[is_real], words[is_real])

    def lost(self, num_forwards: int | None, why: str) -> None:
        """Forwards, and whatever happened around them, were not recorded."""
        self._lines.event(ev.Gap(forwards=num_forwards, why=why))
        self._rows.clear()
        self._owner[:] = None

    def _allocated(self, name: str, slots: IntArray) -> None:
        if self._page_size > 1:
            # the rest of a page that its request has already is filled up first; new pages begin at their start
            slots = self._whole_pages(slots[slots % self._page_size == 0])
        if len(slots):
            self._owner[slots] = name
            self._lines.event(ev.Alloc(to=name, slots=slots))

    def _shared(self, row: Row | None, name: str, at: int, slots: IntArray) -> None:
        """A prefix hit; where holders are not followed, its place in the row is told all the same."""
        if self._lines.takes("share"):
            self._lines.event(ev.Share(rid=name, at=at, slots=slots))
        elif row is not None:
            self._lines.event(ev.Map(row=row.number, at=at, slots=slots))

    def _map(self, row: Row, first: int, entries: IntArray) -> None:
        """Record the entries that differ from what is known of the row."""
        for begin, end in changed_runs(row.slots(first, first + len(entries)), entries):
            self._lines.event(ev.Map(row=row.number, at=first + begin, slots=entries[begin:end]))
        row.put(first, entries)

    def _pin(self, row: Row, column: int, slot: int) -> None:
        """Record the entry that a decode is going to write past: replay would take the written slot for it."""
        entry = row.entry(column)
        if entry not in (0, slot):
            self._lines.event(ev.Map(row=row.number, at=column, slots=np.array([entry])))

    def _remap(self, number: int, first: int, slots: IntArray) -> None:
        row = self._rows.get(number)
        if row is not None:
            row.put(first, slots)
        if len(slots):
            self._lines.event(ev.Map(row=number, at=first, slots=slots))

    def _tell_truth(self, rows: Sequence[Row]) -> None:
        """Tokens that requests got since they were last asked."""
        new = [(row, *row.new_tokens()) for row in rows if row.has_new_tokens()]
        if not new:
            return
        ids = np.concatenate([tokens for _, _, tokens in new])
        positions = np.concatenate([np.arange(at, at + len(tokens)) for _, at, tokens in new])
        written = self._tokens.at(ids, positions).tolist()
        begin = 0
        told = []
        for row, at, tokens in new:
            told.append((row.json_name, at, written[begin : begin + len(tokens)]))
            begin += len(tokens)
        self._lines.truths(told)

    def _whole_pages(self, slots: IntArray, *, is_pages: bool = False) -> IntArray:
        """Every slot of the pages that `slots` lie in, or that it numbers; each page once."""
        size = self._page_size
        if size == 1:
            return slots
        pages = slots if is_pages else np.unique(slots // size)
        return (pages[:, None] * size + np.arange(size)).reshape(-1)
