"""The replay itself: every event in order, through rows, memory and kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.replay import memory, rows
from kvcanary_cli.replay.capacities import CapacityLog, Demand, Limits, check_forward
from kvcanary_cli.replay.digests import DigestMismatch, Digests
from kvcanary_cli.replay.forwards import DecodedForward, decode_forward
from kvcanary_cli.replay.gaps import Unjudged, judge_batch, unjudged_entries
from kvcanary_cli.replay.history import SlotHistory
from kvcanary_cli.replay.state import RunState
from kvcanary_cli.replay.violations import (
    KnownSlots,
    ViolationBatch,
    collect_forward,
    collect_sweep,
    none_known,
)
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.calls import SweepCall
from kvcanary_cli.runtime.layout import SWA
from kvcanary_cli.trace import events as ev

DRAFT_MODES = ("verify", "draft")


@dataclass(slots=True)
class Totals:
    """Running totals of a replay.

    Attributes:
        steps: forwards run.
        events: events applied, forwards included.
        stamps: stamps written, HEAD and TAIL each counted.
        entries: verify entries planned, over all launches, sweeps included.
        unjudged: of these, entries that a gap left without a verdict.
        expectations: forwards that carried expected input tokens.
        sweeps: sweeps done, those without entries included.
        requests: requests seen.
        kinds: types of the events seen, forwards not included.
        violations: violation rows, those that a log had no room for included.
    """

    steps: int = 0
    events: int = 0
    stamps: int = 0
    entries: int = 0
    unjudged: int = 0
    expectations: int = 0
    sweeps: int = 0
    gaps: list[tuple[int, int | None, str | None]] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)
    kinds: set[type] = field(default_factory=set)
    violations: int = 0


class Replay:
    """One run over one trace.

    Args:
        runtime, state: memory of the run; the runtime reads the state's table, map and expected tokens.
        ledger: follows ownership beside the kernels.
        limits: launch capacities of the server, as far as known.
        path: name of the trace, for messages.
        sweep_interval: forwards between sweeps of the prefix cache; 0: only at `sweep` events.
        on_violations: called with each batch of violations as it appears.
        is_known: whether slots failed before; they are looked at last when thousands fail at once.
        history: follows one slot through everything.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: RunState,
        ledger: Ledger,
        limits: Limits,
        *,
        path: str,
        sweep_interval: int = 0,
        on_violations: Callable[[ViolationBatch], None],
        is_known: KnownSlots = none_known,
        history: SlotHistory | None = None,
    ) -> None:
        self.runtime = runtime
        self.state = state
        self.ledger = ledger
        self.limits = limits
        self._has_limits = limits.is_known
        self.path = path
        self.sweep_interval = sweep_interval
        self.totals = Totals()
        self.capacity = CapacityLog()
        self.digest_mismatches: list[DigestMismatch] = []
        self.digests = Digests()
        self._emit = on_violations
        self._history = history
        self._is_known = is_known
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            ev.Bind: self._bind,
            ev.Unbind: lambda _, event: rows.unbind(state, event),
            ev.Move: lambda _, event: rows.move(state, event),
            ev.End: lambda _, event: rows.end(state, event),
            ev.Truth: lambda _, event: rows.truth(state, event),
            ev.Share: lambda _, event: rows.share(state, event),
            ev.Map: lambda _, event: rows.map_row(state, event),
            ev.SwaMap: self._swa_map,
            ev.Publish: lambda _, event: rows.publish(state, event),
            ev.Evict: lambda _, event: rows.evict(state, event),
            ev.Forward: self._forward,
            ev.Sweep: lambda _line, _event: self.sweep(),
            ev.Gap: self._gap,
            ev.Kv: self._kv,
            ev.Stamp: lambda _, event: memory.stamp(runtime, event),
            ev.Offload: lambda _, event: memory.offload(runtime, state, event),
            ev.Reload: self._reload,
            ev.Xfer: self._xfer,
            ev.Digest: self._digest,
        }

    @property
    def step(self) -> int:
        """The forward that ran last; -1 before the first."""
        return self.totals.steps - 1

    def steps_until_sweep(self) -> int | None:
        """Forwards until the next sweep of `sweep_interval`; None without one."""
        interval = self.sweep_interval
        return interval - self.totals.steps % interval if interval else None

    def apply(self, line: int, event: ev.Event) -> None:
        """Act on one event; the ledger sees it first, with the table as it was."""
        self.totals.events += 1
        kind = type(event)
        if kind is ev.Xfer:
            memory.check_xfer(self.state, event, f"{self.path}:{line}")  # type: ignore[arg-type]
        if kind is not ev.Forward:
            self.totals.kinds.add(kind)
            self.ledger.event(max(0, self.step), line, event)
            if self._history is not None:
                self._history.event(max(0, self.step), line, event)
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(line, event)

    def begin_unknown(self) -> None:
        """The recorder was attached to a running engine: what existed before is unknown."""
        self.state.lose_history()

    def sweep(self) -> None:
        """Check everything that the prefix cache holds."""
        self.totals.sweeps += 1
        slots, positions, predecessors = self.state.cache.entries()
        for group in self.runtime.layout.groups:
            call = SweepCall(slots=slots, positions=positions, predecessors=predecessors)
            if group.kind == SWA and self.runtime.layout.maps_window:
                call = self._window_sweep(call)
            if call.slots.size == 0:
                continue
            self.runtime.sweep(group.kind, call)
            self.totals.entries += call.slots.size * len(self.runtime.layout.halves)
            batch = self._judged(collect_sweep(self.runtime, self.step, call, self._is_known))
            self._report(batch)
            if self._history is not None and self._history.group == group.kind:
                self._history.sweep(self.step, bool((call.slots == self._history.slot).any()), batch)

    def _window_sweep(self, call: SweepCall) -> SweepCall:
        """Cache entries that still have a window slot."""
        swa = self.state.swa_map
        mapped = swa[call.slots]
        live = mapped != 0
        before = call.predecessors[live]
        return SweepCall(
            slots=mapped[live],
            positions=call.positions[live],
            predecessors=np.where(before >= 0, swa[np.maximum(before, 0)], before),
        )

    def _bind(self, line: int, event: ev.Bind) -> None:
        self.totals.requests.add(event.rid)
        rows.bind(self.state, event)

    def _swa_map(self, line: int, event: ev.SwaMap) -> None:
        rows.swa_map(self.state, event)
        self.runtime.note_swa_map(event.full)

    def _forward(self, line: int, event: ev.Forward) -> None:
        decoded = decode_forward(event, line, self.state, self.path)
        call = decoded.call
        step = self.totals.steps
        self.totals.steps += 1
        self.ledger.forward(step, decoded)
        entries = {g.kind: self.runtime.planned_entries(g, call) for g in self.runtime.layout.groups}
        if self._has_limits:
            self._check_limits(step, decoded, entries, drafts=event.mode in DRAFT_MODES)
        self._count(decoded, entries)
        lost = unjudged_entries(self.state, self.runtime, call) if self.state.has_gap else Unjudged()
        self.runtime.forward(call)
        self.totals.unjudged += 2 * len(self.runtime.layout.halves) * lost.entries
        batch = self._judged(collect_forward(self.runtime, self.state, step, call, self._is_known))
        self._report(batch)
        if self._history is not None:
            self._history.forward(step, decoded, batch)
        self.ledger.forward_done(step, decoded)
        self._mark_written(call.slots)
        if self.sweep_interval and self.totals.steps % self.sweep_interval == 0:
            self.sweep()
            self.ledger.swept(step)

    def _check_limits(
        self, step: int, decoded: DecodedForward, entries: dict[str, int], *, drafts: bool
    ) -> None:
        demand = Demand(
            step=step,
            batch=decoded.num_lanes,
            tokens=decoded.num_tokens,
            entries=entries,
            checks_tokens=self.state.expected.is_used,
            drafts=drafts,
        )
        self.capacity.add(check_forward(self.limits, demand))

    def _count(self, decoded: DecodedForward, entries: dict[str, int]) -> None:
        launches = 2 * len(self.runtime.layout.halves)
        self.totals.entries += launches * sum(entries.values())
        self.totals.stamps += launches * len(entries) * int(np.count_nonzero(decoded.call.slots >= 0))
        self.totals.expectations += decoded.call.expected_tokens is not None

    def _mark_written(self, slots: np.ndarray) -> None:
        self.digests.written("full", slots)
        if self.state.has_gap:
            for group in self.runtime.layout.groups:
                self.state.mark_known(group.kind, self.runtime.in_group(group, slots))

    def _judged(self, batch: ViolationBatch | None) -> ViolationBatch | None:
        """The violations that stand after a gap; None when there are none."""
        if batch is not None and self.state.has_gap:
            batch = judge_batch(self.state, batch)
        return batch if batch is not None and (len(batch) or batch.lost) else None

    def _report(self, batch: ViolationBatch | None) -> None:
        if batch is not None:
            self.totals.violations += len(batch) + batch.lost
            self._emit(batch)

    def _gap(self, line: int, event: ev.Gap) -> None:
        self.totals.gaps.append((self.step, event.forwards, event.why))
        self.digests.forget()
        self.state.lose_history()

    def _kv(self, line: int, event: ev.Kv) -> None:
        memory.kv(self.runtime, self.state, event, line)
        if event.by is not None:
            self.digests.written(event.group, event.slots)

    def _reload(self, line: int, event: ev.Reload) -> None:
        memory.reload(self.runtime, self.state, event, f"{self.path}:{line}")
        self.digests.written(event.group, event.slots)

    def _xfer(self, line: int, event: ev.Xfer) -> None:
        transfer = self.state.transfers.get(event.id)
        memory.xfer(self.runtime, self.state, event, f"{self.path}:{line}")
        slots = event.slots if event.slots is not None else transfer.slots if transfer else None
        if event.op == "done" and slots is not None:
            self.digests.written(event.group, slots)

    def _digest(self, line: int, event: ev.Digest) -> None:
        names = {source.name for source in self.runtime.layout.sources}
        if event.source not in names:
            raise InputError(
                f"source {event.source!r} is not in the header", where=f"{self.path}:{line}", path="$.source"
            )
        self.digest_mismatches += self.digests.observe(
            event.group, event.source, event.slots, event.hash, self.step
        )
