"""Flags that break a server with a canary, each beside flags that are just short of it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kvcanary_cli.capacity.audit import Audit
from kvcanary_cli.capacity.rules import RULES
from tests.capacity.launches import audited, write_config

CHECK = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"
LLAMA = ["--model-path", "meta-llama/Llama-3.1-8B"]
EAGLE = ["--speculative-algorithm", "EAGLE"]
CHAIN = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
RANKS = ["--tp", "8", "--attn-dp-size", "2"]
PP = ["--pp-size", "2", "--enable-dynamic-chunking"]
SWEEP = ["--kv-canary", "log", "--kv-canary-sweep-interval", "100"]


class Case(NamedTuple):
    """A rule, flags that make it fire, and flags that are just short of it."""

    rule: str
    breaks: str
    short: str
    breaks_env: dict[str, str] = {}  # noqa: RUF012
    short_env: dict[str, str] = {}  # noqa: RUF012
    options: dict[str, str] = {}  # noqa: RUF012
    short_options: dict[str, str] | None = None


def flags(*parts: list[str] | str) -> str:
    return " ".join(part if isinstance(part, str) else " ".join(part) for part in parts)


CASES = {
    "a chunk": Case("entry-chunk", "--chunked-prefill-size 16385", "--chunked-prefill-size 16384"),
    "a budget": Case(
        "entry-chunk", "--max-prefill-tokens 2048 --max-running-requests 2047", "--max-prefill-tokens 8192"
    ),
    "b whole prompts": Case(
        "entry-unchunked",
        "--chunked-prefill-size -1",
        "--chunked-prefill-size -1",
        options={"context_length": "16386"},
        short_options={"context_length": "16385"},
    ),
    "b forced by a switch": Case(
        "entry-unchunked", "--enable-mis --chunked-prefill-size 8192", "--chunked-prefill-size 8192"
    ),
    "b several prompts": Case(
        "entry-several",
        "--chunked-prefill-size -1 --disable-radix-cache",
        "--chunked-prefill-size -1",
        options={"context_length": "16385"},
    ),
    "c chunk of 0": Case("chunk-zero", "--chunked-prefill-size 0", "--chunked-prefill-size 1"),
    "c chunk of 0 a rank": Case(
        "chunk-zero", flags(RANKS, "--chunked-prefill-size 1"), flags(RANKS, "--chunked-prefill-size 2")
    ),
    "d requests": Case("req-plan", "--max-running-requests 4097", "--max-running-requests 4096"),
    "d graph": Case("req-plan", "--cuda-graph-max-bs-decode 4097", "--cuda-graph-max-bs-decode 4096"),
    "e top-k by default": Case("spec-topk", flags(LLAMA, EAGLE), flags(LLAMA, EAGLE, CHAIN)),
    "e top-k": Case(
        "spec-topk",
        flags(EAGLE, "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 6"),
        flags(EAGLE, CHAIN),
    ),
    "e another model": Case(
        "spec-topk",
        flags(LLAMA, EAGLE),
        "--model-path Qwen/Qwen3-8B --speculative-algorithm EAGLE",
        short_options={"context_length": "40960"},
    ),
    "e trees": Case(
        "spec-tree",
        "--speculative-algorithm NGRAM",
        "--speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1",
    ),
    "f adaptive": Case("spec-adaptive", flags(EAGLE, CHAIN, "--speculative-adaptive"), flags(EAGLE, CHAIN)),
    "g multi-layer": Case(
        "spec-unsupported", flags(EAGLE, CHAIN, "--enable-multi-layer-eagle"), flags(EAGLE, CHAIN)
    ),
    "g frozen": Case(
        "spec-unsupported", "--speculative-algorithm FROZEN_KV_MTP", "--speculative-algorithm STANDALONE"
    ),
    "g flash": Case(
        "spec-draft",
        "--speculative-algorithm DFLASH --speculative-num-draft-tokens 16",
        "--speculative-algorithm STANDALONE",
    ),
    "g spark": Case(
        "spec-draft",
        "--speculative-algorithm DSPARK --speculative-num-draft-tokens 8",
        "--speculative-algorithm STANDALONE",
    ),
    "h pdmux": Case("pdmux", "--enable-pdmux", "--enable-prefill-delayer"),
    "i dynamic chunks": Case("dynamic-chunking", flags(PP), "--pp-size 2"),
    "i profiling": Case(
        "dynamic-chunking",
        flags(PP, "--max-prefill-tokens 2048 --chunked-prefill-size 1640"),
        # 5/4 x 1638 is 2,047, and the requests alone make 2,048 entries
        flags(PP, "--max-prefill-tokens 2048 --chunked-prefill-size 1638"),
    ),
    "i one stage": Case("dynamic-chunking", flags(PP), "--enable-dynamic-chunking"),
    "j rounding": Case(
        "req-rounding",
        flags(RANKS, "--max-running-requests 2002"),
        flags(RANKS, "--max-running-requests 2000"),
    ),
    "j a graph that holds it": Case(
        "req-rounding",
        flags(RANKS, "--max-running-requests 2002 --cuda-graph-max-bs-decode 1003"),
        flags(RANKS, "--max-running-requests 2002 --cuda-graph-max-bs-decode 1004"),
    ),
    "k bucket": Case(
        "entry-bucket",
        "--max-prefill-tokens 10000 --chunked-prefill-size 16384",
        "--max-prefill-tokens 10240 --chunked-prefill-size 10240",
    ),
    "k sizes above the chunk": Case(
        "entry-bucket",
        "--chunked-prefill-size 9000 --cuda-graph-max-bs-prefill 9216",
        "--chunked-prefill-size 9000 --cuda-graph-max-bs-prefill 9215",
    ),
    "k a list of sizes": Case(
        "entry-bucket",
        "--chunked-prefill-size 8192 --cuda-graph-bs-prefill 1024 12288",
        "--chunked-prefill-size 8192 --cuda-graph-bs-prefill 1024 8192",
    ),
    "k no graph": Case(
        "entry-bucket",
        "--chunked-prefill-size 9000 --cuda-graph-max-bs-prefill 9216",
        "--chunked-prefill-size 9000 --cuda-graph-max-bs-prefill 9216 --disable-prefill-cuda-graph",
    ),
    "l autotune": Case(
        "warmup-autotune",
        "--chunked-prefill-size 2049",
        "--chunked-prefill-size 2048",
        {"SGLANG_FLASHINFER_AUTOTUNE_EXTEND": "1"},
        {"SGLANG_FLASHINFER_AUTOTUNE_EXTEND": "1"},
    ),
    "l deepgemm": Case(
        "warmup-deepgemm",
        "--pp-size 2",
        "--pp-size 2",
        {"SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP": "1"},
        {"SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP": "0"},
    ),
    "m token check": Case(
        "scatter", "--max-running-requests 512", "--max-running-requests 511", {CHECK: "1"}, {CHECK: "1"}
    ),
    "m no token check": Case(
        "scatter", "--max-running-requests 512", "--max-running-requests 512", {CHECK: "1"}
    ),
    "n sharing": Case(
        "verify-share",
        "--max-running-requests 100",
        "--max-running-requests 100",
        options={"pool_tokens": "1000k", "context_length": "30001"},
        short_options={"pool_tokens": "1000k", "context_length": "30000"},
    ),
    "n no prefix cache": Case("verify-share", "", "--disable-radix-cache"),
    "o LMCache": Case("sweep-cache", flags(SWEEP, "--enable-lmcache"), "--kv-canary log --enable-lmcache"),
    "o FlexKV": Case("sweep-cache", flags(SWEEP, "--enable-flexkv"), flags(SWEEP)),
    "o its own cache": Case(
        "sweep-cache",
        flags(SWEEP, "--radix-cache-backend mine"),
        flags(SWEEP, "--radix-cache-backend unified"),
    ),
    "p rows of pages": Case(
        "layout-hnd",
        "--page-size 16",
        "--page-size 1",
        {"SGLANG_USE_HND_KVCACHE": "1"},
        {"SGLANG_USE_HND_KVCACHE": "1"},
    ),
    "p context ranks": Case("layout-dcp", "--dcp-size 2", "--dcp-size 1"),
    "p stages": Case(
        "stage-window",
        "--model-path openai/gpt-oss-120b --pp-size 19",
        "--model-path openai/gpt-oss-120b --pp-size 18",
    ),
    "q prefill ranks": Case(
        "prefill-cp", "--enable-prefill-cp", "--enable-prefill-cp --disable-prefill-cuda-graph"
    ),
    "q diffusion": Case("dllm", "--dllm-algorithm LowConfidence", ""),
    "pool: MLA": Case("pool-class", "--model-path deepseek-ai/DeepSeek-V3", flags(LLAMA)),
    "pool: MXFP8": Case("pool-class", "--kv-cache-dtype mxfp8", "--kv-cache-dtype nvfp4"),
    "pool: unified": Case("pool-class", "--enable-unified-memory", ""),
    "pool: page-major": Case("pool-class", "--enable-page-major-kv-layout", ""),
    "pool: none": Case(
        "pool-class", "--prefill-only-disable-kv-cache --chunked-prefill-size -1", "--chunked-prefill-size -1"
    ),
    # 122.9 MiB and a ring of 64 KiB beside 81,559 MiB
    "memory": Case("memory", "--mem-fraction-static 0.9986", "--mem-fraction-static 0.998"),
    "memory: token ids": Case(
        "memory", "--mem-fraction-static 0.990", "--mem-fraction-static 0.990", {CHECK: "1"}
    ),
    "sweep without canary": Case(
        "sweep-off", "--kv-canary-sweep-interval 1", "--kv-canary-sweep-interval 1 --kv-canary log"
    ),
    "device": Case("device-graph", "--device xpu", "--device xpu --disable-cuda-graph"),
    "piecewise": Case(
        "prefill-piecewise",
        '--cuda-graph-config {"prefill":{"backend":"tc_piecewise"}}',
        '--cuda-graph-config {"prefill":{"backend":"breakable"}}',
    ),
    "rows of real data": Case(
        "real-data-rows",
        "--kv-canary-real-data all",
        "--kv-canary-real-data none",
        options={"head_dim": "36"},
    ),
    "rows that fit": Case(
        "real-data-rows",
        "--kv-canary-real-data partial",
        "--kv-canary-real-data partial",
        options={"head_dim": "36"},
        short_options={"head_dim": "48"},
    ),
    "inputs without oracle": Case(
        "input-oracle",
        "",
        "",
        {"SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT": "1"},
        {
            "SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT": "1",
            "SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE": "1",
        },
    ),
    "damage without group": Case(
        "perturb-group",
        "",
        "",
        {"SGLANG_KV_CANARY_PERTURB_REAL_KV_USED_PROB": "0.1"},
        {
            "SGLANG_KV_CANARY_PERTURB_REAL_KV_USED_PROB": "0.1",
            "SGLANG_KV_CANARY_PERTURB_TARGET_GROUP": "full",
        },
    ),
    "damage": Case(
        "perturb",
        "",
        "",
        {"SGLANG_KV_CANARY_PERTURB_REQ_TO_TOKEN_PROB": "0.1"},
        {"SGLANG_KV_CANARY_PERTURB_REQ_TO_TOKEN_PROB": "0"},
    ),
}


def run(tmp_path, words: str, env: dict[str, str], options: dict[str, str]) -> Audit:
    """A launch; a head size in the options becomes a config, as no flag says it."""
    head_dim = options.get("head_dim")
    rest = {name: value for name, value in options.items() if name != "head_dim"}
    if head_dim is not None:
        text = f"model: {{layers: 2, kv_heads: 1, head_dim: {head_dim}, dtype: fp8}}"
        rest["config_path"] = write_config(tmp_path, text)
    return audited(*words.split(), env=env, **rest)


@pytest.mark.parametrize("name", CASES)
def test_flags_that_break_and_flags_just_short_of_it(name, tmp_path):
    case = CASES[name]
    broken = run(tmp_path, case.breaks, case.breaks_env, case.options)
    found = {finding.rule.id: finding for finding in broken.findings}
    assert case.rule in found
    rule, hit = found[case.rule]
    assert hit.text
    assert hit.when
    options = case.options if case.short_options is None else case.short_options
    fine = run(tmp_path, case.short, case.short_env, options)
    assert case.rule not in {finding.rule.id for finding in fine.findings}
    if rule.severity != "info":
        assert broken.fixes


def test_every_letter_and_every_rule_has_a_case():
    assert {name[0] for name in CASES if name[1] == " "} == set("abcdefghijklmnopq")
    elsewhere = {"layout-last-page", "gemma-positions", "log-differs", "log-ranks", "pool-estimate"}
    without = {rule.id for rule in RULES if not rule.id.startswith("need-")}
    assert without - {case.rule for case in CASES.values()} == elsewhere


def ids(result: Audit) -> set[str]:
    return {finding.rule.id for finding in result.findings}


@pytest.mark.parametrize(
    ("architecture", "rules"),
    [
        ("Gemma4ForConditionalGeneration", {"gemma-positions"}),
        ("DeepseekV4ForCausalLM", {"layout-last-page"}),
        ("DeepseekV32ForCausalLM", {"pool-class"}),
        ("Qwen3NextForCausalLM", {"pool-class"}),
        ("Qwen3_5MoeForConditionalGeneration", {"pool-class"}),
        ("MiniMaxM3ForCausalLM", {"pool-class"}),
        ("KimiK2ForCausalLM", {"pool-class"}),
        ("Gemma3TextModel", {"entry-unchunked"}),
        ("MllamaForConditionalGeneration", {"entry-unchunked"}),
        ("LlavaLlamaForCausalLM", {"entry-unchunked"}),
        ("CLIPModel", {"entry-unchunked"}),
        ("LlamaForCausalLM", set()),
    ],
)
def test_architectures(tmp_path, architecture, rules):
    path = write_config(tmp_path, f"model: {{architecture: {architecture}}}")
    assert ids(audited(config_path=path)) - {"verify-share"} == rules


def test_gemma_with_its_variable(tmp_path):
    path = write_config(tmp_path, "model: {architecture: Gemma4ForCausalLM}")
    env = {"SGLANG_GEMMA_OUT_OF_PLACE_POSITION_MUTATION": "1"}
    assert "gemma-positions" not in ids(audited(config_path=path, env=env))


@pytest.mark.parametrize(
    ("version", "fires"), [("0.5.16", False), ("0.5.20", False), ("0.5.22", True), ("0.5.23", True)]
)
def test_rules_follow_the_release(version, fires):
    assert ("device-graph" in ids(audited("--device", "xpu", version=version))) is fires


def test_window_layers_alone_are_swept_by_older_releases(tmp_path):
    path = write_config(tmp_path, "model: {window: 128, layers: 4, swa_layers: 4}")
    for version, fires in [("0.5.20", False), ("0.5.22", True)]:
        found = ids(audited(*SWEEP, config_path=path, version=version))
        assert ("sweep-cache" in found) is fires


def test_stages_by_the_order_of_layers(tmp_path):
    kinds = ["full_attention"] * 2 + ["sliding_attention"] * 2
    for layers, fires in [(kinds, True), ([*kinds[:1], *kinds[2:3]] * 2, False)]:
        path = tmp_path / "config.json"
        text = str(
            {
                "architectures": ["GptOssForCausalLM"],
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "hidden_size": 64,
                "sliding_window": 128,
                "layer_types": layers,
            }
        ).replace("'", '"')
        path.write_text(text, encoding="utf-8")
        assert ("stage-window" in ids(audited("--pp-size", "2", hf_config=str(path)))) is fires


def test_a_launch_without_canary_is_not_judged():
    assert ids(audited("--chunked-prefill-size", "0", "--kv-canary", "none")) == set()
    assert "chunk-zero" in ids(audited("--chunked-prefill-size", "0"))


def test_titles_and_ids_are_fit_for_a_list():
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.title
        assert not rule.title.endswith(".")
        assert rule.severity in ("error", "warning", "info")
