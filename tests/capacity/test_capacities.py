"""Rows of the report: status, need, what bounds them, and the text under them."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.capacities import Capacity
from tests.capacity.launches import audited

CHECK = {"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"}


def row(name: str, *words: str, env: dict[str, str] | None = None, **options: str | None) -> Capacity:
    return next(row for row in audited(*words, env=env, **options).capacities if row.name == name)


def test_rows_and_their_order():
    names = ["verify entries", "write requests", "write entries", "plan batch"]
    assert [row.name for row in audited().capacities] == names
    assert [row.name for row in audited(env=CHECK).capacities] == [*names, "token-id batch"]


def test_verify_entries_overflow_by_sharing():
    found = row("verify entries", pool_tokens="425984", context_length="131072")
    assert (found.status, found.value, found.need, found.bound_by) == (
        "INFO",
        1_277_952,
        None,
        "--pool-tokens",
    )
    assert found.worked == "3 x pool tokens = 3 x 425,984"
    assert found.remark == "overflows from 160 requests that share 8,000 tokens each"
    assert 159 * 8000 <= found.value < 160 * 8000


def test_few_requests_overflow_only_with_a_longer_prefix():
    found = row("verify entries", "--max-running-requests", "20", pool_tokens="100000")
    assert found.remark == "overflows from 20 requests that share 15,001 tokens each"
    assert 20 * 15_000 <= found.value < 20 * 15_001


def test_a_short_context_bounds_the_example():
    assert (
        row("verify entries", context_length="4096").remark
        == "overflows from 293 requests that share 4,096 tokens each"
    )


@pytest.mark.parametrize(
    ("words", "need"), [(["--disable-radix-cache"], 400_000), (["--max-running-requests", "9"], 9 * 131_072)]
)
def test_verify_entries_that_cannot_overflow(words, need):
    found = row("verify entries", *words)
    assert (found.status, found.need, found.is_exact) == ("OK", need, True)


@pytest.mark.parametrize(
    ("words", "options", "value", "need", "bound_by"),
    [
        (["--max-running-requests", "512"], {}, 512, 512, "--max-running-requests"),
        (["--max-running-requests", "256"], {}, 256, 256, "--max-running-requests"),
        (
            ["--max-running-requests", "300", "--cuda-graph-max-bs-decode", "400"],
            {},
            400,
            300,
            "--cuda-graph-max-bs-decode",
        ),
        ([], {}, 2048, 2048, "built in"),
        ([], {"pool_tokens": "1000k"}, 3906, 3906, "--context-length"),
        ([], {"pool_tokens": "2000"}, 1000, 1000, "--pool-tokens"),
        (
            ["--speculative-algorithm", "NGRAM", "--cuda-graph-max-bs-decode", "8"],
            {},
            48,
            48,
            "--speculative-algorithm",
        ),
    ],
)
def test_write_requests(words, options, value, need, bound_by):
    found = row("write requests", *words, **options)
    assert (found.status, found.value, found.need, found.bound_by) == ("OK", value, need, bound_by)
    assert found.is_exact


@pytest.mark.parametrize(
    ("words", "status", "value", "need", "is_exact", "bound_by"),
    [
        ([], "OK", 8192, 8192, True, "--chunked-prefill-size"),
        (["--chunked-prefill-size", "16384"], "OK", 16_384, 16_384, True, "--chunked-prefill-size"),
        (["--chunked-prefill-size", "32768"], "OVER", 16_384, 32_768, False, "--max-prefill-tokens"),
        (["--chunked-prefill-size", "1024"], "OK", 2048, 2048, True, "built in"),
        (["--chunked-prefill-size", "-1"], "OVER", 16_384, 131_071, False, "--max-prefill-tokens"),
        (
            ["--chunked-prefill-size", "-1", "--max-prefill-tokens", "131071"],
            "TIGHT",
            131_071,
            131_071,
            False,
            "--max-prefill-tokens",
        ),
        (
            ["--chunked-prefill-size", "-1", "--max-prefill-tokens", "163838"],
            "TIGHT",
            163_838,
            131_071,
            False,
            "--max-prefill-tokens",
        ),
        (
            ["--chunked-prefill-size", "-1", "--max-prefill-tokens", "163839"],
            "OK",
            163_839,
            131_071,
            False,
            "--max-prefill-tokens",
        ),
        (["--chunked-prefill-size", "0"], "OVER", 2048, 131_071, False, "built in"),
    ],
)
def test_write_entries(words, status, value, need, is_exact, bound_by):
    found = row("write entries", *words)
    assert (found.status, found.value, found.need, found.is_exact) == (status, value, need, is_exact)
    assert found.bound_by == bound_by


@pytest.mark.parametrize(
    ("words", "worked"),
    [
        (
            ["--max-running-requests", "512", "--speculative-num-draft-tokens", "4"],
            "max(512 x 4 draft tokens, min(max prefill 16,384, chunk 8,192))",
        ),
        ([], "max(2,048 x 1 token, min(max prefill 16,384, chunk 8,192))"),
        (["--chunked-prefill-size", "-1"], "max(2,048 x 1 token, max prefill 16,384)"),
        (["--chunked-prefill-size", "0"], "max(2,048 x 1 token, chunk 0)"),
    ],
)
def test_write_entries_worked(words, worked):
    assert row("write entries", *words).worked == worked


def test_plan_batch():
    found = row("plan batch", "--max-running-requests", "5000")
    assert (found.status, found.value, found.need, found.rule) == ("OVER", 4096, 5000, "req-plan")


def test_token_id_batch():
    found = row("token-id batch", "--max-running-requests", "512", env=CHECK)
    assert (found.status, found.value, found.need, found.bound_by) == ("OVER", 511, 512, "built in")
    assert row("token-id batch", "--max-running-requests", "511", env=CHECK).status == "OK"
