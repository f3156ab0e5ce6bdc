"""Rows of a time series: whole seconds, tokens where a forward ends, nothing lost."""

import json
import tracemalloc

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.facts import StepFacts
from kvcanary_cli.sim.series import Series, Watch
from kvcanary_cli.sim.series_file import SeriesFile


def fact(step, time_s, seconds, **fields):
    zeros = dict.fromkeys(StepFacts._fields, 0)
    return StepFacts(
        **{**zeros, "step": step, "time_s": time_s, "seconds": seconds, "mode": "decode", **fields}
    )


FACTS = [
    fact(0, 0.0, 0.4, running=2, prompted_tokens=30, sampled_tokens=2, tokens=30, request_slots=10),
    fact(1, 0.4, 1.0, running=3, waiting=1, sampled_tokens=3, tokens=3, request_slots=20, verify_entries=30),
    # nothing runs from 1.4 to 3.2
    fact(2, 3.2, 0.5, running=1, sampled_tokens=1, tokens=1, retracted=1, evicted_slots=8),
]


def rows_of(facts):
    series = Series(slots=40)
    for one in facts:
        series.see(one)
    return series.close()


def test_rows():
    rows = rows_of(FACTS)
    assert [(row.t, row.prompt_throughput, row.gen_throughput) for row in rows] == [
        (1.0, 30.0, 2.0),
        (2.0, 0.0, 3.0),
        (3.0, 0.0, 0.0),
        (4.0, 0.0, 1.0),
    ]
    assert [(row.running, row.waiting, row.kv_cache_pct) for row in rows] == [
        (3, 1, 50.0),
        *[(0, 0, 0.0)] * 3,
    ]
    assert [(row.forwards, row.tokens, row.verify_entries) for row in rows] == [
        (2, 30, 30),
        (0, 0, 0),
        (0, 0, 0),
        (1, 1, 0),
    ]
    assert [(row.evicted_slots, row.retracted) for row in rows] == [(0, 0), (0, 0), (0, 0), (8, 1)]


def test_a_run_without_forwards_has_no_rows():
    assert rows_of([]) == []


def written(path, facts):
    with SeriesFile(str(path)) as file:
        series = Series(slots=40, on_row=file.write)
        for one in facts:
            series.see(one)
        assert series.close() == []
    return path.read_text(), file.num_rows


def test_csv(tmp_path):
    assert written(tmp_path / "s.csv", FACTS[:1]) == (
        "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct,forwards,tokens,verify_entries,"
        "evicted_slots,retracted\n"
        "1,30,2,0,0,0,1,30,0,0,0\n",
        1,
    )


@pytest.mark.parametrize("facts", [[], FACTS[:1], FACTS])
def test_json(tmp_path, facts):
    text, num_rows = written(tmp_path / "s.json", facts)
    assert json.loads(text) == [row._asdict() for row in rows_of(facts)]
    assert num_rows == len(rows_of(facts))


def test_a_long_pause_takes_no_memory(tmp_path):
    facts = [fact(0, 0.0, 1.0), fact(1, 50_000.0, 1.0)]
    tracemalloc.start()
    text, num_rows = written(tmp_path / "s.csv", facts)
    peak = tracemalloc.get_traced_memory()[1] - len(text)
    tracemalloc.stop()
    assert num_rows == 50_001
    assert peak < 2_000_000


def test_a_run_that_fails_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("precious")
    with pytest.raises(ZeroDivisionError), SeriesFile(str(path)) as file:
        file.write(rows_of(FACTS)[0]._replace(t=1 / 0))
    assert (path.read_text(), list(tmp_path.iterdir())) == ("precious", [path])
    with pytest.raises(InputError, match="can't be written"):
        SeriesFile(str(tmp_path))


def test_peaks():
    watch = Watch()
    for one in FACTS:
        watch.see(one)
    assert watch.peaks["running"] == (3, 1, 0.4)
    assert watch.peaks["tokens"] == (30, 0, 0.0)
    assert (watch.steps, watch.makespan_s, watch.modes) == (3, 3.7, {"decode": 3})
    assert watch.mean_running == (2 * 0.4 + 3 * 1.0 + 0.5) / 1.9
