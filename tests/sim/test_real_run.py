"""The vLLM model beside a measured run of vLLM 0.19: docs/model-against-a-real-run.md has the same table."""

from __future__ import annotations

import json
import math
import re

import pytest

from kvcanary_cli.sim.calibrate import calibrate
from kvcanary_cli.sim.calibrate_series import read_series
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.costs import CostModel
from kvcanary_cli.sim.scheduler import observe, simulate
from kvcanary_cli.sim.series import Series, Watch
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.formats import open_requests
from tests.cli import ROOT

RUN = ROOT / "tests/traces/llmservingsim"
BLOCKS, BLOCK = 2588, 16
FITTED = CostModel(prefill_token_s=1 / 11_217, decode_step_s=0.02444)


def config(costs=FITTED):
    return SimConfig(
        scheduler="vllm",
        pool_slots=BLOCKS * BLOCK,
        page_size=BLOCK,
        row_width=8192,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        costs=costs,
    )


@pytest.fixture(scope="module")
def requests():
    return list(open_requests(str(RUN / "rtx4090-requests.jsonl")))


@pytest.fixture(scope="module")
def measured():
    return read_series(str(RUN / "rtx4090-timeseries.csv"))


@pytest.fixture(scope="module")
def modelled(requests):
    watch, series = Watch(), Series(slots=(BLOCKS - 1) * BLOCK)

    def see(facts):
        watch.see(facts)
        series.see(facts)

    observe(requests, config(), see)
    return watch, series.close()


def test_makespan(modelled, measured):
    assert modelled[0].makespan_s == pytest.approx(
        measured.makespan_s, rel=0.02
    )  # what the costs were fitted to


@pytest.mark.parametrize("what", ["running", "waiting", "kv_cache_pct"])
def test_peak_and_mean_are_within_ten_percent(modelled, measured, what):
    ticks = [getattr(row, what) for row in modelled[1]]
    true = getattr(measured, what)
    assert max(ticks) == pytest.approx(true.max(), rel=0.1)
    assert sum(ticks) / len(ticks) == pytest.approx(true.mean(), rel=0.1)


def test_running_requests_follow_the_run_row_by_row(modelled, measured):
    rows = min(len(modelled[1]), len(measured.t))
    apart = [abs(modelled[1][row].running - measured.running[row]) for row in range(rows)]
    assert sum(apart) / rows < 0.1 * measured.running.mean()


def plain_count(rows, now):
    """Blocks at a time if each request held its tokens from its first scheduling to its last token."""
    blocks = 0
    for row in rows:
        first, last = row["first_token_ts"], row["last_token_ts"]
        if row["scheduled_ts"] <= now <= last:
            done = max(0.0, now - first) / (last - first) * row["output_toks"]
            blocks += math.ceil((row["input_toks"] + done) / BLOCK)
    return blocks


def test_nothing_overflows_where_a_plain_count_would(requests, modelled):
    rows = [json.loads(line) for line in (RUN / "rtx4090-requests.jsonl").read_text().splitlines()]
    most = max(plain_count(rows, row[key]) for row in rows for key in ("scheduled_ts", "last_token_ts"))
    assert most / BLOCKS == pytest.approx(1.39, abs=0.01)
    assert modelled[0].peaks["request_slots"].value <= (BLOCKS - 1) * BLOCK
    ends = [event.why for event in simulate(requests, config())[1] if type(event) is ev.End]
    assert ends.count("done") == 300
    assert ends.count("retract") == modelled[0].last.retracted > 0


@pytest.mark.slow
def test_the_fitted_costs_are_what_calibration_finds(requests, measured):
    found = calibrate(
        lambda costs, on_step: observe(requests, config(costs), on_step), measured, slots=(BLOCKS - 1) * BLOCK
    )
    assert found.prefill_tokens_per_s == pytest.approx(1 / FITTED.prefill_token_s, rel=0.03)
    assert found.costs.decode_step_s == pytest.approx(FITTED.decode_step_s, rel=0.01)


def test_the_page_tells_the_numbers_of_this_test(modelled):
    page = (ROOT / "docs/model-against-a-real-run.md").read_text()
    shown = re.search(r"^\| makespan \| ([\d.]+) s \| ([\d.]+) s \|", page, re.MULTILINE)
    assert float(shown[2]) == pytest.approx(modelled[0].makespan_s, abs=0.1)
