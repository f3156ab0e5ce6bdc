"""The example of `docs/read-a-finding.md` is what the commands print, up to numbers and places."""

from __future__ import annotations

import re
import shlex

import pytest

from kvcanary_cli.kinds import KINDS
from tests.cli import ROOT, call

TEXT = (ROOT / "docs" / "read-a-finding.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from kvcanary_cli.main import run

    path = tmp_path_factory.mktemp("guide")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        made = re.search(r"```bash\n(.*?)```", TEXT, re.DOTALL)[1]
        for line in made.splitlines():
            assert run([*shlex.split(line)[1:], "--quiet"]) == 0
    return path


def shape(text: str) -> set[str]:
    """Lines without their numbers: where a fault is planted may change, what is said of it may not."""
    lines = (re.sub(r"0x[0-9a-f]{16}|\d[\d,]*(-\d+)?", "N", line) for line in text.splitlines())
    return {" ".join(line.split()) for line in lines} - {"...", ""}


def test_the_shown_lines_are_printed(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    printed: set[str] = set()
    for block in BLOCKS:
        first, _, rest = block.partition("\n")
        if first.startswith("$ kvcanary "):
            printed = shape(call(capsys, *shlex.split(first)[2:]).out)
            block = rest
        assert shape(block) - printed == set()


def test_codes_that_are_named_exist(capsys):
    assert set(re.findall(r"\b[KC]\d+\b", TEXT)) <= set(KINDS)
    for word in set(re.findall(r"`kvcanary explain ([\w-]+)`", TEXT)):
        assert call(capsys, "explain", word).code == 0
