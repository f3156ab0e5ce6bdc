"""One replay from an open trace to a result: memory, events, findings, coverage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.replay.capacities import CapacityViolation, Limits, ring_saturation
from kvcanary_cli.replay.diagnose import diagnose
from kvcanary_cli.replay.digests import DigestMismatch
from kvcanary_cli.replay.engine import Replay, Totals
from kvcanary_cli.replay.history import SlotHistory
from kvcanary_cli.replay.incidents import Incident
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.rules import Context
from kvcanary_cli.replay.state import RunState, new_state
from kvcanary_cli.replay.stories import Stories
from kvcanary_cli.replay.violations import ViolationBatch
from kvcanary_cli.runtime.base import Counters
from kvcanary_cli.runtime.layout import Layout, layout_of
from kvcanary_cli.runtime.open import open_runtime
from kvcanary_cli.trace import events as ev

Progress = Callable[[int, int, int], None]

RUN_BEFORE = 4096  # slots in front of a broken chain that are looked at for a foreign writer


@dataclass(kw_only=True, slots=True)
class ReplayResult:
    """What a replay found, and how far it looked.

    Attributes:
        layout: shapes of the run.
        limits: capacities that were checked.
        totals: steps, events, entries.
        counters: launches and entries by tag.
        stories: violations, kept and counted.
        ledger: ownership as it stands at the end.
        incidents: what violations and breaches come down to.
        limited: what the user limited, such as {"steps": 100}.
        stopped: why the run ended before the trace did: None, "violation" or "interrupted".
        last_line: line of the last event applied.
        capacity_violations, capacity_total: the first ones, and how many there are.
        has_expectations: whether any forward carried expected input tokens.
        began_unknown: whether the recording began in a running engine.
        history: what happened to the slot that was asked for.
    """

    layout: Layout
    limits: Limits
    totals: Totals
    counters: Counters
    stories: Stories
    ledger: Ledger
    incidents: list[Incident]
    capacity_violations: list[CapacityViolation]
    capacity_total: int
    digest_mismatches: list[DigestMismatch]
    checks_tokens: bool
    has_expectations: bool
    began_unknown: bool = False
    history: SlotHistory | None = None
    limited: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None
    last_line: int = 0


def run_replay(
    header: ev.Header,
    events: Iterable[tuple[int, ev.Event]],
    options: ReplayOptions,
    *,
    path: str,
    on_progress: Progress = lambda steps, entries, findings: None,
    on_violations: Callable[[ViolationBatch], None] = lambda batch: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ReplayResult:
    """Replay a stream of events.

    Args:
        header, events: an open trace, or a model's output; events come with their line number.
        path: name of the trace, for messages.
        on_progress: called after each forward with steps, entries and findings so far.
        should_stop: asked before each event; True ends the run as interrupted.

    Raises:
        InputError: an event can't be acted on.
        MissingError: the run does not fit the device.
    """
    layout = layout_of(header, hash_mode=options.hash_mode, ring_capacity=options.ring)
    is_gpu = options.device.kind == "cuda"
    state = new_state(layout, track_changes=is_gpu)
    runtime = open_runtime(
        options.device,
        layout,
        state.table,
        state.swa_map,
        state.expected,
        options.threads,
        incremental=options.incremental,
    )
    ledger = Ledger(header, state.table, state.swa_map, state.expected.tokens)
    stories = Stories(
        ledger,
        layout.page_size,
        layout.ring_capacity,
        row_before=_row_before(state),
        num_slots={group.kind: group.num_slots for group in layout.groups},
        full_of=lambda slot: _full_of(state, slot),
    )

    def take(batch: ViolationBatch) -> None:
        stories.add(batch)
        on_violations(batch)

    limits = merge_limits(options.limits, header)
    history = SlotHistory(*options.history, state, ledger) if options.history is not None else None
    replay = Replay(
        runtime,
        state,
        ledger,
        limits,
        path=path,
        sweep_interval=options.sweep_interval,
        on_violations=take,
        history=history,
    )
    began_unknown = header.state == "unknown" or header.continues is not None
    if began_unknown:
        replay.begin_unknown()
    stopped, limited, last_line = _feed(replay, events, options, on_progress, should_stop)
    saturated = ring_saturation(stories.total, layout.ring_capacity, max(0, replay.step))
    context = Context(
        page_size=layout.page_size,
        num_slots=layout.num_slots,
        has_transfers=ev.Xfer in replay.totals.kinds,
        has_offloads=ev.Offload in replay.totals.kinds,
    )
    return ReplayResult(
        layout=layout,
        limits=limits,
        totals=replay.totals,
        counters=runtime.finish(),
        stories=stories,
        ledger=ledger,
        incidents=diagnose(ledger.breaches, stories.all(), context),
        capacity_violations=replay.capacity.kept + ([saturated] if saturated else []),
        capacity_total=replay.capacity.total + (saturated is not None),
        digest_mismatches=replay.digest_mismatches,
        checks_tokens=state.expected.is_used,
        has_expectations=replay.totals.expectations > 0,
        began_unknown=began_unknown,
        history=history,
        limited=limited,
        stopped=stopped,
        last_line=last_line,
    )


def _feed(
    replay: Replay,
    events: Iterable[tuple[int, ev.Event]],
    options: ReplayOptions,
    on_progress: Progress,
    should_stop: Callable[[], bool],
) -> tuple[str | None, dict[str, int], int]:
    """Apply events until they, a limit, a finding or the user ends the run."""
    line = 0
    totals = replay.totals
    for line, event in events:
        if should_stop():
            return "interrupted", {}, line
        if options.limit_requests is not None and isinstance(event, ev.Bind):
            is_new = event.rid not in totals.requests
            if is_new and len(totals.requests) >= options.limit_requests:
                return None, {"requests": options.limit_requests}, line
        is_forward = isinstance(event, ev.Forward)
        if is_forward and options.limit_steps is not None and totals.steps >= options.limit_steps:
            return None, {"steps": options.limit_steps}, line
        replay.apply(line, event)
        if is_forward:
            findings = totals.violations + replay.capacity.total
            on_progress(totals.steps, totals.entries, findings)
            if findings and options.stop_on_violation:
                return "violation", {}, line
    return None, {}, line


def _row_before(state: RunState) -> Callable[[str, int | None, int], list[tuple[int, int]]]:
    """Slots in front of a position of a row, nearest first: at most `RUN_BEFORE` of them."""

    def before(group: str, row: int | None, position: int) -> list[tuple[int, int]]:
        if row is None or position <= 0:
            return []
        first = max(0, position - RUN_BEFORE)
        slots = state.table.slots_of(row, first, position)
        if group == "swa" and state.layout.maps_window:
            slots = state.swa_map[slots.clip(0, state.swa_map.size - 1)]
        pairs = zip(slots.tolist(), range(first, position), strict=False)
        return [(slot, column) for slot, column in reversed(list(pairs)) if slot > 0]

    return before


def _full_of(state: RunState, window_slot: int) -> int | None:
    """The full slot that maps to a window slot now."""
    if not state.layout.maps_window:
        return None
    found = (state.swa_map == window_slot).nonzero()[0]
    return int(found[0]) if found.size else None


def merge_limits(given: Limits, header: ev.Header) -> Limits:
    """Limits of a run: those given win over the header's, one by one."""
    stated = header.capacities

    def pick(name: str) -> int | None:
        value: int | None = getattr(given, name)
        return value if value is not None or stated is None else getattr(stated, name)

    return Limits(
        write_req_capacity=pick("write_req_capacity"),
        write_entry_capacity=pick("write_entry_capacity"),
        verify_capacity=pick("verify_capacity"),
    )


def checks_made(result: ReplayResult) -> tuple[list[str], dict[str, str]]:
    """Checks that the run made, and why each other one was not made."""
    made, missing = ["chain_hash", "position"], {}
    layout = result.layout
    if layout.hash_mode is HashMode.NONE and not layout.sources:
        missing["real_kv_hash"] = "the trace has no byte sources"
    elif not any(source.hashed_bytes for source in layout.sources):
        missing["real_kv_hash"] = "no byte source is hashed"
    else:
        made.append("real_kv_hash")
    if result.checks_tokens:
        made.append("verify_token")
    else:
        missing["verify_token"] = "the trace has no `truth` events"
    if result.has_expectations:
        made.append("write_token")
    return made, missing
