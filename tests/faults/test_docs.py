"""`docs/faults.md` says what the planters say of themselves, and its example runs."""

from __future__ import annotations

import re

import pytest

from kvcanary_cli.faults.answers import read_answers
from kvcanary_cli.faults.table import FAULTS, SCENARIO_NAMES
from tests.cli import ROOT
from tests.faults.test_signals import VARIANTS

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = {line.split()[1]: line for line in PAGE.splitlines() if re.match(r"\| [KC]\d", line)}


@pytest.mark.parametrize("kind", FAULTS)
def test_table_repeats_the_planter(kind):
    entry = FAULTS[kind]
    name, what, found, silent, variants, scenarios = (
        cell.strip() for cell in ROWS[kind].strip("|").split("|")
    )
    text = " ".join(entry.planter.__doc__.split())
    assert text == f"{kind}: {what} Found by: {found} Silent: {silent}"
    assert name == f"{kind} {entry.name}"
    shown = SCENARIO_NAMES if scenarios == "all" else tuple(re.findall(r"`([^`]+)`", scenarios))
    assert shown == entry.scenarios
    assert VARIANTS.get(kind, set()) <= set(re.findall(r"`([^`]+)`", variants))


def test_python_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert [answer.kind for answer in names["answers"]] == ["K07", "K07"]


def test_sheet_example_is_a_sheet(tmp_path):
    (sheet,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "sheet"
    path.write_text(sheet)
    (fault,) = read_answers(str(path)).faults
    assert fault.innocent.rids == ["req-88"]
    described = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `")}
    fields = {"not" if name == "innocent" else name for name in fault.__struct_fields__}
    assert described == fields - {"kind"}
