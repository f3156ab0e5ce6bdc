"""Without `KVCANARY_RECORD` and `KVCANARY_DUMP` the entry point does nothing, and bad settings are said."""

from __future__ import annotations

import tomllib

import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.recorders import dumps, hooks, sglang
from kvcanary_cli.settings import DumpSettings, RecordSettings, dump_settings, record_settings
from tests.cli import ROOT, python

PROGRAM = """
import sys
from kvcanary_cli.recorders.sglang import register
register()
heavy = {name.partition('.')[0] for name in sys.modules} & {'sglang', 'torch', 'numpy', 'msgspec', 'numba'}
print(sorted(heavy))
"""


def test_nothing_is_loaded_unless_a_folder_is_named():
    done = python("-c", PROGRAM, env={"KVCANARY_RECORD": "", "KVCANARY_DUMP": "", "KVCANARY_DUMP_KV": "x"})
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


def test_dumps_come_from_the_environment(monkeypatch):
    for variable in ("KVCANARY_DUMP", "KVCANARY_DUMP_MAX", "KVCANARY_DUMP_KV"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("KVCANARY_DUMP_MAX", "7")
    assert dump_settings() is None
    monkeypatch.delenv("KVCANARY_DUMP_MAX")
    monkeypatch.setenv("KVCANARY_DUMP", "/tmp/x")
    assert dump_settings() == DumpSettings(folder="/tmp/x", limit=3, with_kv=False)
    monkeypatch.setenv("KVCANARY_DUMP_MAX", "7")
    monkeypatch.setenv("KVCANARY_DUMP_KV", "1")
    assert dump_settings() == DumpSettings(folder="/tmp/x", limit=7, with_kv=True)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("KVCANARY_DUMP_MAX", "0"), ("KVCANARY_DUMP_MAX", "all"), ("KVCANARY_DUMP_KV", "yes")],
)
def test_dump_setting_that_means_nothing_is_refused(monkeypatch, variable, value):
    monkeypatch.setenv("KVCANARY_DUMP", "/tmp/x")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable):
        dump_settings()


@pytest.mark.parametrize(
    ("recording", "dumping", "begun"),
    [("/tmp/x", "", ["hooks"]), ("", "/tmp/x", ["dumps"]), ("/tmp/x", "/tmp/x", ["hooks", "dumps"])],
)
def test_each_is_installed_only_where_it_is_asked_for(monkeypatch, recording, dumping, begun):
    monkeypatch.setenv("KVCANARY_RECORD", recording)
    monkeypatch.setenv("KVCANARY_DUMP", dumping)
    seen = []
    monkeypatch.setattr(hooks, "install", lambda settings: seen.append("hooks"))
    monkeypatch.setattr(dumps, "install", lambda settings: seen.append("dumps"))
    sglang.register()
    assert seen == begun
