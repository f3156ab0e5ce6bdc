"""What is advised for a message makes the launch pass that would log it, by the audit's own rules."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kvcanary_cli.explain.advice import advise
from kvcanary_cli.explain.families import read
from tests.capacity.launches import audited

CHECK = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"
AUTOTUNE = "SGLANG_FLASHINFER_AUTOTUNE_EXTEND"


class Launch(NamedTuple):
    """Flags whose launch logs a message, the rule that says so, and which of the changes mend it."""

    rule: str
    flags: str
    changes: list[str]
    env: dict[str, str] = {}  # noqa: RUF012
    version: str = "0.5.23"


LAUNCHES = {
    "a large chunk": Launch(
        "entry-chunk",
        "--chunked-prefill-size 32768",
        ["--chunked-prefill-size 16384", "--max-prefill-tokens 32768"],
    ),
    "whole prompts": Launch(
        "entry-unchunked",
        "--chunked-prefill-size -1",
        ["--chunked-prefill-size 16384", "--max-prefill-tokens 131071"],
    ),
    "a chunk of 0": Launch("chunk-zero", "--chunked-prefill-size 0", ["--chunked-prefill-size 2048"]),
    "a padded prefill": Launch(
        "entry-bucket",
        "--chunked-prefill-size 9000 --cuda-graph-max-bs-prefill 9216",
        ["--cuda-graph-max-bs-prefill 9000"],
    ),
    "many requests": Launch("req-plan", "--max-running-requests 5000", ["--max-running-requests 4096"]),
    "a large graph": Launch(
        "req-plan", "--cuda-graph-max-bs-decode 5000", ["--cuda-graph-max-bs-decode 4096"]
    ),
    "the token check": Launch(
        "scatter", "--max-running-requests 600", ["--max-running-requests 511", f"{CHECK}=0"], {CHECK: "1"}
    ),
    "padded requests": Launch(
        "req-rounding",
        "--tp 4 --max-running-requests 1001",
        ["--cuda-graph-max-bs-decode 1004", "--max-running-requests 1000"],
    ),
    "padded requests of an old release": Launch(
        "req-rounding",
        "--tp 4 --max-running-requests 1001",
        ["--cuda-graph-max-bs 1004", "--max-running-requests 1000"],
        version="0.5.18",
    ),
    "a warm-up": Launch(
        "warmup-autotune",
        "--chunked-prefill-size 4096",
        ["--cuda-graph-max-bs-decode 4096", f"{AUTOTUNE}=0"],
        {AUTOTUNE: "1"},
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_change_that_is_advised_works(name):
    launch = LAUNCHES[name]
    broken = audited(*launch.flags.split(), env=launch.env, version=launch.version)
    (text,) = [f.hit.server_message for f in broken.findings if f.rule.id == launch.rule]
    assert text is not None
    message = read(text.removeprefix("kv-canary: "))
    assert message is not None
    advised = [change for change, _ in advise(message).changes]
    assert set(launch.changes) <= set(advised)
    for change in launch.changes:
        if change.startswith("--"):
            flags, env = f"{launch.flags} {change}", launch.env
        else:
            flags, env = launch.flags, {**launch.env, change.partition("=")[0]: change.partition("=")[2]}
        mended = audited(*flags.split(), env=env, version=launch.version)
        assert launch.rule not in {finding.rule.id for finding in mended.findings}
        assert [finding.rule.id for finding in mended.findings if finding.rule.severity == "error"] == []
