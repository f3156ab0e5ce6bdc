"""Events that add holders with a claim about content: share and publish."""

from __future__ import annotations

import json

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.breach_log import Where
from kvcanary_cli.ledger.records import CACHE, IntArray
from kvcanary_cli.ledger.rows import Rows
from kvcanary_cli.ledger.rules import sharing as rules
from kvcanary_cli.ledger.rules.holders import flagged
from kvcanary_cli.ledger.state import NONE, LedgerState
from kvcanary_cli.ledger.windows import Windows
from kvcanary_cli.ledger.writes_jit import judge_publish, judge_share
from kvcanary_cli.trace import events as ev


class Sharing:
    """Follows prefix hits and the content of the prefix cache.

    Judged at once: holders, tokens as far as they are known, keys. Judged when the next forward runs: tokens that
    became known since, and whether anything was written at all.
    """

    def __init__(self, state: LedgerState, rows: Rows, windows: Windows) -> None:
        self._state = state
        self._rows = rows
        self._windows = windows
        self._keys: list[dict[str, object]] = [{}]  # number 0 means that no key was given
        self._key_numbers: dict[str, int] = {}
        self._key_of: dict[str, int] = {}
        self._keyed_shares: dict[str, list[IntArray]] = {}
        self._unwritten: list[tuple[Where, str | None, IntArray, IntArray]] = []

    def share(self, step: int, line: int, event: ev.Share) -> None:
        """A request becomes a holder of a prefix, and its row is mapped to it."""
        state, rid, slots, at = self._state, event.rid, event.slots, event.at
        where, table, name = (step, line), self._state.full, self._state.names.number(event.rid)
        if table.join(slots, name, step, line, c.BY_SHARE):
            rules.judge_join(state, where, slots, rid, "share")
            table.join(slots, name, step, line, c.BY_SHARE, apply=True)
        tokens = state.known_tokens(rid, at, slots.size)
        key = self._key_of.get(rid, 0)
        found = table.scratch(slots.size)
        is_doubtful = bool(judge_share(state.book(table), found, slots, tokens, key))
        unjudged = tokens < 0
        if is_doubtful:
            self._judge_tokens(where, rid, at, slots, tokens, found)
            self._judge_keys(where, rid, flagged(slots, found, c.OTHER_KEY), key)
            is_doubtful = bool((found[: slots.size] & c.UNWRITTEN).any())
        if self._key_numbers and table.slots[slots, c.PUBLISHED_KEY].any():
            self._keyed_shares.setdefault(rid, []).append(slots)
        row = state.page.rid_row.get(rid)
        if row is None:
            self._rows.early.setdefault(rid, []).append((at, slots.size, slots, unjudged))
            return
        self._rows.judge_spill(where, row, at, slots, rid, how="share")
        self._rows.remap(row, at, slots)
        self._rows.lengthen(row, at, slots.size)
        self._windows.suspect_shared(row, at, slots)
        if is_doubtful or unjudged.any():
            self._rows.of(row).shared.append((at, slots, unjudged))

    def publish(self, step: int, line: int, event: ev.Publish) -> None:
        """The cache becomes a holder of slots at these positions."""
        state, rid, slots, at = self._state, event.rid, event.slots, event.at
        where, table = (step, line), self._state.full
        tokens = NONE
        if event.tokens is not None and not state.header.token_position_offset:
            tokens = np.array(event.tokens, np.int64)
        key = self._key_number(event.key)
        found = table.scratch(slots.size)
        if judge_publish(state.book(table), found, slots, tokens, key):
            self._judge_publish(where, event, tokens, found, key)
        if table.join(slots, c.CACHE_NAME, step, line, c.BY_PUBLISH, at=at):
            rules.judge_join(state, where, slots, rid or CACHE, "publish")
            table.join(slots, c.CACHE_NAME, step, line, c.BY_PUBLISH, at=at, apply=True)
        if rid is not None and key:
            self._key_of[rid] = key
            for shared in self._keyed_shares.pop(rid, ()):
                other = table.slots[shared, c.PUBLISHED_KEY]
                self._judge_keys(where, rid, shared[(other != 0) & (other != key)], key)

    def forget(self, rid: str) -> None:
        """A request ended or begins anew: its key may be another one next time."""
        self._key_of.pop(rid, None)
        self._keyed_shares.pop(rid, None)

    def judge_reads(self, where: Where, row: int) -> None:
        """The first forward after a share reads it: was anything written, and with the sharer's tokens?"""
        doubts = self._rows.doubts[row]
        shares, doubts.shared = doubts.shared, []
        state, rid = self._state, self._rows.request(row)
        if rid is None:
            return
        for at, slots, unjudged in shares:
            tokens = np.where(unjudged, state.known_tokens(rid, at, slots.size), -1)
            found = np.zeros(slots.size, np.int64)
            if not judge_share(state.book(state.full), found, slots, tokens, 0):
                continue
            self._judge_tokens(where, rid, at, slots, tokens, found)
            unwritten = (found & c.UNWRITTEN) != 0
            if unwritten.any():
                positions = at + np.flatnonzero(unwritten)
                rules.share_unwritten(state, where, row, rid, slots[unwritten], positions)
                for slot in slots[unwritten].tolist():
                    state.unwritten_reads[slot] = (rid, where[0], int(state.full.slots[slot, c.EPOCH]))

    def judge_published(self) -> None:
        """The forward after a publish has run: was anything written?"""
        pending, self._unwritten = self._unwritten, []
        for where, rid, slots, positions in pending:
            still = (self._state.full.slots[slots, c.FLAGS] & (c.IS_WRITTEN | c.IS_OPEN)) == 0
            if still.any():
                rules.publish_unwritten(self._state, where, rid, slots[still], positions[still])

    @property
    def has_unwritten(self) -> bool:
        """Whether slots were published since the last forward that nobody had written."""
        return bool(self._unwritten)

    def lose_history(self) -> None:
        """A gap: what was in doubt stays unjudged."""
        self._unwritten.clear()
        self._keyed_shares.clear()

    def _judge_publish(
        self, where: Where, event: ev.Publish, tokens: IntArray, found: IntArray, key: int
    ) -> None:
        state, slots = self._state, event.slots
        found = found[: slots.size].copy()
        positions = event.at + np.arange(slots.size)
        wrong = (found & c.OTHER_TOKEN) != 0
        if wrong.any():
            rules.publish_token_mismatch(
                state, where, event.rid, slots[wrong], positions[wrong], tokens[wrong]
            )
        self._judge_keys(where, event.rid, slots[(found & c.OTHER_KEY) != 0], key)
        unwritten = (found & c.UNWRITTEN) != 0
        if unwritten.any():
            self._unwritten.append((where, event.rid, slots[unwritten], positions[unwritten]))

    def _judge_tokens(
        self, where: Where, rid: str, at: int, slots: IntArray, tokens: IntArray, found: IntArray
    ) -> None:
        wrong = (found[: slots.size] & c.OTHER_TOKEN) != 0
        if wrong.any():
            positions = at + np.flatnonzero(wrong)
            rules.share_token_mismatch(self._state, where, rid, slots[wrong], positions, tokens[wrong])

    def _judge_keys(self, where: Where, rid: str | None, slots: IntArray, key: int) -> None:
        if not slots.size:
            return
        for number in np.unique(self._state.full.slots[slots, c.PUBLISHED_KEY]).tolist():
            part = slots[self._state.full.slots[slots, c.PUBLISHED_KEY] == number]
            rules.key_mismatch(self._state, where, rid, part, (self._keys[key], self._keys[number]))

    def _key_number(self, key: dict[str, object] | None) -> int:
        if key is None:
            return 0
        text = json.dumps(key, sort_keys=True)
        number = self._key_numbers.get(text)
        if number is None:
            number = self._key_numbers[text] = len(self._keys)
            self._keys.append(key)
        return number
