"""From the words of `kvcanary simulate` to its report: settings, calibration, the run, what is written."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from kvcanary_cli.commands._options import check_output, refuse_overwriting
from kvcanary_cli.errors import UsageError
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.frame import Report
from kvcanary_cli.report.simulate import build_simulate
from kvcanary_cli.sim.settings import Asked, server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcanary_cli.sim.calibrate import Calibration
    from kvcanary_cli.sim.calibrate_series import Measured
    from kvcanary_cli.sim.config import SimConfig
    from kvcanary_cli.sim.costs import CostModel
    from kvcanary_cli.sim.facts import OnStep, StepFacts
    from kvcanary_cli.sim.series import Series, Tick
    from kvcanary_cli.trace.requests import Request

DEFAULT_TICK_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulateWords(Asked):
    """The command line, not yet checked."""

    file: str
    output: str | None = None
    time_series: str | None = None
    capacities: str | None = None
    calibrate: str | None = None
    limit_requests: int | None = None
    limit_steps: int | None = None
    input_format: str | None = None
    block_size: int | None = None
    skip_bad_lines: bool = False

    def inputs(self) -> dict[str, Any]:
        """What the report says was asked."""
        return asdict(self)


def run_simulate(words: SimulateWords, progress: Progress, stdout: TextIO) -> Report:
    """Simulate as asked; returns the report.

    Args:
        stdout: where the trace goes if it goes to `-`.

    Raises: InputError for a file that can't be used, UsageError for flags that do not fit.
    """
    _check_files(words)
    # deferred: readers and model load NumPy
    from kvcanary_cli.sim.calibrate_series import read_series
    from kvcanary_cli.sim.run import file_details, naming
    from kvcanary_cli.trace.formats import open_requests
    from kvcanary_cli.trace.reader import SKIP_HINT
    from kvcanary_cli.trace.request_trace import ReadOptions

    started = time.monotonic()
    measured = read_series(words.calibrate) if words.calibrate is not None else None
    options = ReadOptions(
        block_size=words.block_size,
        limit=words.limit_requests,
        skip_bad_lines=words.skip_bad_lines,
        hint=SKIP_HINT,
    )
    trace = open_requests(words.file, format_name=words.input_format, options=options)
    trace.require_schedulable()
    asked = Asked(**{field.name: getattr(words, field.name) for field in fields(Asked)})
    config = server(asked, capacities=words.capacities, longest=trace.longest)
    calibration = None
    if measured is not None:
        with naming(words.file):
            calibration = _calibrate(list(trace), config, measured, progress)
        config = replace(config, costs=calibration.costs)
    config = replace(config, max_steps=words.limit_steps)
    run = Run(words, config, tick_s=measured.tick_s if measured is not None else DEFAULT_TICK_S)
    with naming(words.file):
        run.serve(trace, progress, stdout)
    return build_simulate(
        inputs=words.inputs(),
        path=words.file,
        format_title=trace.format.title,
        details=file_details(trace),
        config=config,
        watch=run.watch,
        rows=run.rows,
        num_rows=run.num_rows,
        tick_s=run.tick_s,
        calibration=calibration,
        measured=measured,
        events=run.events,
        seconds=time.monotonic() - started,
    )


class Run:
    """One run of the model, with what is collected and written on the way.

    Attributes:
        rows: time series, kept only to be compared with a measured one.
        num_rows: of the time series that was written.
    """

    def __init__(self, words: SimulateWords, config: SimConfig, *, tick_s: float) -> None:
        from kvcanary_cli.sim.series import Series, Watch

        self.watch = Watch()
        self.rows: list[Tick] = []
        self.tick_s = tick_s
        self.events: int | None = None
        self._words = words
        self._config = config
        self.num_rows = 0
        slots = config.pool_slots - config.page_size
        self._kept = Series(slots=slots, tick_s=tick_s) if words.calibrate is not None else None
        self._make_series = partial(Series, slots=slots, tick_s=tick_s)

    def serve(self, requests: Iterable[Request], progress: Progress, stdout: TextIO) -> None:
        """Run the model to its end, and write the files that were asked for."""
        from kvcanary_cli.sim.series_file import SeriesFile

        if self._words.time_series is None:
            self._serve(requests, progress, stdout, [self._kept] if self._kept else [])
        else:
            with SeriesFile(self._words.time_series) as file:
                written = self._make_series(on_row=file.write)
                self._serve(requests, progress, stdout, [written, *([self._kept] if self._kept else [])])
            self.num_rows = file.num_rows
        if self._kept is not None:
            self.rows = self._kept.rows

    def _serve(
        self, requests: Iterable[Request], progress: Progress, stdout: TextIO, series: list[Series]
    ) -> None:
        from kvcanary_cli.sim.scheduler import observe, simulate
        from kvcanary_cli.trace.writer import TraceWriter

        entries = 0

        def see(facts: StepFacts) -> None:
            nonlocal entries
            entries += facts.verify_entries
            self.watch.see(facts)
            for one in series:
                one.see(facts)
            progress.update(facts.step + 1, None, entries, 0)

        if self._words.output is None:
            observe(requests, self._config, see)
        else:
            header, events = simulate(requests, self._config, on_step=see)
            target = stdout.buffer if self._words.output == "-" else self._words.output
            with TraceWriter(target, header) as writer:
                for event in events:
                    writer.write(event)
                self.events = writer.num_lines
        for one in series:
            one.close()


def _calibrate(
    requests: list[Request], config: SimConfig, measured: Measured, progress: Progress
) -> Calibration:
    from kvcanary_cli.sim.calibrate import calibrate
    from kvcanary_cli.sim.scheduler import observe

    steps = entries = 0

    def run(costs: CostModel, on_step: OnStep) -> None:
        def see(facts: StepFacts) -> None:
            nonlocal steps, entries
            steps += 1
            entries += facts.verify_entries
            on_step(facts)
            progress.update(steps, None, entries, 0)

        observe(requests, replace(config, costs=costs), see)

    return calibrate(run, measured, slots=config.pool_slots - config.page_size)


def _check_files(words: SimulateWords) -> None:
    """Refuse flags that exclude each other, and to write over what is read or into one file twice."""
    if words.calibrate is not None:
        for flag, value in (
            ("--prefill-rate", words.prefill_rate),
            ("--decode-step-ms", words.decode_step_ms),
        ):
            if value is not None:
                raise UsageError(f"`--calibrate` finds what `{flag}` gives")
        if words.limit_requests is not None or words.limit_steps is not None:
            raise UsageError("`--calibrate` compares whole runs, so it goes with no limit")
    for flag, path in (("--output", words.output), ("--time-series", words.time_series)):
        if path is None or (path == "-" and flag == "--output"):
            continue
        if path == "-":
            raise UsageError(
                "the time series needs a file, stdout has the report",
                hint="`--time-series out.csv`",
            )
        check_output(path, flag=flag)
    refuse_overwriting(
        [("FILE", words.file), ("--capacities", words.capacities), ("--calibrate", words.calibrate)],
        [("--output", words.output), ("--time-series", words.time_series)],
    )
