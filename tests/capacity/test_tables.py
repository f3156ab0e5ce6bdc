"""The data files: complete rows, and words that the code understands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kvcanary_cli.capacity import tables
from kvcanary_cli.capacity.flags import PHASELESS_GRAPH_FLAGS, PIECEWISE_FLAGS
from kvcanary_cli.capacity.tables import (
    find_algorithm,
    find_gpu,
    find_model,
    find_tier,
    find_version,
    read_table,
)


def test_every_flag_row_is_understood():
    rows = read_table("flags")
    assert len(rows) == 531
    assert {row["takes"] for row in rows} == {"switch", "value", "list", "optional"}
    spellings = [name for row in rows for name in row["flags"].split(" ")]
    assert len(spellings) == len(set(spellings))
    assert all(name.startswith("--") for name in spellings)


def test_tiers_reach_every_memory_and_release():
    limits = [row["below_mib"] for row in read_table("gpu_tiers")]
    assert limits[-1] == "-"
    numbers = [int(limit) for limit in limits[:-1]]
    assert numbers == sorted(numbers)
    for version in read_table("versions"):
        for memory in (1, *numbers, *(number - 1 for number in numbers), 10**6):
            for tp in (1, 8):
                assert find_tier(memory, tp, version["version"]).chunk >= 2048


def test_every_gpu_is_found_by_all_its_names():
    for row in read_table("gpus"):
        for name in [row["name"], *filter(None, row["aliases"].split(","))]:
            assert find_gpu(name).name == row["name"]


def test_every_algorithm_leads_to_one():
    for name in tables.algorithm_names():
        assert find_algorithm(find_algorithm(name).name) is not None


def test_every_model_and_version_is_readable():
    for row in read_table("models"):
        assert find_model(row["path"].upper()).architecture == row["architecture"]
    for row in read_table("versions"):
        assert find_version(row["version"]).name == row["version"]
    assert find_version(tables.DEFAULT_VERSION)


@pytest.mark.parametrize("find", [find_gpu, find_model, find_algorithm])
def test_unknown_names(find):
    assert find("nothing like it") is None
    assert find("") is None


def test_flags_in_the_code_are_first_spellings():
    """Values are kept under a flag's first spelling: any other would never be found."""
    first = {row["flags"].split(" ")[0] for row in read_table("flags")}
    ours = {"--pool-tokens", "--gpu", "--gpu-memory", "--args-file", "--from-log", "--hf-config", "--solve"}
    ours |= {"--sglang-version", "--from-args", "--help", "--no-", *PHASELESS_GRAPH_FLAGS, *PIECEWISE_FLAGS}
    folder = Path(tables.__file__).parent
    used = {
        node.value
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"--[a-z0-9-]+", node.value)
    }
    assert len(used) > 50
    assert sorted(used - first - ours) == []
