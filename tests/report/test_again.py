"""Commands to paste repeat the run that they are about, in any folder and for any file name."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from kvcanary_cli.report.again import again, shell_word

USUAL = {
    "trace": {"path": "t.jsonl"},
    "hash": "all",
    "chain": "mixed",
    "sweep_interval": 0,
    "seed": 0,
    "ring": None,
    "input_format": None,
    "block_size": None,
    "limit_steps": None,
    "limit_requests": None,
    "capacities": None,
    "skip_bad_lines": False,
    "stop_on_violation": False,
}


def test_nothing_is_said_twice():
    assert again(USUAL) == "kvcanary replay t.jsonl"
    assert again(USUAL, "--incident", "3") == "kvcanary replay t.jsonl --incident 3"


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({"hash": "partial"}, "--hash partial"),
        ({"chain": "affine"}, "--chain affine"),
        ({"sweep_interval": 5}, "--sweep-interval 5"),
        ({"seed": 7}, "--seed 7"),
        ({"ring": 9}, "--ring 9"),
        ({"input_format": "mooncake"}, "--input-format mooncake"),
        ({"block_size": 16}, "--block-size 16"),
        ({"limit_steps": 4}, "--limit-steps 4"),
        ({"limit_requests": 2}, "--limit-requests 2"),
        ({"capacities": "my limits.yaml"}, "--capacities 'my limits.yaml'"),
        ({"skip_bad_lines": True}, "--skip-bad-lines"),
        ({"stop_on_violation": True}, "--stop-on-violation"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_decides_the_findings_is_repeated(change, flags):
    assert again(USUAL | change, "--slots") == f"kvcanary replay t.jsonl {flags} --slots"


@pytest.mark.parametrize(
    "name", ["t.jsonl", "my t.jsonl", "it's.jsonl", "$HOME;ls", "caf\u00e9 'x' \\.jsonl", "a\nb"]
)
def test_a_shell_reads_the_name_back(name):
    word = shell_word(name)
    assert word.isascii()
    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout.decode() == name


def test_plain_names_stay_plain():
    assert shell_word("a/b-1.jsonl.gz") == "a/b-1.jsonl.gz"
    assert shlex.split(again(USUAL | {"trace": {"path": "my t.jsonl"}}))[2] == "my t.jsonl"
