"""`kvcanary replay --chain`: what it says of the chain, and that hints repeat it."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import TraceWriter
from tests.cli import call
from tests.replay.driving import insert, one_request, slots, small_header


@pytest.fixture
def damaged(tmp_path):
    path = tmp_path / "bad.jsonl"
    with TraceWriter(str(path), small_header()) as writer:
        for event in insert(one_request(), 2, ev.Kv(op="flip", slots=slots(10), byte=0, xor=1)):
            writer.write(event)
    return str(path)


@pytest.mark.parametrize("verify", ["full", "incremental"])
def test_a_report_names_the_chain_that_is_not_the_servers(verify, capsys, damaged):
    argv = ["replay", damaged, "--device", "cpu", "--verify", verify]
    mixed, affine = (call(capsys, *argv, "--chain", chain).out for chain in ("mixed", "affine"))
    assert "chain affine, whose hashes are not those of a server" in " ".join(affine.split())
    assert "affine" not in mixed
    assert f"kvcanary replay {damaged} --chain affine --incident 1" in affine
    assert affine.splitlines()[-1] == mixed.splitlines()[-1]


def test_json_has_the_chain(capsys, damaged):
    argv = ["replay", damaged, "--device", "cpu", "--format", "json"]
    reports = [json.loads(call(capsys, *argv, *more).out) for more in ([], ["--chain", "affine"])]
    assert [report["inputs"]["chain"] for report in reports] == ["mixed", "affine"]
    assert reports[0]["summary"] == reports[1]["summary"]


def test_another_word_is_refused(capsys, damaged):
    done = call(capsys, "replay", damaged, "--chain", "serial")
    assert done.code == 2
    assert "`--chain` is 'serial', known are mixed, affine" in done.err
