"""The pools: what decides their size, pages, and the pool of a sliding window."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.capacity.setup import resolve
from kvcanary_cli.errors import KvCanaryError, UsageError
from tests.capacity.launches import setup, write_config


def refusal(*words: str, **options: str | None) -> KvCanaryError:
    with pytest.raises(KvCanaryError) as caught:
        setup(*words, **options)
    return caught.value


def test_the_pool_is_the_smaller_of_what_is_stated_and_the_cap():
    assert setup("--max-total-tokens", "300000").pool.tokens == 300_000
    assert setup("--max-total-tokens", "300000").pool.setting == "--max-total-tokens"
    assert setup("--max-total-tokens", "500000").pool.setting == "--pool-tokens"
    assert setup("--max-total-tokens", "300k", pool_tokens=None).pool.tokens == 300_000


def test_whole_pages():
    assert setup("--page-size", "64", pool_tokens="1000").pool.tokens == 960
    message = "`--pool-tokens` is 63, a pool needs at least 2 tokens and one whole page of 64"
    assert str(refusal("--page-size", "64", pool_tokens="63")) == message
    assert (
        str(refusal(pool_tokens="1"))
        == "`--pool-tokens` is 1, a pool needs at least 2 tokens and one whole page of 1"
    )


@pytest.mark.parametrize(
    ("words", "gpu", "page_size"),
    [
        ([], "H100", 1),
        ([], "B200", 64),
        (["--page-size", "32"], "B200", 32),
        (["--page-size", "1"], "B200", 64),
        (["--attention-backend", "triton"], "B200", 1),
        (["--attention-backend", "fa4"], "B200", 128),
        (["--attention-backend", "fa4"], "H100", 1),
        (["--attention-backend", "flashmla"], "H100", 64),
        (["--attention-backend", "trtllm_mla", "--page-size", "32"], "H100", 32),
        (["--attention-backend", "trtllm_mla", "--page-size", "16"], "H100", 64),
    ],
)
def test_page_size(words, gpu, page_size):
    assert setup(*words, gpu=gpu).pool.page_size == page_size


# Window


@pytest.mark.parametrize(
    ("config", "words", "swa_tokens"),
    [
        ("model: {window: 128}", [], 80_000),
        ("model: {window: 128, ratio: 0.5}", [], 50_000),
        ("model: {window: 128, ratio: 0.5}", ["--swa-full-tokens-ratio", "0.25"], 25_000),
        ("model: {window: 128}", ["--disable-hybrid-swa-memory"], None),
        ("model: {window: 128, architecture: Gemma3ForCausalLM}", [], None),
        ("model: {window: null}", [], None),
    ],
)
def test_window_pools(tmp_path, config, words, swa_tokens):
    path = write_config(tmp_path, f"pool: {{tokens: 100000, context_length: 4096}}\n{config}")
    found = resolve(make_request(config_path=path, command=["sglang", "serve", *words], gpu="H100"))
    assert (found.window.tokens, found.groups) == (swa_tokens, 1 if swa_tokens is None else 2)


CAPPED = ["--max-running-requests", "64", "--disable-radix-cache"]


def test_a_window_pool_that_follows_requests(tmp_path):
    text = "pool: {tokens: 100000, context_length: 4096}\nmodel: {window: 128}"
    path = write_config(tmp_path, text)
    # 64 requests of a window, a page and a step each, two chunks of 8,192 and a page
    found = resolve(make_request(config_path=path, command=CAPPED, gpu="H100"))
    assert found.window.tokens == 64 * (128 + 1 + 1) + 2 * 8192 + 1
    assert "estimate" in found.inputs["swa_tokens"].source
    stated = write_config(tmp_path, text.replace("context", "swa_tokens: 30000, context"))
    assert resolve(make_request(config_path=stated, command=CAPPED, gpu="H100")).window.tokens == 30_000


def test_drafts_and_pages_widen_a_window_pool_that_follows_requests(tmp_path):
    text = "pool: {tokens: 100000, context_length: 4096, page_size: 16}\nmodel: {window: 128}"
    words = [*CAPPED, "--speculative-algorithm", "STANDALONE"]
    found = resolve(make_request(config_path=write_config(tmp_path, text), command=words, gpu="H100"))
    assert found.window.tokens == 64 * (128 + 128 * 4 + 16 + 16) + 2 * 8192 + 16


@pytest.mark.parametrize(
    "command",
    [CAPPED[:2], CAPPED[2:], [*CAPPED, "--chunked-prefill-size", "-1"]],
    ids=["radix", "no-limit", "unchunked"],
)
def test_a_window_pool_follows_the_full_one_otherwise(tmp_path, command):
    path = write_config(tmp_path, "pool: {tokens: 100000, context_length: 4096}\nmodel: {window: 128}")
    assert resolve(make_request(config_path=path, command=command, gpu="H100")).window.tokens == 80_000


def test_a_window_pool_below_its_window(tmp_path):
    path = write_config(tmp_path, "pool: {tokens: 1000, context_length: 4096}\nmodel: {window: 1024}")
    with pytest.raises(
        UsageError, match="the sliding-window pool has 800 tokens, it needs more than the window 1,024"
    ):
        resolve(make_request(config_path=path, gpu="H100"))


def test_ratio_out_of_range(tmp_path):
    path = write_config(tmp_path, "pool: {tokens: 1000, context_length: 4096}\nmodel: {window: 128}")
    with pytest.raises(UsageError, match=r"`--swa-full-tokens-ratio` is 1\.5, it is above 0 and at most 1"):
        resolve(make_request(config_path=path, command=["--swa-full-tokens-ratio", "1.5"], gpu="H100"))


def test_published_models_bring_their_window_and_shape():
    found = setup("--model-path", "openai/gpt-oss-120b")
    assert (found.window.size, found.window.tokens, found.model.layers) == (128, 320_000, 36)
    assert found.inputs["model_window"].source == "model table: openai/gpt-oss-120b"
