"""Each rule at its edge, and what it says."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.rules import RULES
from tests.capacity.launches import audited

CHECK = {"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"}


def fired(*words: str, env: dict[str, str] | None = None, **options: str | None) -> set[str]:
    return {finding.rule.id for finding in audited(*words, env=env, **options).findings}


@pytest.mark.parametrize(
    ("rule", "fires", "words", "options"),
    [
        ("entry-chunk", True, ["--chunked-prefill-size", "16385"], {}),
        ("entry-chunk", False, ["--chunked-prefill-size", "16384"], {}),
        ("entry-chunk", True, ["--max-prefill-tokens", "8191", "--max-running-requests", "512"], {}),
        ("entry-chunk", False, ["--max-prefill-tokens", "8192", "--max-running-requests", "512"], {}),
        # decode rows make room for the chunk
        ("entry-chunk", False, ["--max-prefill-tokens", "512", "--chunked-prefill-size", "2048"], {}),
        ("entry-chunk", True, ["--max-prefill-tokens", "512", "--chunked-prefill-size", "2049"], {}),
        # no forward has more tokens than the pool
        ("entry-chunk", False, ["--chunked-prefill-size", "32768"], {"pool_tokens": "16384"}),
        ("entry-chunk", True, ["--chunked-prefill-size", "32768"], {"pool_tokens": "16385"}),
        ("entry-unchunked", True, ["--chunked-prefill-size", "-1"], {"context_length": "16386"}),
        ("entry-unchunked", False, ["--chunked-prefill-size", "-1"], {"context_length": "16385"}),
        ("entry-unchunked", False, ["--chunked-prefill-size", "-1"], {"pool_tokens": "16384"}),
        ("entry-unchunked", True, ["--enable-mis"], {}),
        ("entry-unchunked", False, ["--chunked-prefill-size", "1"], {}),
        ("chunk-zero", True, ["--chunked-prefill-size", "0"], {}),
        ("chunk-zero", True, ["--tp", "8", "--attn-dp-size", "8", "--chunked-prefill-size", "7"], {}),
        ("chunk-zero", False, ["--tp", "8", "--attn-dp-size", "8", "--chunked-prefill-size", "8"], {}),
        ("chunk-zero", False, ["--chunked-prefill-size", "-1"], {}),
        ("req-plan", True, ["--max-running-requests", "4097"], {}),
        ("req-plan", False, ["--max-running-requests", "4096"], {}),
        ("req-plan", True, ["--cuda-graph-max-bs-decode", "4097"], {}),
        ("req-plan", False, ["--cuda-graph-max-bs-decode", "4096"], {}),
        ("req-plan", False, ["--max-running-requests", "9999"], {"pool_tokens": "8192"}),
        (
            "verify-share",
            True,
            ["--max-running-requests", "100"],
            {"pool_tokens": "1000k", "context_length": "30001"},
        ),
        (
            "verify-share",
            False,
            ["--max-running-requests", "100"],
            {"pool_tokens": "1000k", "context_length": "30000"},
        ),
        ("verify-share", False, ["--disable-radix-cache"], {}),
        ("scatter", False, ["--max-running-requests", "512"], {}),
    ],
)
def test_edges(rule, fires, words, options):
    assert (rule in fired(*words, **options)) is fires


@pytest.mark.parametrize(("limit", "fires"), [("511", False), ("512", True), ("9999", True)])
def test_scatter_at_its_edge(limit, fires):
    assert ("scatter" in fired("--max-running-requests", limit, env=CHECK)) is fires
    assert "scatter" not in fired("--max-running-requests", limit)


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (
            ["--chunked-prefill-size", "32768"],
            None,
            "kv-canary: forward_batch token count=32768 exceeds pre-allocated write_entry_capacity=16384; raise "
            "--chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args",
        ),
        (
            ["--chunked-prefill-size", "-1"],
            None,
            "kv-canary: forward_batch token count=131071 exceeds pre-allocated write_entry_capacity=16384; raise "
            "--chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args",
        ),
        (
            ["--chunked-prefill-size", "0"],
            None,
            "kv-canary: forward_batch token count=131071 exceeds pre-allocated write_entry_capacity=2048; raise "
            "--chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args",
        ),
        (
            ["--max-running-requests", "5000"],
            None,
            "kv-canary: offsets kernel bs must be in [0, 4096], got 5000",
        ),
        (
            ["--max-running-requests", "600"],
            CHECK,
            "kv-canary: scatter_req_token_ids bs+1=513 exceeds BATCH_BLOCK=512; bump _SCATTER_BATCH_BLOCK if real "
            "workloads need this",
        ),
    ],
    ids=["entry-chunk", "entry-unchunked", "chunk-zero", "req-plan", "scatter"],
)
def test_the_servers_own_words(words, env, message):
    result = audited(*words, env=env)
    assert [f.hit.server_message for f in result.findings if f.rule.severity == "error"] == [message]
    assert [row.server_message for row in result.capacities if row.status == "OVER"] == [message]


def test_ids_are_stable():
    assert [(rule.id, rule.code, rule.severity) for rule in RULES] == [
        ("spec-topk", "", "error"),
        ("spec-adaptive", "", "error"),
        ("spec-unsupported", "", "error"),
        ("spec-draft", "", "warning"),
        ("spec-tree", "", "warning"),
        ("req-plan", "C1", "error"),
        ("scatter", "C1", "error"),
        ("req-rounding", "C1", "error"),
        ("chunk-zero", "C2", "error"),
        ("entry-chunk", "C2", "error"),
        ("entry-unchunked", "C2", "error"),
        ("dynamic-chunking", "C2", "error"),
        ("entry-bucket", "C2", "warning"),
        ("entry-several", "C2", "warning"),
        ("pdmux", "", "error"),
        ("warmup-autotune", "C1", "error"),
        ("warmup-deepgemm", "", "error"),
        ("sweep-cache", "", "error"),
        ("prefill-piecewise", "", "error"),
        ("device-graph", "", "error"),
        ("prefill-cp", "", "warning"),
        ("dllm", "C2", "warning"),
        ("sweep-off", "", "error"),
        ("real-data-rows", "", "error"),
        ("input-oracle", "", "error"),
        ("perturb-group", "", "error"),
        ("perturb", "", "warning"),
        ("gemma-positions", "", "warning"),
        ("pool-class", "", "error"),
        ("layout-hnd", "C6", "error"),
        ("stage-window", "", "error"),
        ("layout-dcp", "C6", "warning"),
        ("layout-last-page", "C6", "info"),
        ("memory", "", "warning"),
        ("verify-share", "C4", "info"),
        ("need-requests", "C1", "error"),
        ("need-entries", "C2", "error"),
        ("need-verify", "C4", "error"),
        ("need-token-ids", "C1", "error"),
        ("log-differs", "", "warning"),
        ("pool-estimate", "", "warning"),
        ("log-ranks", "", "info"),
    ]
