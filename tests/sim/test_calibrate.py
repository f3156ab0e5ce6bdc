"""Costs are found again from the time series of runs whose costs are known."""

import random

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.calibrate import calibrate, compare, shown
from kvcanary_cli.sim.calibrate_series import read_series
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.costs import CostModel
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.sim.series import Series
from kvcanary_cli.sim.series_file import SeriesFile
from kvcanary_cli.trace.requests import Request

SLOTS = 16 * 401


def requests_of(seed, count=300):
    rng = random.Random(seed)
    at, made = 0.0, []
    for number in range(count):
        at += rng.expovariate(12.0)
        made.append(
            Request(
                rid=f"r{number}",
                arrival_s=at,
                input_length=rng.randint(50, 900),
                output_length=rng.randint(20, 200),
            )
        )
    return made


def runner(requests):
    def run(costs, on_step):
        config = SimConfig(
            scheduler="vllm", pool_slots=SLOTS, row_width=2048, max_num_batched_tokens=512, costs=costs
        )
        for _ in simulate(requests, config, on_step=on_step)[1]:
            pass

    return run


def write_series(path, requests, costs):
    with SeriesFile(str(path)) as file:
        series = Series(slots=SLOTS - 16, on_row=file.write)
        runner(requests)(costs, series.see)
        series.close()
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    return str(path)


@pytest.mark.parametrize(
    ("seed", "rate", "step_ms"),
    [
        (2, 15_000, 12),
        pytest.param(1, 6000, 30, marks=pytest.mark.slow),
        pytest.param(3, 3000, 60, marks=pytest.mark.slow),
    ],
)
def test_known_costs_are_found_again(tmp_path, seed, rate, step_ms):
    requests = requests_of(seed)
    true = CostModel(prefill_token_s=1 / rate, decode_step_s=step_ms / 1000)
    measured = read_series(write_series(tmp_path / "series.csv", requests, true))
    assert measured.missing == {}
    found = calibrate(runner(requests), measured, slots=SLOTS - 16)
    assert found.prefill_tokens_per_s == pytest.approx(rate, rel=0.09)
    assert found.costs.decode_step_s == pytest.approx(step_ms / 1000, rel=0.025)
    assert abs(found.errors.makespan) < 0.02


def test_a_run_has_no_distance_from_itself(tmp_path):
    requests, costs = requests_of(4, count=60), CostModel()
    measured = read_series(write_series(tmp_path / "series.csv", requests, costs))
    rows = Series(slots=SLOTS - 16)
    runner(requests)(costs, rows.see)
    target = shown(measured.t, measured.sampled, measured.prompted, measured.running)
    assert compare(rows.close(), measured, target).total == pytest.approx(0, abs=1e-9)
    assert measured.sampled[-1] == sum(r.output_length for r in requests)
    assert measured.prompted[-1] == sum(r.input_length for r in requests)


def series(tmp_path, *rows, names="t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct"):
    path = tmp_path / "series.csv"
    path.write_text("\n".join([names, *rows]) + "\n")
    return str(path)


def test_a_metric_that_was_never_filled_is_missing_not_idle(tmp_path):
    measured = read_series(series(tmp_path, "1,10,5,3,0,0.0", "2,0,5,3,0,0.0"))
    assert measured.kv_cache_pct is None
    assert measured.missing == {"kv_cache_pct": "0 in every row, so it was never filled"}
    assert measured.waiting is not None  # nobody may have waited
    assert measured.makespan_s == 1.5


def test_columns_that_are_not_there_are_missing(tmp_path):
    measured = read_series(series(tmp_path, "1,10,5", names="t,prompt_throughput,gen_throughput"))
    assert list(measured.missing) == ["running", "waiting", "kv_cache_pct"]
    with pytest.raises(InputError, match="`running` is needed to calibrate: no such column"):
        calibrate(runner([]), measured, slots=10)


def test_rows_that_are_all_alike_show_nothing(tmp_path):
    measured = read_series(series(tmp_path, "1,0,5,3,0,1", "2,0,5,3,0,1"))
    with pytest.raises(InputError, match="does not tell decode steps and prompts apart"):
        calibrate(runner([]), measured, slots=10)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1,10,x,3,0,1"], r"series\.csv:2: column 'gen_throughput' has 'x', a number from 0 on is needed"),
        (["1,10,5,3,0,1", "1,10,5,3,0,1"], r"series\.csv:3: `t` has to grow"),
        (["1,10,0,3,0,1"], "nothing to compare with"),
        ([], "has no row"),
        (["1,10"], r"series\.csv:2: column 'gen_throughput' has ''"),
    ],
)
def test_series_that_cannot_be_used(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        read_series(series(tmp_path, *rows))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="this has no gen_throughput"):
        read_series(series(tmp_path, "1,2", names="t,prompt_throughput"))
    with pytest.raises(InputError, match="can't be read"):
        read_series(str(tmp_path / "none.csv"))
