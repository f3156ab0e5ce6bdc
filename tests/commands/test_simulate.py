"""`kvcanary simulate` as a user meets it."""

from __future__ import annotations

import csv
import json

import jsonschema
import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.cli import ROOT, call, imported_by, spawn

SCHEMA = json.loads((ROOT / "docs/report.schema.json").read_text())
RUN = ROOT / "tests/traces/llmservingsim"
REQUESTS = str(RUN / "rtx4090-requests.jsonl")
LINES = (RUN / "rtx4090-requests.jsonl").read_text().splitlines(keepends=True)
SERVER = ("--scheduler", "vllm", "--pool-slots", "41408", "--max-num-batched-tokens", "2048")
FEW = ("--limit-requests", "20")

REPORT = """\
scheduler   vllm: max num seqs 256, max num batched tokens 2,048, prefix cache on
costs       10,000 prompt tokens/s, 25.000 ms a decode step
"""


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder of its own to write into."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report_of(capsys, *words):
    done = call(capsys, "simulate", *words, "--format", "json", "--no-progress")
    assert done.err == ""
    report = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    return report


def test_text(capsys, there):
    done = call(capsys, "simulate", REQUESTS, *SERVER, *FEW, "--prefill-rate", "10000")
    assert (done.code, done.err) == (0, "")
    assert REPORT in done.out
    assert "LLMServingSim workload: 20 requests\npool        41,408 slots, 2,588 pages of 16\n" in done.out
    last = done.out.splitlines()[-1]
    assert last.startswith("kvcanary: PASS simulate steps=")
    assert last.endswith("limited=requests:20 exit=0")
    assert list(there.iterdir()) == []


@pytest.mark.parametrize("scheduler", ["sglang", "vllm"])
def test_a_written_trace_replays_clean(capsys, there, scheduler):
    words = ("--scheduler", scheduler, "--pool-tokens", "9600", "--output", "t.jsonl", *FEW)
    report = report_of(capsys, REQUESTS, *words)
    assert report["run"]["retracted"] + report["run"]["evicted_slots"] > 0
    assert report["written"]["trace"] == {
        "path": "t.jsonl",
        "events": len((there / "t.jsonl").read_text().splitlines()),
    }
    done = call(capsys, "replay", "t.jsonl", "--device", "cpu", "--format", "json", "--no-progress")
    replayed = json.loads(done.out)
    assert (replayed["status"], replayed["coverage"]["steps"]) == ("pass", report["run"]["steps"])


def test_trace_on_stdout(there):
    done = spawn("simulate", REQUESTS, *SERVER, "--limit-requests", "2", "--output", "-")
    assert json.loads(done.out.splitlines()[0])["ev"] == "header"
    assert "kvcanary: PASS simulate" in done.err


@pytest.mark.parametrize("scheduler", ["sglang", "vllm"])
def test_the_report_is_the_same_with_and_without_a_trace(capsys, there, scheduler):
    words = (REQUESTS, "--scheduler", scheduler, "--pool-tokens", "9600", *FEW)
    silent, told = report_of(capsys, *words), report_of(capsys, *words, "--output", "t.jsonl")
    assert (silent["run"], silent["peaks"]) == (told["run"], told["peaks"])


def test_time_series(capsys, there):
    for path in ("s.csv", "s.json"):
        report = report_of(capsys, REQUESTS, *SERVER, *FEW, "--time-series", path)
        assert report["written"]["time_series"]["path"] == path
    rows = json.loads((there / "s.json").read_text())
    assert len(rows) == report["written"]["time_series"]["rows"] == int(report["run"]["makespan_s"]) + 1
    with open("s.csv", newline="") as file:
        assert [float(row["t"]) for row in csv.DictReader(file)] == [row["t"] for row in rows]
    assert sum(row["gen_throughput"] for row in rows) == sum(
        json.loads(line)["output_toks"] for line in LINES[:20]
    )


def test_own_series_calibrates(capsys, there):
    costs = ("--prefill-rate", "8000", "--decode-step-ms", "30")
    (there / "r.jsonl").write_text("".join(LINES[:60]))
    true = report_of(capsys, "r.jsonl", *SERVER, *costs, "--time-series", "s.csv")
    report = report_of(capsys, "r.jsonl", *SERVER, "--calibrate", "s.csv")
    assert report["calibration"]["decode_step_ms"] == pytest.approx(30, rel=0.03)
    assert report["run"]["makespan_s"] == pytest.approx(true["run"]["makespan_s"], rel=0.02)
    assert [row["quantity"] for row in report["comparison"]["rows"] if row["fitted"]] == [
        "makespan_s",
        "output_tokens_per_s",
    ]


def test_a_metric_that_was_never_filled_is_not_compared(capsys, there):
    (there / "r.jsonl").write_text("".join(LINES[:30]))
    report_of(capsys, "r.jsonl", *SERVER, "--time-series", "s.csv")
    with open("s.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    with open("s.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "kv_cache_pct": "0.0"} for row in rows)
    done = call(capsys, "simulate", "r.jsonl", *SERVER, "--calibrate", "s.csv")
    assert "not measured: kv_cache_pct, 0 in every row, so it was never filled" in done.out
    (line,) = [line for line in done.out.splitlines() if "kv_cache_pct_mean" in line]
    assert line.split()[1] == "-"


def test_a_config_gives_settings_and_flags_beat_it(capsys, there):
    (there / "c.yaml").write_text(
        "pool: {tokens: 40000, page_size: 8}\n"
        "simulate: {scheduler: vllm, step_ms: 20, prefill_tokens_per_s: 9000, seed: 3}\n"
    )
    words = (REQUESTS, *FEW, "--capacities", "c.yaml", "--decode-step-ms", "30")
    report = report_of(capsys, *words)
    assert report["pool"]["slots"] == 40008
    assert report["scheduler"]["name"] == "vllm"
    assert report["scheduler"]["prefill_tokens_per_s"] == 9000
    assert (report["scheduler"]["decode_step_s"], report["scheduler"]["seed"]) == (0.03, 3)


@pytest.mark.parametrize("page", ["1", "8"])
def test_every_request_fits_into_a_row_with_its_drafts(capsys, there, page):
    config = str(ROOT / "configs" / "qwen3-8b-eagle3-h100.yaml")
    report = report_of(capsys, REQUESTS, "--limit-requests", "3", "--capacities", config, "--page-size", page)
    assert "verify" in report["run"]["modes"]


def test_launch_arguments_of_a_config_are_used_or_refused(capsys, there):
    """What the server's defaults depend on is asked for: the arguments are never left out of the run."""
    pool = "pool: {tokens: 40000, page_size: 8, context_length: 8192}\n"
    gpu = "gpu: {name: H100, memory_mib: 81559}\n"
    args = 'args: ["--max-running-requests", "3", "--model-path", "meta-llama/Llama-3.1-8B"]\n'
    words = (REQUESTS, *FEW, "--capacities", "c.yaml")
    (there / "c.yaml").write_text(pool + args)
    done = call(capsys, "simulate", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: c.yaml: launch flags don't say")
    (there / "c.yaml").write_text(pool + gpu + args)
    assert report_of(capsys, *words)["peaks"]["running"]["value"] == 3


def test_a_request_beyond_the_context_of_a_config_is_refused(capsys, there):
    (there / "c.yaml").write_text("pool: {tokens: 40000, page_size: 8, context_length: 1024}\n")
    done = call(capsys, "simulate", REQUESTS, *FEW, "--capacities", "c.yaml")
    assert done.code == 2
    assert "page-table columns, a row has 1,024" in done.err
    assert "`--context-length" in done.err


def test_a_chunk_of_zero_is_no_chunk_and_a_small_capacity(capsys, there):
    """SGLang takes 0 for a limit of 0 where it sizes the canary: only decodes have room."""
    words = (
        REQUESTS,
        *FEW,
        "--max-running-requests",
        "8",
        "--chunked-prefill-size",
        "0",
        "--output",
        "t.jsonl",
    )
    report_of(capsys, *words)
    with open_trace("t.jsonl") as trace:
        assert trace.header.capacities.write_entry_capacity == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scheduler", "orca"), "`--scheduler` is 'orca', known are sglang, vllm"),
        (("--pool-slots", "160", "--pool-tokens", "160"), "both say how large the pool is"),
        (("--pool-tokens", "160", "--scheduler", "vllm"), "needs 181 pages of 16 slots, the pool has 10"),
        (("--pool-tokens", "160"), f"{REQUESTS}: request bench-0 needs 181 pages"),
        (("--pool-tokens", "160"), "hint: a pool of 2,896 tokens serves it: `--pool-tokens 2896`"),
        (("--time-series", "-"), "the time series needs a file"),
        (("--max-num-seqs", "4"), "`--max-num-seqs` is a limit of the vllm scheduler"),
        (
            ("--scheduler", "vllm", "--chunked-prefill-size", "-1"),
            "`--chunked-prefill-size` is a limit of the sglang scheduler",
        ),
        (("--prefill-rate", "0"), "`--prefill-rate` is 0, a number above 0 is needed"),
        (("--calibrate", "s.csv", "--prefill-rate", "5"), "`--calibrate` finds what `--prefill-rate` gives"),
        (("--calibrate", "s.csv", "--limit-steps", "5"), "`--calibrate` compares whole runs"),
        (("--output", "x/t.jsonl"), "there is no folder x"),
        (
            ("--output", "t", "--time-series", "t"),
            "`--time-series` would write over t, the file of `--output`",
        ),
        (("--output", REQUESTS), "the file of `FILE`"),
        (("--input-format", "moncake"), "did you mean mooncake"),
    ],
)
def test_what_cannot_be_done(capsys, there, words, message):
    done = call(capsys, "simulate", REQUESTS, *words)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
    assert list(there.iterdir()) == []


def test_imports():
    loaded = imported_by("simulate", REQUESTS, *SERVER, "--limit-requests", "2")
    assert not loaded & {"torch", "triton", "numba", "rich"}


def test_replay_serves_by_the_same_model(capsys, there):
    (there / "c.yaml").write_text(
        "pool: {tokens: 9600, page_size: 16}\n"
        "capacities: {write_req: 64, write_entry: 8192, verify: 28800}\n"
        "simulate: {scheduler: vllm}\n"
    )
    report = report_of(capsys, REQUESTS, *FEW, "--capacities", "c.yaml")
    words = (REQUESTS, *FEW, "--capacities", "c.yaml", "--device", "cpu", "--no-progress", "--format", "json")
    replayed = json.loads(call(capsys, "replay", *words).out)
    assert (replayed["status"], replayed["coverage"]["steps"]) == ("pass", report["run"]["steps"])
    assert replayed["pool"]["slots"] == report["pool"]["slots"] == 9616
    assert call(capsys, "replay", *words, "--scheduler", "sglang").code == 0
    done = call(capsys, "replay", REQUESTS, "--scheduler", "orca")
    assert (done.code, "known are sglang, vllm" in done.err) == (2, True)
