"""Every command's JSON against the schema in the docs, on the ways out that a user meets."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.cli import ROOT, call

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

LAUNCH = [
    *["--gpu", "H100", "--context-length", "131072", "--pool-tokens", "425984", "--format", "json"],
    *["--from-args", "--", "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=1"],
    *["python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B"],
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    from kvcanary_cli.main import run

    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    assert run(["synth", str(path), "--steps", "12", "--quiet"]) == 0
    return path


@pytest.fixture
def truncated(trace, tmp_path):
    """The same trace, cut inside its last line."""
    path = tmp_path / "cut.jsonl"
    path.write_bytes(trace.read_bytes()[:-5])
    return path


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def checked(done, code: int) -> dict:
    assert done.code == code, done.err
    report = json.loads(done.out)
    VALIDATOR.validate(report)
    assert report["exit_code"] == code
    return report


@pytest.mark.parametrize(("requests", "code"), [("256", 0), ("512", 1)], ids=["fits", "exceeded"])
def test_check_capacities(capsys, requests, code):
    argv = [*LAUNCH, "--kv-canary", "raise", "--max-running-requests", requests]
    report = checked(call(capsys, "check-capacities", *argv), code)
    assert report["command"] == "check-capacities"


def test_synth(capsys, tmp_path):
    checked(call(capsys, "synth", str(tmp_path / "t.jsonl"), "--steps", "5", "--format", "json"), 0)


def test_replay_clean(capsys, trace):
    report = checked(call(capsys, "replay", str(trace), "--format", "json"), 0)
    assert report["backend"]["device"] == "cpu"


def test_replay_incomplete(capsys, truncated):
    checked(call(capsys, "replay", str(truncated), "--skip-bad-lines", "--format", "json"), 4)


@pytest.mark.parametrize(
    ("argv", "code", "kind"),
    [
        (["replay", "/nowhere.jsonl"], 2, "input"),
        (["replay"], 2, "usage"),
        (["doctor", "--device", "cuda:1000"], 3, "environment"),
        (["doctor", "--device", "gpu"], 2, "usage"),
    ],
)
def test_errors(capsys, argv, code, kind):
    report = checked(call(capsys, *argv, "--format", "json"), code)
    assert report["error"]["code"] == kind


@pytest.mark.parametrize(
    "damage",
    [
        {"status": "ok"},
        {"exit_code": 5},
        {"exit_code": 1},
        {"warnings": None},
        {"backend": {"name": "numba"}},
        {"tool": {}},
        {"command": "Re play"},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_schema_refuses_what_is_not_a_report(capsys, tmp_path, damage):
    done = call(capsys, "synth", str(tmp_path / "t.jsonl"), "--steps", "5", "--format", "json")
    report = json.loads(done.out) | damage
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(report)
