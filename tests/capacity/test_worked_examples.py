"""The whole derivation against launches that were worked by hand, through the same file a user would write."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvcanary_cli.capacity.audit import audit
from kvcanary_cli.capacity.request import make_request
from kvcanary_cli.capacity.rules import errors

EXAMPLES = yaml.safe_load((Path(__file__).parent / "worked_examples.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_worked_example(example, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(example["config"]), encoding="utf-8")
    result = audit(make_request(config_path=str(path)))
    sizes, memory = result.sizes, result.sizes.memory
    found = {
        "running": sizes.running.requests,
        "write_req": sizes.write_req,
        "write_entry": sizes.write_entry,
        "verify": sizes.verify,
        "workspace": memory.workspace,
        "buffers": memory.buffers,
        "total_mib": round(memory.total / 2**20, 1),
        "fires": [finding.rule.id for finding in errors(result.findings)],
    }
    if result.setup.window.tokens is not None:
        found["swa_tokens"] = result.setup.window.tokens
    assert found == example["expect"]


def test_there_are_twelve():
    assert len(EXAMPLES) == 12


def test_two_runners_double_the_buffers_and_not_the_workspace(tmp_path):
    eagle = next(example for example in EXAMPLES if example["name"] == "6-eagle3")
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(eagle["config"]), encoding="utf-8")
    memory = audit(make_request(config_path=str(path))).sizes.memory
    assert (memory.runners, memory.workspace_copies) == (2, 2)
    assert memory.total == 2 * 57_600_128 + 2 * 43_343_380
