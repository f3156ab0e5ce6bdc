"""Fixes of settings that the canary does not work with, word for word, the least intrusive first."""

from __future__ import annotations

import pytest

from tests.capacity.launches import audited, write_config

EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
SWEEP = ["--kv-canary", "log", "--kv-canary-sweep-interval", "9"]
AUTOTUNE = {"SGLANG_FLASHINFER_AUTOTUNE_EXTEND": "1"}


@pytest.mark.parametrize(
    ("words", "env", "fixes"),
    [
        (["--speculative-algorithm", "FROZEN_KV_MTP"], {}, ["without --speculative-algorithm"]),
        ([*EAGLE, "--enable-multi-layer-eagle"], {}, ["without --enable-multi-layer-eagle"]),
        ([*EAGLE, "--speculative-adaptive"], {}, ["without --speculative-adaptive"]),
        (
            ["--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "8"],
            {},
            ["without --speculative-algorithm"],
        ),
        (
            ["--speculative-algorithm", "NGRAM"],
            {},
            ["--speculative-ngram-max-bfs-breadth 1", "without --speculative-algorithm"],
        ),
        (
            ["--model-path", "meta-llama/Llama-3.1-8B", "--speculative-algorithm", "EAGLE"],
            {},
            ["--speculative-num-steps 5 --speculative-eagle-topk 1"],
        ),
        (["--enable-pdmux"], {}, ["without --enable-pdmux"]),
        # the server's parser takes a unique prefix, and so does the fix
        (["--enable-pdm"], {}, ["without --enable-pdm"]),
        (
            [],
            AUTOTUNE,
            ["SGLANG_FLASHINFER_AUTOTUNE_EXTEND=0", "--chunked-prefill-size 2048"],
        ),
        (
            ["--page-size", "100", "--chunked-prefill-size", "3000"],
            AUTOTUNE,
            ["SGLANG_FLASHINFER_AUTOTUNE_EXTEND=0", "--chunked-prefill-size 2000"],
        ),
        ([], {"SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP": "1"}, ["SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP=0"]),
        (
            ["--pp-size", "2", "--enable-dynamic-chunking"],
            {},
            [
                "without --enable-dynamic-chunking",
                "--chunked-prefill-size 1638 --max-prefill-tokens 2048",
            ],
        ),
        ([*SWEEP, "--enable-lmcache"], {}, ["--kv-canary-sweep-interval 0", "without --enable-lmcache"]),
        (["--kv-canary-sweep-interval", "9"], {}, ["--kv-canary log", "--kv-canary-sweep-interval 0"]),
        (["--kv-cache-dtype", "mxfp8"], {}, ["--kv-cache-dtype fp8_e4m3"]),
        (["--enable-unified-memory"], {}, ["without --enable-unified-memory"]),
        (["--dcp-size", "2"], {}, ["--dcp-size 1"]),
        (["--page-size", "16"], {"SGLANG_USE_HND_KVCACHE": "1"}, ["SGLANG_USE_HND_KVCACHE=0"]),
        (["--device", "xpu"], {}, ["--cuda-graph-backend-decode disabled"]),
        (
            ["--enable-prefill-cp"],
            {},
            ["without --enable-prefill-cp", "--cuda-graph-backend-prefill disabled"],
        ),
        (["--dllm-algorithm", "x"], {}, ["without --dllm-algorithm"]),
        (["--model-path", "deepseek-ai/DeepSeek-V3"], {}, ["--kv-canary none"]),
        (
            ["--model-path", "deepseek-ai/DeepSeek-V3", *SWEEP],
            {},
            ["--kv-canary none --kv-canary-sweep-interval 0"],
        ),
        (["--mem-fraction-static", "0.9999"], {}, ["--mem-fraction-static 0.998"]),
        (
            [],
            {"SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT": "1"},
            ["SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT=0", "SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE=1"],
        ),
        (
            ["--enable-pdmux", "--enable-unified-memory"],
            {},
            ["without --enable-pdmux without --enable-unified-memory"],
        ),
    ],
)
def test_fixes_of_settings(words, env, fixes):
    found = audited(*words, env=env).fixes
    assert [" ".join(change.text for change in fix.changes) for fix in found] == fixes


def test_a_forced_whole_prompt_has_no_chunk_to_change(tmp_path):
    path = write_config(tmp_path, "model: {architecture: CLIPModel}")
    found = audited(config_path=path, env=AUTOTUNE).fixes
    assert [fix.changes[0].flag for fix in found] == ["--max-prefill-tokens"]
