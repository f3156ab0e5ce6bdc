"""Draft tokens: given shapes, default shapes, and what the server refuses together."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.capacity.setup import MissingInputsError, resolve
from kvcanary_cli.errors import UsageError
from tests.capacity.launches import setup, sizes, write_config

STEPS, TOPK, DRAFT = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"


def speculation(*words: str):
    found = setup(*words).speculation
    return found.algorithm, found.steps, found.topk, found.draft_tokens, found.runners


def using(algorithm: str, *words: str) -> list[str]:
    return ["--speculative-algorithm", algorithm, *words]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (None, None, None, 1, 1)),
        ([DRAFT, "4"], (None, None, None, 4, 1)),
        ([DRAFT, "-2"], (None, None, None, 1, 1)),
        (using("EAGLE", STEPS, "3", TOPK, "1"), ("EAGLE", 3, 1, 4, 2)),
        (using("EAGLE", STEPS, "3", TOPK, "1", DRAFT, "9"), ("EAGLE", 3, 1, 4, 2)),
        (using("EAGLE3", STEPS, "5", TOPK, "4", DRAFT, "8"), ("EAGLE3", 5, 4, 8, 2)),
        (using("NEXTN", STEPS, "2", TOPK, "1", DRAFT, "3"), ("EAGLE", 2, 1, 3, 2)),
        (using("STANDALONE"), ("STANDALONE", 3, 1, 4, 2)),
        (using("NGRAM"), ("NGRAM", 1, 10, 12, 1)),
        (using("NGRAM", DRAFT, "6"), ("NGRAM", 1, 10, 6, 1)),
        (using("DFLASH", DRAFT, "16"), ("DFLASH", 1, 1, 16, 2)),
        (using("EAGLE", "--model-path", "meta-llama/Llama-3.1-8B"), ("EAGLE", 5, 4, 8, 2)),
        (using("EAGLE3", "--model-path", "Qwen/Qwen3-8B"), ("EAGLE3", 3, 1, 4, 2)),
        (using("STANDALONE", "--model-path", "meta-llama/Llama-3.1-8B"), ("STANDALONE", 3, 1, 4, 2)),
    ],
)
def test_shapes(words, expected):
    assert speculation(*words) == expected


@pytest.mark.parametrize(("architecture", "draft"), [("Grok1ModelForCausalLM", 8), ("Qwen2ForCausalLM", 4)])
def test_the_default_shape_follows_the_architecture_of_the_config(tmp_path, architecture, draft):
    path = write_config(tmp_path, f"model: {{architecture: {architecture}}}")
    request = make_request(
        config_path=path, command=using("EAGLE"), pool_tokens="400k", context_length="4096", gpu="H100"
    )
    assert resolve(request).speculation.draft_tokens == draft


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            using("EAGEL"),
            "`--speculative-algorithm` takes EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM, DFLASH, DSPARK, UNO, "
            "FROZEN_KV_MTP, found `EAGEL`",
        ),
        (
            using("EAGLE", TOPK, "1"),
            f"`{TOPK}` is given without `{STEPS}`, the server takes all three or none",
        ),
        (
            using("EAGLE", DRAFT, "4"),
            f"`{DRAFT}` is given without `{STEPS}`, the server takes all three or none",
        ),
        (using("EAGLE", STEPS, "3"), f"`{STEPS}` is given without `{TOPK}`"),
        (
            using("EAGLE", STEPS, "3", TOPK, "4"),
            f"`{TOPK}` is 4 and `{DRAFT}` is not given, only topk 1 makes it follow from the steps",
        ),
        (using("EAGLE", STEPS, "0", TOPK, "1"), f"`{STEPS}` is 0, it must be at least 1"),
        (using("NGRAM", DRAFT, "0"), f"`{DRAFT}` is 0, it must be at least 1"),
    ],
)
def test_refused(words, message):
    with pytest.raises(UsageError) as caught:
        setup(*words)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("algorithm", "what"), [("EAGLE", "the draft's shape"), ("DSPARK", "the draft tokens of DSPARK")]
)
def test_what_depends_on_the_model_is_not_guessed(algorithm, what):
    with pytest.raises(MissingInputsError, match=what):
        setup(*using(algorithm))


def test_drafts_multiply_the_requests_of_a_step():
    # 48 requests run, the largest graph decides, each with 12 tokens
    found = sizes(*using("NGRAM"), "--chunked-prefill-size", "1024")
    assert (found.running.requests, found.write_req, found.write_entry) == (48, 256, 256 * 12)
    assert (found.running_by, found.write_req_by) == ("--speculative-algorithm", "--cuda-graph-max-bs-decode")
    assert found.write_entry_by == "--cuda-graph-max-bs-decode"


def test_a_limit_that_is_given_wins_over_that_of_speculation():
    assert sizes(*using("NGRAM"), "--max-running-requests", "100").running.requests == 100
