"""Every fix that is printed makes the audit pass, and is as large or small as it says."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from kvcanary_cli.capacity.audit import Audit, audit
from kvcanary_cli.capacity.rules import errors, of_severity
from kvcanary_cli.errors import KvCanaryError
from tests.capacity.launches import audited, request

CHECK = {"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"}
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


def texts(result: Audit) -> list[str]:
    """Fixes as they are printed."""
    return [" ".join(change.text for change in fix.changes) for fix in result.fixes]


def pasted(words: list[str], env: dict[str, str], fix: str, **options: str) -> Audit:
    """The audit of a launch with the text of a fix pasted to it by hand."""
    for gone in re.findall(r"without (--[a-z0-9-]+)", fix):
        at = words.index(gone)
        width = 1 if at + 1 == len(words) or words[at + 1].startswith("--") else 2
        words = [*words[:at], *words[at + width :]]
    parts = shlex.split(re.sub(r"without --[a-z0-9-]+", "", fix))
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


FEATURES = (
    ("--speculative-adaptive",),
    ("--enable-multi-layer-eagle",),
    ("--enable-pdmux",),
    ("--enable-dynamic-chunking",),
    ("--pp-size", "2"),
    ("--enable-prefill-cp",),
    ("--dllm-algorithm", "LowConfidence"),
    ("--kv-cache-dtype", "mxfp8"),
    ("--enable-unified-memory",),
    ("--dcp-size", "2"),
    ("--enable-lmcache",),
    ("--kv-canary-sweep-interval", "100"),
    ("--kv-canary", "log"),
    ("--model-path", "deepseek-ai/DeepSeek-V3"),
    ("--device", "xpu"),
    ("--mem-fraction-static", "0.999"),
)
VARIABLES = (
    *CHECK.items(),
    ("SGLANG_FLASHINFER_AUTOTUNE_EXTEND", "1"),
    ("SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP", "1"),
    ("SGLANG_USE_HND_KVCACHE", "1"),
    ("SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT", "1"),
    ("SGLANG_KV_CANARY_PERTURB_REAL_KV_USED_PROB", "0.5"),
)


def flat(groups: list[tuple[str, ...]]) -> list[str]:
    return [word for group in groups for word in group]


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
    words.extend(draw(st.lists(st.sampled_from(FEATURES), max_size=2, unique=True).map(flat)))
    maybe("--cuda-graph-max-bs-prefill", st.integers(1, 40_000))
    options = {
        "pool_tokens": str(draw(st.integers(1000, 2_000_000))),
        "context_length": str(draw(st.sampled_from([2048, 16_385, 16_386, 40_960, 131_072, 1_048_576]))),
        "gpu": draw(st.sampled_from(["T4", "A10", "L40S", "H100", "H200", "B200"])),
    }
    env = dict(draw(st.lists(st.sampled_from(VARIABLES), max_size=2, unique=True)))
    return words, env, options


def with_last(words: list[str], flag: str, value: int | str) -> list[str]:
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
    goal = ("error",) if failing else ("error", "warning")
    wanted = of_severity(result.findings, *goal)
    event(f"rules: {sorted(finding.rule.id for finding in wanted)}")
    # whatever fails can be mended
    if failing or {finding.rule.id for finding in wanted} != {"memory"}:
        assert bool(result.fixes) == bool(wanted)
    for fix, text in zip(result.fixes, texts(result), strict=True):
        assert of_severity(pasted(words, env, text, **options).findings, *goal) == []
        if len(fix.changes) > 1:
            for number in range(len(fix.changes)):
                fewer = [change.text for at, change in enumerate(fix.changes) if at != number]
                assert still_fails(words, env, " ".join(fewer), options, goal)
            continue
        check_distance(words, env, options, fix.changes[0], goal)


def still_fails(words, env, fix, options, goal) -> bool:
    """Whether part of a fix is not enough."""
    try:
        return bool(of_severity(pasted(words, env, fix, **options).findings, *goal))
    except KvCanaryError:
        return True


def check_distance(words, env, options, change, goal) -> None:
    """The next value beyond `largest` and below `smallest` fails."""
    step = re.search(r"multiple of ([\d,]+)", change.note)
    distance = int(step[1].replace(",", "")) if step else 1
    if change.note.startswith("largest that works, to"):
        beyond = with_last(words, change.flag, f"{float(change.value) + 0.001:.3f}")
    elif change.note.startswith("largest"):
        beyond = with_last(words, change.flag, int(change.value) + distance)
    elif change.note.startswith("smallest"):
        beyond = with_last(words, change.flag, int(change.value) - 1)
    else:
        return
    assert of_severity(audited(*beyond, env=env, **options).findings, *goal) != []
