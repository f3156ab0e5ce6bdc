"""Sizes of the prefill graph: which flag decides them, what a prefill is padded to, how a fix shrinks them."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.capacity.prefill_graph import PrefillGraph
from kvcanary_cli.errors import KvCanaryError
from tests.capacity.launches import audited, setup, write_config


def test_padding_by_hand():
    graph = PrefillGraph((4, 8, 16), "breakable", "x")
    assert [graph.padded(tokens) for tokens in (1, 4, 5, 16, 17)] == [4, 4, 8, 16, 17]
    assert [graph.most_padded(tokens) for tokens in (1, 9, 16, 17, 99)] == [4, 16, 16, 17, 99]
    off = PrefillGraph((4, 8), "disabled", "x")
    assert off.most_padded(3) == 3


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ([], 8192),
        (["--chunked-prefill-size", "2048"], 2048),
        (["--chunked-prefill-size", "20000"], 19_968),
        (["--max-total-tokens", "5000"], 4608),
        (["--tp", "2", "--attn-dp-size", "2"], 4096),
        (["--cuda-graph-max-bs-prefill", "300"], 288),
        (["--cuda-graph-bs-prefill", "7", "5"], 7),
        (["--cuda-graph-config", '{"prefill":{"max_bs":100}}', "--cuda-graph-max-bs-prefill", "300"], 96),
        (["--cuda-graph-config", '{"prefill":{"bs":[3,1]}}', "--cuda-graph-bs-prefill", "7"], 3),
        (["--chunked-prefill-size", "20000", "--model-path", "deepseek-ai/DeepSeek-V3"], 8192),
    ],
)
def test_the_largest_size(words, last):
    assert setup(*words).prefill_graph.sizes[-1] == last


@pytest.mark.parametrize(
    ("words", "is_on"),
    [
        ([], True),
        (["--disable-prefill-cuda-graph"], False),
        (["--disable-cuda-graph"], False),
        (["--disable-decode-cuda-graph"], True),
        (["--pp-size", "2"], False),
        (["--device", "xpu"], False),
        (["--device", "cuda:0"], True),
        (["--disaggregation-mode", "decode"], False),
        (["--disaggregation-mode", "prefill"], True),
        (["--model-path", "google/gemma-3-27b-it"], False),
        (["--cuda-graph-backend-prefill", "full", "--disable-cuda-graph"], True),
        (["--cuda-graph-backend-prefill", "disabled"], False),
        (
            [
                "--cuda-graph-config",
                '{"prefill":{"backend":"disabled"}}',
                "--cuda-graph-backend-prefill",
                "full",
            ],
            False,
        ),
        (["--chunked-prefill-size", "-1"], False),
    ],
)
def test_whether_there_is_one(words, is_on):
    assert setup(*words).prefill_graph.is_on is is_on


def fixes(*words: str) -> list[str]:
    return [" ".join(change.text for change in fix.changes) for fix in audited(*words).fixes]


def test_fixes_of_padding_name_the_flag_that_decides():
    chunk = ["--chunked-prefill-size", "9000"]
    assert fixes(*chunk, "--cuda-graph-max-bs-prefill", "9216") == [
        "--cuda-graph-max-bs-prefill 8704",
        "--cuda-graph-backend-prefill disabled",
    ]
    assert fixes(*chunk, "--cuda-graph-bs-prefill", "64", "9216") == [
        "--cuda-graph-bs-prefill 64",
        "--cuda-graph-backend-prefill disabled",
    ]
    config = {"prefill": {"backend": "breakable", "max_bs": 9216}, "decode": {"max_bs": 9}}
    found = fixes(*chunk, "--cuda-graph-config", json.dumps(config))
    assert found == [
        '--cuda-graph-config \'{"prefill":{"backend":"breakable","max_bs":8704},"decode":{"max_bs":9}}\'',
        '--cuda-graph-config \'{"prefill":{"backend":"disabled","max_bs":9216},"decode":{"max_bs":9}}\'',
    ]
    listed = fixes(*chunk, "--cuda-graph-config", '{"prefill":{"bs":[64,9216]}}')
    assert listed[0] == '--cuda-graph-config \'{"prefill":{"max_bs":64}}\''


def hit(rule: str, *words: str, **options: str):
    return next((f.hit for f in audited(*words, **options).findings if f.rule.id == rule), None)


def test_dynamic_chunks_at_their_edge():
    words = ["--pp-size", "2", "--enable-dynamic-chunking", "--chunked-prefill-size"]
    # 2,048 entries by the requests: 5/4 x 1,639 is 2,048, one more passes them
    edge = hit("dynamic-chunking", *words, "1639", "--max-prefill-tokens", "4096")
    assert (edge.when, edge.need) == ("at the first long prompt", 4096)
    beyond = hit("dynamic-chunking", *words, "1640", "--max-prefill-tokens", "4096")
    assert (beyond.when, beyond.value) == ("at start-up", 2048)
    assert "profiling at 2,050 tokens" in beyond.text


def test_a_budget_alone_can_mend_padding():
    words = ["--max-prefill-tokens", "10000", "--chunked-prefill-size", "10240"]
    assert "--max-prefill-tokens 10240" in fixes(*words)


def test_context_parallel_prefill_without_a_breakable_graph():
    assert hit("prefill-cp", "--enable-prefill-cp") is not None
    assert hit("prefill-cp", "--enable-prefill-cp", "--cuda-graph-backend-prefill", "full") is None
    assert (
        hit("prefill-cp", "--enable-prefill-cp", "--chunked-prefill-size", "-1", context_length="4096")
        is None
    )
    # older releases do not wrap it at all
    words = ["--enable-prefill-cp", "--disable-prefill-cuda-graph"]
    assert hit("prefill-cp", *words, version="0.5.20") is not None


def test_memory_that_the_resize_takes_out_of_the_pool(tmp_path):
    words = ["--mem-fraction-static", "0.9992"]
    env = {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}
    found = [
        {f.rule.id for f in audited(*words, env=env if on else {}, version=release).findings} >= {"memory"}
        for on, release in [(False, "0.5.23"), (True, "0.5.23"), (True, "0.5.18")]
    ]
    assert found == [True, False, True]
    path = write_config(tmp_path, "model: {latent_dim: 576}")
    result = audited(*words, env=env, config_path=path)
    assert "memory" in {f.rule.id for f in result.findings}


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (["--piecewise-cuda-graph-max-tokens", "1000"], 960),
        (["--piecewise-cuda-graph-tokens", "10", "20"], 20),
    ],
)
def test_older_releases_call_it_piecewise(words, last):
    assert setup(*words, version="0.5.18").prefill_graph.sizes[-1] == last
    newer = setup(*words)
    assert newer.unknown_flags == (words[0],)


def test_the_piecewise_backend_of_older_releases():
    words = ["--cuda-graph-backend-prefill", "tc_piecewise"]
    assert hit("prefill-piecewise", *words, version="0.5.16").when == "at start-up"
    with pytest.raises(KvCanaryError, match="takes full, breakable, disabled, found `tc_piecewise`"):
        setup(*words)
