"""Two costs of the model, fitted to a measured time series: prompt tokens a second, and the time of a decode step.

Rows of a series show both: a row's second went into decode steps, of which each running request got a token, and into
prompts. Least squares over all rows give two numbers that are near the costs, and wrong by what a row does not show:
prompts computed again after a preemption, and requests that came and went inside it. So the model's own series is
measured in the same way, and the costs are searched with which the model shows the same two numbers, the same
makespan, and the same curves of tokens over time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.calibrate_series import Column, Measured, last_token_s
from kvcanary_cli.sim.costs import CostModel
from kvcanary_cli.sim.facts import OnStep
from kvcanary_cli.sim.series import Series, Tick

LAST_STEP = math.log(1.005)  # of the search: places are this far apart, as factors of a cost
FIRST_STRIDE = 8
CORRECTIONS = 4
NEIGHBOURS = ((1, -1), (-1, 1), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))
MAX_RUNS = 80
PREFILL_WEIGHT = 0.5  # of the error of the prompts' number, which scatters more than the other

Run = Callable[[CostModel, OnStep], None]
"""Runs the model with these costs from beginning to end."""


class Shown(NamedTuple):
    """What least squares over the rows of a series make of it: seconds of a decode step, and of a prompt token."""

    step_s: float
    prompt_token_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """How far a modelled run is from the measured one, as shares; above 0 where the model has more.

    Attributes:
        makespan: as the rows show it, for both.
        step, prompt_token: of the numbers of `Shown`.
        sampled, prompted: mean distance of the curves of tokens over time, of all tokens.
    """

    makespan: float
    step: float
    prompt_token: float
    sampled: float
    prompted: float

    @property
    def total(self) -> float:
        """What the search makes small."""
        shown = abs(self.step) + PREFILL_WEIGHT * abs(self.prompt_token)
        return abs(self.makespan) + shown + self.sampled + self.prompted


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The result of a search."""

    costs: CostModel
    errors: Errors
    runs: int

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens a second."""
        return 1 / self.costs.prefill_token_s


def calibrate(
    run: Run,
    measured: Measured,
    *,
    slots: int,
    on_run: Callable[[int, float], None] = lambda runs, error: None,
) -> Calibration:
    """Search the two costs.

    Args:
        slots: that the model's pool can hand out.
        on_run: told after each run of the model how many there were, and the least error so far.

    Raises: InputError for a series that does not show the costs at all.
    """
    target = shown(measured.t, measured.sampled, measured.prompted, _running(measured))
    if target.step_s <= 0 or target.prompt_token_s <= 0:
        raise InputError(
            "the series does not tell decode steps and prompts apart: it needs rows with and without prompts",
            where=measured.path,
        )
    tried: dict[tuple[int, int], tuple[Errors, CostModel]] = {}

    def errors_at(place: tuple[int, int]) -> Errors:
        if place not in tried:
            costs = CostModel(
                prefill_token_s=math.exp(place[0] * LAST_STEP) * target.prompt_token_s,
                decode_step_s=math.exp(place[1] * LAST_STEP) * target.step_s,
            )
            series = Series(slots=slots, tick_s=measured.tick_s)
            run(costs, series.see)
            tried[place] = (compare(series.close(), measured, target), costs)
            on_run(len(tried), min(errors.total for errors, _ in tried.values()))
        return tried[place][0]

    best = _search(errors_at, lambda: len(tried))
    errors, costs = tried[best]
    return Calibration(costs=costs, errors=errors, runs=len(tried))


def _search(errors_at: Callable[[tuple[int, int]], Errors], num_runs: Callable[[], int]) -> tuple[int, int]:
    """The best place: first corrected by what the model shows, then by steps that are halved where none is better."""
    place = (0, 0)
    seen = []
    for _ in range(CORRECTIONS):
        seen.append(place)
        errors = errors_at(place)
        place = (place[0] - _steps(errors.prompt_token), place[1] - _steps(errors.step))
    best = min(seen, key=lambda at: errors_at(at).total)
    stride = FIRST_STRIDE
    while stride and num_runs() < MAX_RUNS:
        near = [(best[0] + i * stride, best[1] + j * stride) for i, j in NEIGHBOURS]
        found = min(near, key=lambda at: errors_at(at).total)
        if errors_at(found).total < errors_at(best).total:
            best = found
        else:
            stride //= 2
    return best


def _steps(share: float) -> int:
    """An error as steps of the search, none of them too far."""
    return round(math.log(min(max(1 + share, 0.5), 2.0)) / LAST_STEP)


def compare(rows: Sequence[Tick], measured: Measured, target: Shown) -> Errors:
    """How far the rows of a modelled run are from a measured one."""
    t, running = (np.array([getattr(row, name) for row in rows], dtype=float) for name in ("t", "running"))
    sampled, prompted = (
        np.cumsum([getattr(row, name) * measured.tick_s for row in rows])
        for name in ("gen_throughput", "prompt_throughput")
    )
    found = shown(t, sampled, prompted, running)
    return Errors(
        makespan=last_token_s(t, sampled) / measured.makespan_s - 1,
        step=found.step_s / target.step_s - 1,
        prompt_token=found.prompt_token_s / target.prompt_token_s - 1,
        sampled=_distance(t, sampled, measured.t, measured.sampled),
        prompted=_distance(t, prompted, measured.t, measured.prompted),
    )


def shown(t: Column, sampled: Column, prompted: Column, running: Column) -> Shown:
    """Least squares: the seconds of each row are its decode steps and its prompt tokens times one number each.

    A row's decode steps are its output tokens for each running request, by the mean of its two ends.
    """
    seconds = np.diff(t, prepend=0.0)
    mean_running = (running + np.concatenate([running[:1], running[:-1]])) / 2
    busy = (running > 0) & (mean_running > 0)
    steps = np.diff(sampled, prepend=0.0)[busy] / mean_running[busy]
    table = np.stack([steps, np.diff(prompted, prepend=0.0)[busy]], axis=1)
    found = np.linalg.lstsq(table, seconds[busy], rcond=None)[0]
    return Shown(float(found[0]), float(found[1]))


def _running(measured: Measured) -> Column:
    if measured.running is None:
        raise InputError(
            f"`running` is needed to calibrate: {measured.missing['running']}", where=measured.path
        )
    return measured.running


def _distance(t: Column, curve: Column, true_t: Column, true: Column) -> float:
    """Mean distance of two curves, as a share of the second one's end."""
    ends = np.union1d(t, true_t)
    return float(
        np.abs(np.interp(ends, t, curve) - np.interp(ends, true_t, true)).mean() / max(true[-1], 1.0)
    )
