"""Without `KVCANARY_RECORD` the entry point does nothing, and bad settings are said."""

from __future__ import annotations

import tomllib

import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.settings import RecordSettings, record_settings
from tests.cli import ROOT, python

PROGRAM = """
import sys
from kvcanary_cli.recorders.sglang import register
register()
heavy = {name.partition('.')[0] for name in sys.modules} & {'sglang', 'torch', 'numpy', 'msgspec', 'numba'}
print(sorted(heavy))
"""


def test_nothing_is_loaded_unless_a_folder_is_named():
    done = python("-c", PROGRAM, env={"KVCANARY_RECORD": ""})
    assert (done.out, done.err) == ("[]\n", "")


def test_entry_point_is_the_one_that_sglang_looks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["sglang.srt.plugins"] == {
        "kvcanary": "kvcanary_cli.recorders.sglang:register"
    }


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("KVCANARY_RECORD", "/tmp/x")
    assert record_settings() == RecordSettings(folder="/tmp/x", tokens="hash")
    monkeypatch.setenv("KVCANARY_RECORD_TOKENS", "plain")
    monkeypatch.setenv("KVCANARY_RECORD_MAX_MB", "3")
    monkeypatch.setenv("KVCANARY_RECORD_REAL_KV", "0")
    settings = record_settings()
    assert (settings.tokens, settings.max_bytes, settings.real_kv) == ("plain", 3_000_000, 0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KVCANARY_RECORD_TOKENS", "none"),
        ("KVCANARY_RECORD_MAX_MB", "0"),
        ("KVCANARY_RECORD_QUEUE", "-1"),
        ("KVCANARY_RECORD_READ_ROWS", "often"),
    ],
)
def test_value_that_means_nothing_is_refused(monkeypatch, variable, value):
    monkeypatch.setenv("KVCANARY_RECORD", "/tmp/x")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable):
        record_settings()
