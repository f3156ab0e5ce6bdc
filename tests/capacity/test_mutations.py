"""Damaged command lines, files and configs: a clear error or an answer, never a traceback."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.cli import call

COMMAND = [
    *["SGLANG_KV_CANARY_RING_CAPACITY=2048", "python", "-m", "sglang.launch_server", "--model-path"],
    *[
        "meta-llama/Llama-3.1-8B",
        "--tp",
        "8",
        "--chunked-prefill-size",
        "8192",
        "--max-running-requests=2000",
    ],
    *["--cuda-graph-config", '{"decode": {"max_bs": 256}}', "--cuda-graph-bs-decode", "1", "2", "256"],
    *["--speculative-algorithm", "EAGLE3", "--kv-canary", "log", "--mem-fraction-static", "0.8"],
]
CONFIG = """\
pool: {tokens: 400000, page_size: 1, context_length: 131072}
gpu: {name: H100, memory_mib: 81559}
args:
  --model-path: meta-llama/Llama-3.1-8B
  --chunked-prefill-size: 8192
  --cuda-graph-bs-decode: [1, 2, 256]
capacities: {write_req: 2048, write_entry: 8192, verify: 1200000}
model: {layers: 32, kv_heads: 8, head_dim: 128, window: null, dtype: bf16}
"""
POOL = ["--gpu", "H100", "--pool-tokens", "400k", "--context-length", "131072"]
WORDS = [
    *[
        "",
        " ",
        "-",
        "--",
        "---",
        "=",
        "'",
        '"',
        "\\",
        "\t",
        "\0",
        "é",
        "☃",
        "\U0001f600",
        "$X",
        "${",
        "`x`",
        "*",
    ],
    *[
        "-1",
        "0",
        "9" * 40,
        "-" + "9" * 40,
        "1e9",
        "nan",
        "inf",
        "0x10",
        "1_000",
        "16k",
        "1.5Ki",
        "None",
        "true",
    ],
    *[
        "--tp",
        "--pp",
        "--kv-canary",
        "--enable-pdmux",
        "--no-such-flag",
        "{}",
        "[",
        "null",
        "|",
        ">x",
        ";",
        "&&",
    ],
]
NUM_COMMANDS, NUM_CONFIGS = 120, 120


def drop(rng: random.Random, words: list[str]) -> None:
    del words[rng.randrange(len(words))]


def double(rng: random.Random, words: list[str]) -> None:
    words.insert(rng.randrange(len(words) + 1), rng.choice(words))


def swap(rng: random.Random, words: list[str]) -> None:
    first, second = rng.randrange(len(words)), rng.randrange(len(words))
    words[first], words[second] = words[second], words[first]


def replace(rng: random.Random, words: list[str]) -> None:
    words[rng.randrange(len(words))] = rng.choice(WORDS)


def insert(rng: random.Random, words: list[str]) -> None:
    words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))


def cut(rng: random.Random, words: list[str]) -> None:
    at = rng.randrange(len(words))
    words[at] = words[at][: rng.randrange(len(words[at]) + 1)]


def splice(rng: random.Random, words: list[str]) -> None:
    at = rng.randrange(len(words))
    place = rng.randrange(len(words[at]) + 1)
    words[at] = words[at][:place] + rng.choice(WORDS) + words[at][place:]


MUTATIONS: list[Callable[[random.Random, list[str]], None]] = [
    drop,
    double,
    swap,
    replace,
    insert,
    cut,
    splice,
]


def mutated(seed: int, parts: list[str]) -> list[str]:
    rng = random.Random(seed)
    words = list(parts)
    for _ in range(rng.randint(1, 3)):
        if words:
            rng.choice(MUTATIONS)(rng, words)
    return words


def judge(done, what: object) -> None:
    """An answer on stdout, or one error that says what is wrong; 70 would be a bug."""
    assert done.code in (0, 1, 2), (what, done.err)
    assert "Traceback" not in done.err + done.out
    if done.code == 2:
        assert done.out == ""
        first = done.err.splitlines()[0]
        assert first.startswith("error: "), what
        assert len(first) > len("error: ") + 10
        assert "a bug in kvcanary" not in done.err
    else:
        assert done.out.splitlines()[-1].startswith(("kvcanary: PASS", "kvcanary: FAIL"))


def test_command_lines(capsys):
    codes = set()
    for seed in range(NUM_COMMANDS):
        words = mutated(seed, COMMAND)
        done = call(capsys, "check-capacities", *POOL, "--from-args", "--", *words)
        judge(done, words)
        codes.add(done.code)
    assert codes == {0, 1, 2}


def test_args_files(capsys, tmp_path):
    path = tmp_path / "launch.sh"
    for seed in range(NUM_COMMANDS):
        text = " ".join(mutated(seed, COMMAND)).replace(" --", " \\\n  --")
        path.write_text(text, encoding="utf-8")
        judge(call(capsys, "check-capacities", *POOL, "--args-file", str(path)), text)


def test_configs(capsys, tmp_path):
    path = tmp_path / "c.yaml"
    codes = set()
    for seed in range(NUM_CONFIGS):
        parts = mutated(seed, CONFIG.replace("{", " { ").replace(",", " , ").split(" "))
        text = " ".join(parts)
        path.write_text(text, encoding="utf-8")
        done = call(capsys, "check-capacities", str(path))
        judge(done, text)
        codes.add(done.code)
    assert 2 in codes
    assert codes & {0, 1}


@pytest.mark.parametrize("kind", ["log", "json"])
def test_logs_and_model_configs(capsys, tmp_path, kind):
    texts = {
        "log": "[TP0] max_total_num_tokens=400000, chunked_prefill_size=8192, "
        "max_running_requests=2048, context_len=4096",
        "json": '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, '
        '"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336, '
        '"max_position_embeddings": 131072, "torch_dtype": "bfloat16"}',
    }
    path = tmp_path / f"x.{kind}"
    option = "--from-log" if kind == "log" else "--hf-config"
    for seed in range(60):
        text = " ".join(mutated(seed, texts[kind].split(" ")))
        path.write_text(text, encoding="utf-8")
        judge(
            call(
                capsys,
                "check-capacities",
                "--gpu",
                "H100",
                option,
                str(path),
                "--from-args",
                "--",
                "--tp",
                "1",
            ),
            text,
        )
