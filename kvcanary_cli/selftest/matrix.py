"""Plant every kind of fault, replay, compare: would the tool have seen it, and named it right?

One trial is one fault in one scenario with one seed. The clean trace of each scenario and seed is replayed too: it
must have no findings at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

from kvcanary_cli.faults.answers import compare, unplanted
from kvcanary_cli.faults.planting import plant
from kvcanary_cli.faults.stream import NotApplicable
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import ReplayResult, run_replay
from kvcanary_cli.report.expectation import findings_of
from kvcanary_cli.report.incidents import incident_json
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.sim.scenarios import scenario
from kvcanary_cli.trace import events as ev

CLEAN = "clean"
SATURATION = "C7"  # any fault that fails often enough fills the log


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What became of one planted fault (or of a clean run, whose kind is `clean`).

    Attributes:
        applies: False where the scenario has no place for the kind.
        found, named_right, in_time: as `faults.answers.Match` has them; for a clean run `found` counts findings.
        latency_steps: steps from the fault to the first breach or failed check.
        false_slots: slots called damaged that are not.
        blamed: innocent requests named as writers.
        spare: findings that nobody planted.
        detail: what went wrong, in words; empty when all is well.
    """

    kind: str
    scenario: str
    seed: int
    applies: bool = True
    found: bool = False
    named_right: bool = False
    in_time: bool = False
    latency_steps: int | None = None
    false_slots: int = 0
    blamed: tuple[str, ...] = ()
    spare: int = 0
    detail: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the tool did everything right."""
        if not self.applies:
            return True
        if self.kind == CLEAN:
            return not self.spare
        return self.found and self.named_right and not (self.false_slots or self.blamed or self.spare)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Which trials to run.

    Attributes:
        kinds, scenarios, seeds: all their combinations, and a clean run of each scenario and seed.
        steps: forwards of each trace.
        device: where the kernels run.
    """

    kinds: tuple[str, ...]
    scenarios: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    device: DeviceChoice


def run_plan(
    plan: Plan, *, jobs: int = 1, on_trial: Callable[[Trial], None] = lambda trial: None
) -> list[Trial]:
    """All trials of a plan, in order of scenario, seed and kind.

    Args:
        jobs: processes; each takes whole scenarios and seeds.
        on_trial: called with each trial as it ends.
    """
    tasks = [(plan, name, seed) for name, seed in product(plan.scenarios, plan.seeds)]
    trials: list[Trial] = []
    for group in _groups(tasks, jobs):
        for trial in group:
            on_trial(trial)
            trials.append(trial)
    return trials


def _groups(tasks: Sequence[tuple[Plan, str, int]], jobs: int) -> Iterator[Iterable[Trial]]:
    if jobs == 1:
        yield from (run_trace(*task) for task in tasks)
        return
    # spawn: a fork would share Numba's threads and a GPU's context with the parent
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_run_task, tasks)


def _run_task(task: tuple[Plan, str, int]) -> list[Trial]:
    return list(run_trace(*task))


def run_trace(plan: Plan, name: str, seed: int) -> Iterator[Trial]:
    """The clean run and every fault of one scenario and seed."""
    header, stream = scenario(name, steps=plan.steps, seed=seed)
    events = list(stream)
    clean = _findings(_replay(header, events, plan.device), header)
    yield Trial(
        kind=CLEAN,
        scenario=name,
        seed=seed,
        spare=len(clean),
        detail=", ".join(finding["kind"] for finding in clean),
    )
    for kind in plan.kinds:
        yield _trial(plan, name, seed, kind)


def _trial(plan: Plan, name: str, seed: int, kind: str) -> Trial:
    # planters edit events in place: every fault gets a stream of its own
    header, stream = scenario(name, steps=plan.steps, seed=seed)
    try:
        planted, events, answers = plant(header, list(stream), kind, seed)
    except NotApplicable as reason:
        return Trial(kind=kind, scenario=name, seed=seed, applies=False, detail=str(reason))
    findings = _findings(_replay(planted, events, plan.device), planted)
    (match,) = compare(answers, findings)
    spare = [
        i for i in unplanted([match], findings) if kind == SATURATION or findings[i]["kind"] != SATURATION
    ]
    named = findings[match.incident]["kind"] if match.incident is not None else "nothing"
    extra = ", ".join(findings[i]["kind"] for i in spare)
    return Trial(
        kind=kind,
        scenario=name,
        seed=seed,
        found=match.found,
        named_right=match.named_right,
        in_time=match.in_time,
        latency_steps=match.latency,
        false_slots=len(match.false_slots),
        blamed=tuple(match.blamed_rids),
        spare=len(spare),
        detail=""
        if match.named_right and not spare
        else f"named {named}" + (f"; also {extra}" if extra else ""),
    )


def _replay(header: ev.Header, events: list[ev.Event], device: DeviceChoice) -> ReplayResult:
    return run_replay(header, enumerate(events, 2), ReplayOptions(device=device), path="selftest")


def _findings(result: ReplayResult, header: ev.Header) -> list[dict[str, Any]]:
    """Incidents and capacity violations, as an answer sheet is compared with them."""
    incidents = [incident_json(i, n, header.pool.page_size) for n, i in enumerate(result.incidents, 1)]
    capacity = [asdict(found) for found in result.capacity_violations]
    return findings_of({"incidents": incidents, "capacity_violations": capacity})
