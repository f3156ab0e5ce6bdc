"""Rules have one list of names, and the page about the ledger has them all."""

from __future__ import annotations

import re

from kvcanary_cli.ledger.judged import NEEDS
from kvcanary_cli.ledger.rules import RULES
from tests.cli import ROOT


def test_every_rule_is_on_the_page_with_its_facts():
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \|(?:[^|]*\|){3}$", page, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([a-z-]+)`", row)) == sorted(RULES)


def test_every_rule_in_the_code_has_a_name_in_the_list():
    used = set()
    for path in (ROOT / "kvcanary_cli" / "ledger" / "rules").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r'(?:log\.add|_add)\(\s*(?:state,\s*)?f?"([a-z{}-]+)"', text))
    kinds = {name.format(what=what) for name in used for what in ("xfer", "reload")}
    assert kinds == set(RULES)
    assert set(NEEDS) <= set(RULES)
