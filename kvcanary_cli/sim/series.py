"""What a modelled run was like: its peaks, and its time series in the columns of serving benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcanary_cli.sim.facts import StepFacts

TICK_S = 1.0


class Peak(NamedTuple):
    """The largest value of any forward, and the first forward that has it, from 0."""

    value: int = 0
    step: int = 0
    time_s: float = 0.0


PEAKS = (
    "running",
    "waiting",
    "lanes",
    "tokens",
    "prefill_tokens",
    "verify_entries",
    "window_entries",
    "request_slots",
    "used_slots",
    "used_window_slots",
)
"""Fields of `StepFacts` whose largest value is kept."""


class Tick(NamedTuple):
    """One row of a time series: what was done since the row before, and the state at time `t`.

    Attributes:
        t: seconds from the first arrival on.
        prompt_throughput: prompt tokens a second of the requests that sampled their first token, once each.
        gen_throughput: tokens sampled a second.
        running, waiting: requests.
        kv_cache_pct: slots that requests hold, in percent of what the pool hands out.
        forwards: launched since the row before.
        tokens, verify_entries: the most that any of them wrote, and had verified.
        evicted_slots, retracted: since the row before.
    """

    t: float
    prompt_throughput: float
    gen_throughput: float
    running: int
    waiting: int
    kv_cache_pct: float
    forwards: int
    tokens: int
    verify_entries: int
    evicted_slots: int
    retracted: int


@dataclass(slots=True)
class Watch:
    """Peaks and sums of a run; `see` is its `on_step`.

    Attributes:
        makespan_s: until the end of the last forward.
        running_s: running requests, each forward weighed by how long it took.
        busy_s: seconds in which a forward ran.
    """

    peaks: dict[str, Peak] = field(default_factory=lambda: dict.fromkeys(PEAKS, Peak()))
    last: StepFacts | None = None
    busy_s: float = 0.0
    running_s: float = 0.0
    modes: dict[str, int] = field(default_factory=dict)

    def see(self, facts: StepFacts) -> None:
        """One forward more."""
        peaks = self.peaks
        for name in PEAKS:
            value = getattr(facts, name)
            if value > peaks[name].value:
                peaks[name] = Peak(value, facts.step, facts.time_s)
        self.modes[facts.mode] = self.modes.get(facts.mode, 0) + 1
        self.busy_s += facts.seconds
        self.running_s += facts.running * facts.seconds
        self.last = facts

    @property
    def steps(self) -> int:
        """Forwards so far."""
        return self.last.step + 1 if self.last else 0

    @property
    def makespan_s(self) -> float:
        """When the last forward ends."""
        return self.last.time_s + self.last.seconds if self.last else 0.0

    @property
    def mean_running(self) -> float:
        """Running requests while anything ran."""
        return self.running_s / self.busy_s if self.busy_s else 0.0


class Series:
    """Collects a time series; `see` is its `on_step`, `close` ends it.

    A forward's tokens count when it ends, its state as long as it runs; between forwards nothing runs.

    Args:
        slots: that the pool can hand out.
        on_row: gets each row when it is complete; without it they are kept in `rows`.
    """

    def __init__(
        self, *, slots: int, tick_s: float = TICK_S, on_row: Callable[[Tick], None] | None = None
    ) -> None:
        self.rows: list[Tick] = []
        self._num_rows = 0
        self._on_row = on_row or self.rows.append
        self._slots = slots
        self._tick_s = tick_s
        self._last: StepFacts | None = None
        self._evicted = self._retracted = 0
        self._prompted = self._sampled = self._forwards = self._tokens = self._entries = 0

    def see(self, facts: StepFacts) -> None:
        """One forward more."""
        self._settle(facts.time_s)
        self._last = facts
        self._forwards += 1
        self._tokens = max(self._tokens, facts.tokens)
        self._entries = max(self._entries, facts.verify_entries)

    def close(self) -> list[Tick]:
        """All rows that were kept; the last one holds the end of the last forward."""
        if self._last is not None:
            self._settle(self._last.time_s + self._last.seconds)
            self._add_row(None)
            self._last = None
        return self.rows

    def _settle(self, now_s: float) -> None:
        """Add the rows that end before `now_s`, when the last forward is over."""
        last = self._last
        if last is not None:
            while self._end_s < last.time_s + last.seconds:
                self._add_row(last)
            self._prompted += last.prompted_tokens
            self._sampled += last.sampled_tokens
        while self._end_s < now_s:
            self._add_row(None)

    @property
    def _end_s(self) -> float:
        """When the row ends that is being collected."""
        return (self._num_rows + 1) * self._tick_s

    def _add_row(self, state: StepFacts | None) -> None:
        evicted = self._last.evicted_slots if self._last else 0
        retracted = self._last.retracted if self._last else 0
        self._on_row(
            Tick(
                t=self._end_s,
                prompt_throughput=self._prompted / self._tick_s,
                gen_throughput=self._sampled / self._tick_s,
                running=state.running if state else 0,
                waiting=state.waiting if state else 0,
                kv_cache_pct=round(100 * state.request_slots / self._slots, 2) if state else 0.0,
                forwards=self._forwards,
                tokens=self._tokens,
                verify_entries=self._entries,
                evicted_slots=evicted - self._evicted,
                retracted=retracted - self._retracted,
            )
        )
        self._num_rows += 1
        self._evicted, self._retracted = evicted, retracted
        self._prompted = self._sampled = self._forwards = self._tokens = self._entries = 0


def csv_line(row: Tick) -> str:
    """One row, its numbers as short as they are."""
    return ",".join(f"{round(value, 3):.12g}" if isinstance(value, float) else str(value) for value in row)
