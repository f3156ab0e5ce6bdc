"""The guide says what the tool does: its console block, its rules, its configs, its releases."""

from __future__ import annotations

import re
import shlex

import yaml

from kvcanary_cli.capacity.config import read_config
from kvcanary_cli.capacity.rules import RULES
from kvcanary_cli.capacity.tables import read_table
from tests.capacity.launches import write_config
from tests.cli import ROOT, call

GUIDE = (ROOT / "docs" / "check-capacities.md").read_text(encoding="utf-8")


def test_the_console_block_is_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = re.findall(r"```console\n\$ ([^\n]*)\n(.*?)```", GUIDE, re.DOTALL)
    assert len(shown) == 1
    for command, output in shown:
        assert call(capsys, *shlex.split(command)[1:]).out == output


def test_every_rule_and_release_is_named():
    assert [rule.id for rule in RULES if f"`{rule.id}`" not in GUIDE] == []
    assert [row["version"] for row in read_table("versions") if row["version"] not in GUIDE] == []


def test_the_config_shown_is_one(tmp_path):
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL) if "pool:" in block)
    assert read_config(write_config(tmp_path, text)).pool.tokens == yaml.safe_load(text)["pool"]["tokens"]


def test_every_option_is_described(capsys):
    shown = call(capsys, "check-capacities", "--help").out
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE))
    common = {"--format", "--output", "--quiet", "--verbose", "--exit-zero", "--strict", "--help"}
    assert (
        sorted(option for option in options - common if f"`{option}" not in GUIDE and option not in GUIDE)
        == []
    )


def test_commands_of_the_guide_are_read(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
    commands = [shlex.split(block.replace("\\\n", " ")) for block in blocks]
    files = {"server.log", "launch.sh", "trace.jsonl"}
    whole = [words for words in commands if not files & set(words)]
    assert len(whole) >= 5
    for words in whole:
        assert words[0] == "kvcanary"
        done = call(capsys, *words[1:])
        assert done.code in (0, 1), done.err
