"""Every fix that is printed makes the audit pass, and is as large or small as it says."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from kvcanary_cli.capacity.audit import Audit, audit
from kvcanary_cli.capacity.rules import errors
from kvcanary_cli.errors import KvCanaryError
from tests.capacity.launches import audited, request

CHECK = {"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"}
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


def texts(result: Audit) -> list[str]:
    """Fixes as they are printed."""
    return [" ".join(change.text for change in fix.changes) for fix in result.fixes]


def pasted(words: list[str], env: dict[str, str], fix: str, **options: str) -> Audit:
    """The audit of a launch with the text of a fix pasted to it by hand."""
    parts = shlex.split(fix)
    assignments = [part.partition("=") for part in parts if ASSIGNMENT.fullmatch(part)]
    flags = [part for part in parts if not ASSIGNMENT.fullmatch(part)]
    return audited(*words, *flags, env={**env, **{name: value for name, _, value in assignments}}, **options)


@pytest.mark.parametrize(
    ("words", "env", "options", "fixes"),
    [
        (
            ["--chunked-prefill-size", "32768"],
            {},
            {},
            ["--chunked-prefill-size 16384", "--max-prefill-tokens 32768"],
        ),
        (
            ["--chunked-prefill-size", "32768", "--page-size", "64", "--max-prefill-tokens", "5000"],
            {},
            {},
            ["--chunked-prefill-size 4992", "--max-prefill-tokens 32768"],
        ),
        (
            ["--tp", "8", "--attn-dp-size", "4", "--chunked-prefill-size", "80000"],
            {},
            {},
            ["--chunked-prefill-size 65536", "--max-prefill-tokens 20000"],
        ),
        (
            ["--chunked-prefill-size", "-1"],
            {},
            {"context_length": "40960"},
            ["--max-prefill-tokens 40959", "--chunked-prefill-size 16384"],
        ),
        (["--enable-mis"], {}, {"context_length": "40960"}, ["--max-prefill-tokens 40959"]),
        (["--chunked-prefill-size", "0"], {}, {}, ["--chunked-prefill-size 16384"]),
        (["--max-running-requests", "5000"], {}, {}, ["--max-running-requests 4096"]),
        (
            ["--tp", "8", "--attn-dp-size", "8", "--max-running-requests", "40000"],
            {},
            {},
            ["--max-running-requests 32768"],
        ),
        (["--cuda-graph-max-bs-decode", "5000"], {}, {}, ["--cuda-graph-max-bs-decode 4096"]),
        (["--cuda-graph-max-bs", "5000"], {}, {"version": "0.5.18"}, ["--cuda-graph-max-bs 4096"]),
        (["--cuda-graph-bs-decode", "1", "4000", "5000"], {}, {}, ["--cuda-graph-bs-decode 1 4000"]),
        (["--cuda-graph-bs-decode", "5000"], {}, {}, ["--cuda-graph-bs-decode 4096"]),
        (
            ["--cuda-graph-config", '{"decode":{"max_bs":5000,"backend":"full"},"prefill":{"max_bs":9}}'],
            {},
            {},
            ['--cuda-graph-config \'{"decode":{"max_bs":4096,"backend":"full"},"prefill":{"max_bs":9}}\''],
        ),
        (
            ["--max-running-requests", "5000", "--cuda-graph-max-bs-decode", "5000"],
            {},
            {},
            ["--max-running-requests 4096 --cuda-graph-max-bs-decode 4096"],
        ),
        (
            ["--max-running-requests", "512"],
            CHECK,
            {},
            ["--max-running-requests 511", "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=0"],
        ),
        (
            ["--chunked-prefill-size", "32768"],
            CHECK,
            {},
            [
                "--max-running-requests 511 --chunked-prefill-size 16384",
                "--max-running-requests 511 --max-prefill-tokens 32768",
                "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=0 --chunked-prefill-size 16384",
                "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=0 --max-prefill-tokens 32768",
            ],
        ),
        # fewer requests leave less room for the chunk, which then has to follow
        (
            ["--chunked-prefill-size", "2048", "--max-prefill-tokens", "600"],
            CHECK,
            {},
            [
                "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=0",
                "--max-running-requests 511 --chunked-prefill-size 600",
                "--max-running-requests 511 --max-prefill-tokens 2048",
            ],
        ),
        ([], {}, {}, []),
    ],
)
def test_fixes(words, env, options, fixes):
    assert texts(audited(*words, env=env, **options)) == fixes


@st.composite
def launches(draw: st.DrawFn) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """(flags, environment, options) of any launch that the server would read."""
    words: list[str] = []

    def maybe(flag: str, values: st.SearchStrategy[object]) -> None:
        value = draw(st.none() | values)
        if value is not None:
            words.extend([flag, str(value)])

    page = draw(st.sampled_from([1, 1, 16, 64]))
    words.extend(["--page-size", str(page)])
    attn_dp = draw(st.sampled_from([1, 1, 2, 8]))
    words.extend(["--tp", "8", "--attn-dp-size", str(attn_dp)])
    step = page * attn_dp
    chunks = st.sampled_from([-1, 0, attn_dp - 1]) | st.integers(1, 1024).map(lambda k: k * step)
    maybe("--chunked-prefill-size", chunks)
    maybe("--max-prefill-tokens", st.integers(1, 100_000))
    maybe("--max-running-requests", st.integers(1, 8000) | st.sampled_from([511, 512, 4096, 40_000]))
    maybe("--cuda-graph-max-bs-decode", st.integers(0, 6000))
    maybe("--speculative-num-draft-tokens", st.integers(1, 16))
    if draw(st.booleans()):
        words.extend(["--speculative-algorithm", draw(st.sampled_from(["NGRAM", "STANDALONE"]))])
        words = [w for i, w in enumerate(words) if not {w, words[i - 1]} & {"--speculative-num-draft-tokens"}]
    for switch in ("--disable-radix-cache", "--disable-cuda-graph", "--enable-mis"):
        if draw(st.sampled_from([False, False, True])):
            words.append(switch)
    options = {
        "pool_tokens": str(draw(st.integers(1000, 2_000_000))),
        "context_length": str(draw(st.sampled_from([2048, 16_385, 16_386, 40_960, 131_072, 1_048_576]))),
        "gpu": draw(st.sampled_from(["T4", "A10", "L40S", "H100", "H200", "B200"])),
    }
    return words, CHECK if draw(st.booleans()) else {}, options


def with_last(words: list[str], flag: str, value: int) -> list[str]:
    return [*words, flag, str(value)]


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(launches())
def test_every_fix_passes_and_says_how_far_it_goes(launch):
    words, env, options = launch
    try:
        result = audit(request(*words, env=env, **options))
    except KvCanaryError:
        assume(False)
    failing = errors(result.findings)
    event(f"rules: {sorted(finding.rule.id for finding in failing)}")
    # whatever fails can be mended
    assert bool(result.fixes) == bool(failing)
    for fix, text in zip(result.fixes, texts(result), strict=True):
        assert errors(pasted(words, env, text, **options).findings) == []
        if len(fix.changes) > 1:
            continue
        change = fix.changes[0]
        step = re.search(r"multiple of ([\d,]+)", change.note)
        distance = int(step[1].replace(",", "")) if step else 1
        if change.note.startswith("largest"):
            beyond = with_last(words, change.flag, int(change.value) + distance)
            assert errors(audited(*beyond, env=env, **options).findings) != []
        elif change.note.startswith("smallest"):
            below = with_last(words, change.flag, int(change.value) - 1)
            assert errors(audited(*below, env=env, **options).findings) != []
