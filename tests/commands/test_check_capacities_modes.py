"""`check-capacities` with a log, a workload, `--solve` and `--compare`, as users run it."""

from __future__ import annotations

import json

import pytest

from tests.cli import call, imported_by

POOL = ["--gpu", "H100", "--pool-tokens", "400k", "--context-length", "131072"]
SERVE = ["--from-args", "--", "sglang", "serve"]
LARGE = [*SERVE, "--chunked-prefill-size", "32768"]
LOG = (
    "\x1b[32m[2026-11-30 17:20:00 TP{rank}]\x1b[0m max_total_num_tokens=400000, chunked_prefill_size=8192, "
    "max_prefill_tokens=16384, max_running_requests=2048, context_len=131072\n"
    "[2026-11-30 17:20:01 TP{rank}] install_canary: capacities=CanaryLaunchCapacities("
    "per_forward_verify_capacity=1200000, per_forward_write_req_capacity=2048, "
    "per_forward_write_entry_capacity=8192)\n"
)


def check(capsys, *words: str):
    return call(capsys, "check-capacities", *words)


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text(LOG.format(rank=0) + LOG.format(rank=1), encoding="utf-8")
    return "server.log"


def test_a_log(capsys, log):
    done = check(capsys, "--from-log", log)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("check-capacities   server.log, 2 ranks\n")
    report = json.loads(check(capsys, "--from-log", log, "--format", "json").out)
    assert report["launch"]["log_ranks"] == ["TP0", "TP1"]
    assert report["inputs"]["pool_tokens"] == {"value": 400_000, "from": "log", "source": "server.log:1"}


def test_a_log_that_disagrees(capsys, log):
    done = check(capsys, "--from-log", log, *LARGE)
    assert done.code == 1
    assert "WARN    log-differs" in done.out
    assert "chunked_prefill_size is 8,192 in the log and 32,768 by flags and formula" in " ".join(
        done.out.split()
    )
    assert "fix:    --chunked-prefill-size 16384" in done.out
    assert done.out.endswith("over=1 tight=1 ok=2 info=1 exit=1\n")


def test_a_log_without_a_start(capsys, tmp_path):
    path = tmp_path / "x.log"
    path.write_text("hello\n", encoding="utf-8")
    done = check(capsys, "--from-log", str(path))
    assert (done.code, done.out) == (2, "")
    assert "1 lines hold no start-up line" in done.err


def test_an_estimated_pool_is_marked_everywhere(capsys):
    words = ["--hf-config", "Qwen/Qwen3-8B", "--gpu", "H100", *SERVE]
    done = check(capsys, *words)
    assert done.code == 0
    assert "an estimate: " in done.out
    assert "slots are plausible" in done.out
    assert "for an estimated pool" in " ".join(done.out.split())
    pool = json.loads(check(capsys, "--format", "json", *words).out)["pool"]
    assert pool["is_estimate"] is True
    assert pool["plausible_slots"][0] < pool["slots"] < pool["plausible_slots"][1]
    stated = json.loads(check(capsys, "--format", "json", "--pool-tokens", "5000", *words).out)["pool"]
    assert (stated["is_estimate"], stated["plausible_slots"]) == (False, None)


@pytest.mark.parametrize(
    ("flag", "words", "value"),
    [
        ("--chunked-prefill-size", LARGE, "16384"),
        ("chunked-prefill-size", LARGE, "16384"),
        ("--max-prefill-tokens", LARGE, "32768"),
        ("--chunked-prefill-size", [*SERVE, "--page-size", "64", "--max-prefill-tokens", "5000"], "4992"),
        ("--max-running-requests", SERVE, "4096"),
        ("--max-running-requests", [*SERVE, "--tp", "8", "--attn-dp-size", "2"], "8192"),
        ("--cuda-graph-max-bs-decode", SERVE, "4096"),
        ("--mem-fraction-static", SERVE, "0.998"),
        (
            "--speculative-eagle-topk",
            [
                *SERVE,
                "--speculative-algorithm",
                "EAGLE",
                "--speculative-num-steps",
                "3",
                "--speculative-eagle-topk",
                "4",
                "--speculative-num-draft-tokens",
                "8",
            ],
            "1",
        ),
    ],
)
def test_solve_prints_only_the_value(capsys, flag, words, value):
    done = check(capsys, *POOL, "--solve", flag, *words)
    assert (done.code, done.out, done.err) == (0, f"{value}\n", "")
    assert check(capsys, *POOL, *words, f"--{flag.removeprefix('--')}", value).code == 0


def test_solve_without_a_solution(capsys):
    done = check(capsys, *POOL, "--solve", "--max-running-requests", *LARGE)
    assert (done.code, done.out) == (1, "")
    assert done.err == "no value of --max-running-requests alone makes this launch pass\n"


def test_solve_an_unknown_flag(capsys):
    done = check(capsys, *POOL, "--solve", "--chunked-prefill", *SERVE)
    assert (done.code, done.out) == (2, "")
    assert "did you mean `--chunked-prefill-size`?" in done.err


def config(tmp_path, name: str, chunk: int) -> str:
    path = tmp_path / name
    path.write_text(
        f"pool: {{tokens: 400000, context_length: 131072}}\ngpu: {{name: H100}}\n"
        f"args: {{chunked-prefill-size: {chunk}}}\n",
        encoding="utf-8",
    )
    return str(path)


def test_compare(capsys, tmp_path):
    small, large = config(tmp_path, "a.yaml", 8192), config(tmp_path, "b.yaml", 32768)
    worse = check(capsys, "--compare", small, large)
    assert (worse.code, worse.err) == (1, "")
    assert "write entries 8,192 of 8,192 OK 32,768 of 16,384 OVER worse" in " ".join(worse.out.split())
    assert "fix:    --chunked-prefill-size 16384" in worse.out
    assert (
        worse.out.splitlines()[-1]
        == "kvcanary: FAIL check-capacities worse=2 better=0 changed=0 same=3 exit=1"
    )
    better = check(capsys, "--compare", large, small)
    assert better.code == 0
    assert (
        better.out.splitlines()[-1]
        == "kvcanary: PASS check-capacities worse=0 better=2 changed=0 same=3 exit=0"
    )
    same = check(capsys, "--compare", small, small)
    assert "neither is better" in same.out
    report = json.loads(check(capsys, "--compare", small, large, "--format", "json").out)
    assert [side["status"] for side in report["sides"]] == ["pass", "fail"]


def test_compare_with_the_same_flags_on_top(capsys, tmp_path):
    small, large = config(tmp_path, "a.yaml", 8192), config(tmp_path, "b.yaml", 32768)
    done = check(capsys, "--compare", small, large, *SERVE, "--chunked-prefill-size", "4096")
    assert done.code == 0
    assert "worse=0 better=0" in done.out


@pytest.mark.parametrize("words", [[], ["a.yaml"], ["a.yaml", "b.yaml", "c.yaml"]])
def test_compare_wants_two(capsys, words):
    done = check(capsys, "--compare", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: `--compare` takes two configs, found {len(words)}\n")


@pytest.fixture
def trace(capsys, tmp_path):
    path = str(tmp_path / "t.jsonl")
    assert call(capsys, "synth", path, "--steps", "20", "--quiet").code == 0
    return path


def test_a_workload(capsys, trace):
    done = check(capsys, *POOL, "--workload", trace, *LARGE)
    assert done.code == 0
    assert f"workload           {trace}, trace v1: need measured over 20 steps\n" in done.out
    assert "the flags allow more than this workload needs (entry-chunk)" in " ".join(done.out.split())
    report = json.loads(check(capsys, *POOL, "--workload", trace, "--format", "json", *LARGE).out)
    row = next(row for row in report["capacities"] if row["name"] == "verify entries")
    peak = report["workload"]["verify"]["full"]
    assert row["need"] == peak["need"]
    assert row["remark"].startswith(f"need: {peak['need']:,} at step {peak['step']:,} (")


def test_numpy_is_loaded_for_a_workload_and_for_nothing_else(trace, log):
    heavy = {"torch", "triton", "numba", "rich"}
    assert imported_by("check-capacities", *POOL, *LARGE) & {*heavy, "numpy", "yaml", "msgspec"} == set()
    assert imported_by("check-capacities", "--from-log", log) & {*heavy, "numpy", "yaml", "msgspec"} == set()
    assert (
        imported_by("check-capacities", "--gpu", "H100", "--hf-config", "Qwen/Qwen3-8B", *SERVE) & heavy
        == set()
    )
    loaded = imported_by("check-capacities", *POOL, "--workload", trace, *SERVE)
    assert "numpy" in loaded
    assert loaded & {"torch", "triton"} == set()


def test_github_annotations_of_warnings(capsys):
    words = [*SERVE, "--dllm-algorithm", "LowConfidence"]
    done = check(capsys, *POOL, "--format", "github", *words)
    assert done.out.startswith("::warning title=dllm::")
    assert done.code == 0
    assert check(capsys, *POOL, "--strict", *words).code == 1


def test_a_setting_that_fails_says_when_and_how_to_mend_it(capsys):
    done = check(capsys, *POOL, *SERVE, "--enable-pdmux", "--speculative-adaptive", "--kv-canary", "log")
    assert done.code == 1
    assert "FAIL    pdmux" in done.out
    assert "1 setting fails" in done.out
    assert "why:    at the first step: split prefill goes around" in done.out
    assert "fix:    without --enable-pdmux\n" in done.out
    report = json.loads(
        check(capsys, *POOL, "--format", "json", *SERVE, "--enable-pdmux", "--kv-canary", "log").out
    )
    assert report["fixes"][0]["changes"] == [{"flag": "--enable-pdmux", "value": None}]
    finding = next(finding for finding in report["findings"] if finding["rule"] == "pdmux")
    assert (finding["when"], finding["severity"], finding["capacity"]) == ("at the first step", "error", None)


def test_a_pool_that_the_canary_refuses(capsys):
    words = [*SERVE, "--model-path", "deepseek-ai/DeepSeek-V3"]
    done = check(capsys, *POOL, *words)
    assert done.code == 1
    assert "fix:    --kv-canary none  (no other setting helps)\n" in done.out
    off = check(capsys, *POOL, *words, "--kv-canary", "none")
    assert off.code == 0
    assert "nothing is checked" in off.out


def test_compare_and_solve_exclude_each_other(capsys):
    done = check(capsys, "--compare", "a.yaml", "b.yaml", "--solve", "--tp-size")
    assert (done.code, done.out) == (2, "")
    assert "exclude each other" in done.err


def test_a_canary_on_the_window_pool_alone(capsys, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("model: {architecture: DeepseekV4ForCausalLM, window: 128}\n", encoding="utf-8")
    done = check(capsys, str(path), *POOL, *SERVE)
    assert "canary    40,000 window slots x 32 B x 2 (head and tail)\n" in done.out
    assert "INFO    layout-last-page" in done.out
