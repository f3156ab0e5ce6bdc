"""`check-capacities` as users run it: output, exit code, and every way to get it wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli import ROOT, call, imported_by

GOLDEN = ROOT / "tests" / "capacity" / "golden"
PROGRAM = ["python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B-Instruct"]
POOL = ["--gpu", "H100", "--pool-tokens", "425984", "--context-length", "131072"]
EAGLE = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
CHECK = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=1"

CASES = {
    "pass": [*POOL, "--from-args", "--", *PROGRAM, "--kv-canary", "log"],
    "token-ids-over": [
        *POOL,
        "--from-args",
        "--",
        CHECK,
        *PROGRAM,
        *EAGLE,
        "--max-running-requests",
        "512",
        "--kv-canary=raise",
    ],
    "two-rules-verbose": [
        "--gpu",
        "H200",
        "--pool-tokens",
        "1000000",
        "--context-length",
        "65536",
        "-v",
        "--from-args",
        "--",
        CHECK,
        *PROGRAM,
        "--tp",
        "8",
        "--chunked-prefill-size",
        "32768",
        "--kv-canary-sweep-intervall",
        "5",
    ],
    "hybrid": [
        *POOL,
        "--from-args",
        "--",
        "sglang",
        "serve",
        "--model-path",
        "openai/gpt-oss-120b",
        "--kv-canary=log",
    ],
    "tight": [
        *POOL,
        "--from-args",
        "--",
        *PROGRAM,
        "--chunked-prefill-size",
        "-1",
        "--max-prefill-tokens",
        "131072",
        "--disable-radix-cache",
        "--kv-canary=log",
    ],
}
NUMBER = re.compile(r"\d[\d,]*\d|\d")
CODES = {"pass": 0, "token-ids-over": 1, "two-rules-verbose": 1, "hybrid": 0, "tight": 0}


def check(capsys, *words: str):
    return call(capsys, "check-capacities", *words)


@pytest.mark.parametrize("case", CASES)
def test_text(capsys, case):
    done = check(capsys, *CASES[case])
    assert done.out == (GOLDEN / f"{case}.txt").read_text(encoding="ascii")
    assert (done.code, done.err) == (CODES[case], "")


@pytest.mark.parametrize("case", CASES)
def test_text_is_80_columns_wide_and_ends_in_the_verdict(capsys, case):
    words = [word for word in CASES[case] if word != "-v"]
    lines = check(capsys, *words).out.splitlines()
    fixed = [
        line for line in lines if not line.startswith(("why:", "fix:", "   or:", " " * 8 + "kv-canary:"))
    ]
    assert [line for line in fixed[:-1] if len(line) > 80] == []
    verdict = {0: "PASS", 1: "FAIL"}[CODES[case]]
    assert re.fullmatch(
        rf"kvcanary: {verdict} check-capacities over=\d tight=\d ok=\d info=\d exit={CODES[case]}", lines[-1]
    )


@pytest.mark.parametrize("case", CASES)
def test_json_holds_every_number_of_the_text(capsys, case):
    text = check(capsys, *CASES[case]).out
    report = json.loads(check(capsys, "--format", "json", *CASES[case]).out)
    assert report["schema"] == "kvcanary.report/1"
    known = {number.replace(",", "") for number in NUMBER.findall(json.dumps(report))}
    # ratios, sizes in units and percentages are derived while rendering
    rows = [line for line in text.split("\nmemory")[0].splitlines()[2:] if not re.search(r"\d\.\d\dx", line)]
    assert {
        number.replace(",", "") for line in rows for number in re.findall(r"\d[\d,]*\d|\d", line)
    } <= known


def test_json_of_a_capacity(capsys):
    report = json.loads(check(capsys, "--format", "json", *CASES["token-ids-over"]).out)
    row = next(row for row in report["capacities"] if row["name"] == "token-id batch")
    assert row == {
        "name": "token-id batch",
        "rule": "scatter",
        "code": "C1",
        "status": "OVER",
        "value": 511,
        "need": 512,
        "headroom": 0.99,
        "exact": False,
        "formula": "offsets of one block - 1",
        "terms": {"offsets": 512, "running_requests": 512},
        "worked": "512 offsets - 1",
        "remark": "need: running requests",
        "bound_by": "built in",
        "fired": ["scatter"],
        "server_message": "kv-canary: scatter_req_token_ids bs+1=513 exceeds BATCH_BLOCK=512; bump "
        "_SCATTER_BATCH_BLOCK if real workloads need this",
        "fix": [
            {"flag": "--max-running-requests", "value": "511"},
            {"flag": "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT", "value": "0"},
        ],
    }
    assert (report["status"], report["exit_code"], report["summary"]) == (
        "fail",
        1,
        {"over": 1, "tight": 0, "ok": 3, "info": 1},
    )
    assert report["fixes"][0] == {
        "changes": [{"flag": "--max-running-requests", "value": "511"}],
        "text": "--max-running-requests 511",
        "note": "largest that works",
    }


def test_json_inputs_have_their_origin(capsys):
    inputs = json.loads(check(capsys, "--format", "json", *CASES["token-ids-over"]).out)["inputs"]
    assert inputs["max_running_requests"] == {
        "value": 512,
        "from": "flag",
        "source": "--max-running-requests",
    }
    assert inputs["verify_token_check"]["from"] == "environment"
    assert inputs["chunked_prefill_size"] == {
        "value": 8192,
        "from": "default",
        "source": "server, by GPU memory",
    }
    assert {value["from"] for value in inputs.values()} <= {"flag", "environment", "file", "log", "default"}


def test_headroom_is_rounded_down(capsys):
    words = [*POOL, "--from-args", "--", *PROGRAM, "--max-running-requests", "4097"]
    report = json.loads(check(capsys, "--format", "json", *words).out)
    assert next(row for row in report["capacities"] if row["name"] == "plan batch")["headroom"] == 0.99


def test_a_config_alone(capsys):
    done = check(capsys, "configs/llama-3.1-8b-h100.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("check-capacities   configs/llama-3.1-8b-h100.yaml\n")
    assert check(capsys, "--config", "configs/llama-3.1-8b-h100.yaml").out == done.out


def test_a_config_with_a_command_behind_it(capsys):
    config = "configs/llama-3.1-8b-h100.yaml"
    done = check(capsys, config, "--from-args", "--", *PROGRAM, "--chunked-prefill-size", "32768")
    assert (done.code, done.err) == (1, "")
    assert "fix:    --chunked-prefill-size 16384  (largest that works)\n" in done.out


def test_an_args_file(capsys, tmp_path):
    path = tmp_path / "launch.sh"
    path.write_text(
        " ".join([CHECK, *PROGRAM, "\\\n  --max-running 5k"]).replace("5k", "5000"), encoding="utf-8"
    )
    done = check(capsys, *POOL, "--args-file", str(path))
    assert (done.code, done.err) == (1, "")
    assert "got 5000\n" in done.out


def test_the_fix_of_a_report_can_be_pasted(capsys):
    failing = CASES["token-ids-over"]
    fix = re.search(r"^fix:    (.*?)  \(", check(capsys, *failing).out, re.MULTILINE)[1]
    assert check(capsys, *failing, *fix.split()).code == 0


def test_canary_off_is_said(capsys):
    done = check(capsys, *POOL, "--from-args", "--", *PROGRAM)
    assert "canary    off in these arguments (--kv-canary none); sized as if it were on\n" in done.out


def test_quiet_strict_and_exit_zero(capsys):
    verdict = "kvcanary: FAIL check-capacities over=1 tight=0 ok=3 info=1 exit=1\n"
    assert check(capsys, "--quiet", *CASES["token-ids-over"]).out == verdict
    assert check(capsys, "--exit-zero", *CASES["token-ids-over"]).code == 0
    assert check(capsys, "--strict", *CASES["tight"]).code == 1
    assert check(capsys, "--strict", *CASES["pass"]).code == 0


def test_github_annotations(capsys):
    done = check(capsys, "--format", "github", *CASES["token-ids-over"])
    assert done.out.startswith(
        "::error title=token-id batch (scatter)::a step of 512 requests would raise: kv-canary: "
    )


def test_older_releases_name_their_own_flag(capsys):
    words = [
        *POOL,
        "--sglang-version",
        "0.5.18",
        "--from-args",
        "--",
        *PROGRAM,
        "--cuda-graph-max-bs",
        "5000",
    ]
    done = check(capsys, *words)
    assert "fix:    --cuda-graph-max-bs 4096  (largest that works)\n" in done.out
    assert "launch arguments of sglang 0.5.18: 2 given" in done.out


FROM_ARGS = [*POOL, "--from-args", "--"]
BAD = {
    "nothing": ([], "there is nothing to check: no config, no `--args-file`, no launch command"),
    "empty-command": ([*POOL, "--from-args", "--"], "there is no launch command"),
    "no-command": ([*POOL, "--from-args"], "there is no launch command"),
    "no-from-args": ([*POOL, "--", *PROGRAM], "one config is wanted, found 5 words"),
    "two-configs": (["a.yaml", "--config", "b.yaml"], "two configs are given, a.yaml and `--config` b.yaml"),
    "other-program": (
        [*FROM_ARGS, "vllm", "serve"],
        "`vllm` starts no server: no `sglang.launch_server` and no `sglang serve` follows",
    ),
    "missing-value": ([*FROM_ARGS, *PROGRAM, "--tp"], "`--tp` needs a value"),
    "negative": (
        [*FROM_ARGS, *PROGRAM, "--max-running-requests", "-1"],
        "`--max-running-requests` is -1, it must be at least 1",
    ),
    "huge": (
        [*FROM_ARGS, *PROGRAM, "--max-total-tokens", "9" * 30],
        "`--max-total-tokens` is 999,999,999,999,999,999,999,999,999,999, the server counts to 2,147,483,647",
    ),
    "endless": (
        [*FROM_ARGS, *PROGRAM, "--max-total-tokens", "9" * 5000],
        "`--max-total-tokens` has a number of 5,000 digits",
    ),
    "wrong-case": (
        [*FROM_ARGS, *PROGRAM, "--max-total-tokens", "400K"],
        "`--max-total-tokens` wants an integer such as 16384, 16k or 16Ki, found `400K` (the "
        "unit is written k)",
    ),
    "ambiguous": (
        [*FROM_ARGS, *PROGRAM, "--pp", "2"],
        "ambiguous option: --pp could match --pp-async-batch-depth, --pp-max-micro-batch-size, --pp-size",
    ),
    "contradiction": (
        [*FROM_ARGS, *PROGRAM, "--tp", "6", "--attn-dp", "4"],
        "`--tp-size` is 6, which 4 attention data-parallel groups do not divide",
    ),
    "no-pool": (
        ["--gpu", "H100", "--context-length", "4096", "--from-args", "--", *PROGRAM],
        "launch flags don't say the tokens of the pool (`--pool-tokens`, max_total_num_tokens "
        "in the server's start-up log)",
    ),
    "no-context": (
        ["--gpu", "H100", "--pool-tokens", "4096", "--from-args", "--", *PROGRAM[:3]],
        "launch flags don't say the context length (`--context-length`)",
    ),
    "no-gpu": (
        ["--pool-tokens", "400k", "--context-length", "4096", "--from-args", "--", *PROGRAM],
        "launch flags don't say the GPU, for the default of `--chunked-prefill-size` and "
        "`--cuda-graph-max-bs-decode` (`--gpu` or `--gpu-memory`)",
    ),
    "unknown-gpu": (
        [
            "--gpu",
            "H1000",
            "--pool-tokens",
            "400k",
            "--context-length",
            "4096",
            "--from-args",
            "--",
            *PROGRAM,
        ],
        "the GPU `H1000` is not in the table of GPUs",
    ),
    "bad-option": (
        ["--pool-tokens", "-1", "--from-args", "--", *PROGRAM],
        "`--pool-tokens` is -1, it ranges from 1 to 2,147,483,647",
    ),
    "unknown-release": (
        ["--sglang-version", "9", "--from-args", "--", *PROGRAM],
        "`--sglang-version` 9 is not a release whose sizing is known (0.5.16, 0.5.18, 0.5.20, "
        "0.5.22, 0.5.23)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_command_lines(capsys, name):
    words, message = BAD[name]
    done = check(capsys, *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == f"error: {message}"


FILES = {
    "unknown-key": (
        "c.yaml",
        "pool: {tokns: 5}",
        "c.yaml:1: $.pool.tokns: the key `tokns` is not known here, which has tokens, "
        "page_size, context_length, swa_tokens",
        "did you mean `tokens`?",
    ),
    "duplicate-key": (
        "c.yaml",
        "pool: {}\npool: {}",
        "c.yaml:2: the key `pool` stands here again, it was given on line 1",
        None,
    ),
    "not-yaml": (
        "c.yaml",
        "pool: {",
        "c.yaml:1: this is not YAML: expected the node content, but found '<stream end>'",
        None,
    ),
    "open-quote": (
        "a.sh",
        "--tp 8 \\\n--model-path 'x\n",
        "a.sh:2: a quote or backslash begins here and does not end before the file does",
        None,
    ),
    "empty-file": ("a.sh", "", "a.sh: the file holds no launch command", None),
    "no-file": ("absent.yaml", None, "absent.yaml: the file can't be read: No such file or directory", None),
    "no-args-file": ("absent.sh", None, "absent.sh: the file can't be read: No such file or directory", None),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files(capsys, name, tmp_path, monkeypatch):
    file, text, message, hint = FILES[name]
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(file).write_text(text, encoding="utf-8")
    option = "--args-file" if file.endswith(".sh") else "--config"
    done = check(capsys, *POOL, option, file)
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert lines[0] == f"error: {message}"
    assert hint is None or lines[-1] == f"hint: {hint}"


def test_errors_in_json(capsys):
    done = check(capsys, "--format", "json", *FROM_ARGS, *PROGRAM, "--tp")
    error = json.loads(done.out)
    assert (error["status"], error["exit_code"], error["error"]["code"]) == ("error", 2, "usage")
    assert error["error"]["message"] == "`--tp` needs a value"


HEAVY = {"torch", "triton", "numba", "numpy", "rich"}


def test_flags_alone_load_no_yaml():
    loaded = imported_by("check-capacities", *CASES["pass"])
    assert loaded & (HEAVY | {"yaml", "msgspec"}) == set()


def test_a_config_loads_nothing_heavy():
    loaded = imported_by("check-capacities", "configs/llama-3.1-8b-h100.yaml")
    assert {"yaml", "msgspec"} <= loaded
    assert loaded & HEAVY == set()
