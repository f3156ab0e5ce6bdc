"""One replay from an open trace to a result: memory, events, findings, coverage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvcanary_cli.errors import UsageError
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.replay.capacities import CapacityViolation, Limits, ring_saturation
from kvcanary_cli.replay.diagnose import diagnose
from kvcanary_cli.replay.digests import DigestMismatch
from kvcanary_cli.replay.engine import Replay, Totals
from kvcanary_cli.replay.history import SlotHistory
from kvcanary_cli.replay.incidents import Incident
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.room import require_room
from kvcanary_cli.replay.rules import Context
from kvcanary_cli.replay.run_ahead import RunAhead
from kvcanary_cli.replay.state import RunState, new_state
from kvcanary_cli.replay.stories import Stories
from kvcanary_cli.replay.violations import MOST_NEW, ViolationBatch
from kvcanary_cli.replay.watch import Announce, Watch
from kvcanary_cli.runtime.base import Counters, Runtime
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
        cut_steps: forwards in which so many slots failed for the first time that not all were looked at.
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
    cut_steps: int = 0


def run_replay(
    header: ev.Header,
    events: Iterable[tuple[int, ev.Event]],
    options: ReplayOptions,
    *,
    path: str,
    on_progress: Progress = lambda steps, entries, incidents: None,
    on_violations: Callable[[ViolationBatch], None] = lambda batch: None,
    on_incident: Announce | None = None,
    on_event: Callable[[ev.Event], object] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ReplayResult:
    """Replay a stream of events.

    Args:
        header, events: an open trace, or a model's output; events come with their line number.
        path: name of the trace, for messages.
        on_progress: called after each forward with steps, entries and the incidents that `on_incident` told of.
        on_incident: called with the step and the incident as each turns up; the result may know better.
        on_event: called with each event that was acted on.
        should_stop: asked before each event; True ends the run as interrupted.

    Raises:
        InputError: an event can't be acted on.
        MissingError: the run does not fit the device, or the host.
        UsageError: `options.history` names a group or slot that the pool does not have.
    """
    state, runtime = _open_memory(header, options)
    layout = state.layout
    ledger = Ledger(header, state.table, state.swa_map, state.expected.tokens)
    stories = _open_stories(ledger, state)
    cut_steps = 0

    def take(batch: ViolationBatch) -> None:
        nonlocal cut_steps
        new = stories.add(batch)
        cut_steps += batch.lost > 0 and len(batch) >= MOST_NEW
        if watch is not None:
            watch.note(len(new))
        on_violations(batch)

    def context() -> Context:
        return Context(
            page_size=layout.page_size,
            num_slots=layout.num_slots,
            has_transfers=ev.Xfer in replay.totals.kinds,
            has_offloads=ev.Offload in replay.totals.kinds,
        )

    watch = Watch(ledger, stories, context, on_incident) if on_incident is not None else None
    limits = merge_limits(options.limits, header)
    history = None
    if options.history is not None:
        history = SlotHistory(*followed_slot(layout, *options.history), state, ledger)
    replay = Replay(
        runtime,
        state,
        ledger,
        limits,
        path=path,
        sweep_interval=options.sweep_interval,
        on_violations=take,
        is_known=stories.is_known,
        history=history,
    )
    is_later_part = header.continues is not None and header.continues.part > 1
    began_unknown = header.state == "unknown" or is_later_part
    if began_unknown:
        replay.begin_unknown()
    stopped, limited, last_line = _feed(replay, events, options, on_progress, on_event, should_stop, watch)
    saturated = ring_saturation(stories.total, layout.ring_capacity, max(0, replay.step))
    incidents = diagnose(ledger.breaches, stories.all(), context())
    if watch is not None:
        watch.tell(max(0, replay.step), incidents)
    return ReplayResult(
        layout=layout,
        limits=limits,
        totals=replay.totals,
        counters=runtime.finish(),
        stories=stories,
        ledger=ledger,
        incidents=incidents,
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
        cut_steps=cut_steps,
    )


def _open_memory(header: ev.Header, options: ReplayOptions) -> tuple[RunState, Runtime]:
    """Memory of the run, on the host and on its device; what is asked of it is checked before any is taken."""
    layout = layout_of(
        header, hash_mode=options.hash_mode, ring_capacity=options.ring, is_affine=options.is_affine
    )
    is_gpu = options.device.kind == "cuda"
    if options.history is not None:
        followed_slot(layout, *options.history)
    require_room(layout, is_cpu=not is_gpu)
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
    return state, runtime


def _open_stories(ledger: Ledger, state: RunState) -> Stories:
    layout = state.layout
    return Stories(
        ledger,
        layout.page_size,
        layout.ring_capacity,
        row_before=_row_before(state),
        num_slots={group.kind: group.num_slots for group in layout.groups},
        full_of=lambda slot: _full_of(state, slot),
    )


def _feed(
    replay: Replay,
    events: Iterable[tuple[int, ev.Event]],
    options: ReplayOptions,
    on_progress: Progress,
    on_event: Callable[[ev.Event], object],
    should_stop: Callable[[], bool],
    watch: Watch | None,
) -> tuple[str | None, dict[str, int], int]:
    """Apply events until they, a limit, a finding or the user ends the run."""
    line = 0
    totals = replay.totals
    ahead = RunAhead(replay.runtime, replay.state, replay.steps_until_sweep)
    for line, event in ahead.events(events) if replay.runtime.max_stretch else events:
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
        on_event(event)
        if is_forward:
            if watch is not None:
                watch.look(replay.step)
            on_progress(totals.steps, totals.entries, watch.num_told if watch is not None else 0)
            findings = totals.violations + replay.capacity.total + len(replay.ledger.breaches)
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


def followed_slot(layout: Layout, group: str | None, slot: int) -> tuple[str, int]:
    """The slot whose history is asked for; without a group that of the first one.

    Raises: UsageError if the pool has no such group, or the group no such slot.
    """
    known = {found.kind: found.num_slots for found in layout.groups}
    wanted = group if group is not None else next(iter(known))
    if wanted not in known:
        raise UsageError(f"`--group {wanted}` was asked for, the groups of this pool are {', '.join(known)}")
    if not 0 <= slot < known[wanted]:
        raise UsageError(
            f"`--slot {slot}` was asked for, group {wanted} of this pool has slots 0 to {known[wanted] - 1}"
        )
    return wanted, slot


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
