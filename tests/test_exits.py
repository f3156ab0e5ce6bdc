"""Exit codes: which one wins, and that every place that lists them agrees."""

from __future__ import annotations

import itertools
import re

import pytest

from kvcanary_cli.exits import SEVERITY, Exit, worst
from kvcanary_cli.main import EXIT_TEXT
from tests.cli import ROOT, call


def test_codes_are_what_scripts_rely_on():
    assert {code.name: int(code) for code in Exit} == {
        "PASS": 0,
        "FINDINGS": 1,
        "USAGE": 2,
        "ENVIRONMENT": 3,
        "INCOMPLETE": 4,
        "INTERNAL": 70,
        "INTERRUPTED": 130,
    }


def test_every_code_has_a_severity():
    assert sorted(SEVERITY) == sorted(Exit)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations([130, 70, 2, 3, 1, 4, 0], 2)))
def test_worst_is_the_earlier_one_in_either_order(first, second):
    assert worst(Exit(first), Exit(second)) is Exit(first)
    assert worst(Exit(second), Exit(first)) is Exit(first)


def test_worst_of_nothing_is_a_pass():
    assert worst() is Exit.PASS


def documented_codes() -> dict[int, str]:
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE)
    return {int(code): text.strip() for code, text in rows}


def test_docs_and_help_list_the_same_codes(capsys):
    documented = documented_codes()
    # 141 is the shell's word for a closed pipe, not a code that the program returns
    assert documented.pop(141)
    assert documented == {int(code): text for code, text in EXIT_TEXT.items()}
    listed = dict(
        re.findall(r"^ +(\d+)  (.+)$", call(capsys, "--help").out.partition("Exit codes:")[2], re.M)
    )
    assert {int(code): text for code, text in listed.items()} == documented


def test_every_code_is_explained():
    assert list(EXIT_TEXT) == list(Exit)
