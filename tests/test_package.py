"""What an installed package holds, and what installing it may not do."""

from __future__ import annotations

import re
import shutil
import tomllib
import zipfile

import pytest

from kvcanary_cli import __version__
from tests.cli import ROOT, python


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def names(requirements) -> set[str]:
    return {re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower() for requirement in requirements}


def listed(file: str) -> list[str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_dependencies_have_lower_bounds_only(project):
    for requirement in project["project"]["dependencies"]:
        bounds = re.findall(r"[<>=!~]=?", requirement.partition(";")[0])
        assert bounds == [">="], requirement


def test_light_requirements_are_the_dependencies_without_torch_and_triton(project):
    full = {line.partition(";")[0].strip() for line in project["project"]["dependencies"]}
    assert full - set(listed("requirements-light.txt")) == {"torch>=2.8", "triton>=3.4"}
    assert set(listed("requirements-light.txt")) < full


def test_every_tool_and_dependency_is_pinned(project):
    pinned = dict(line.lower().split("==") for line in listed("constraints.txt"))
    wanted = names(project["project"]["dependencies"]) | names(
        project["project"]["optional-dependencies"]["dev"]
    )
    assert wanted <= set(pinned)
    assert pinned["torch"] == "2.13.0"


def test_wheel_holds_code_and_data(tmp_path):
    # built from a copy: setuptools leaves a build folder behind, which later builds would pick up
    copy = tmp_path / "source"
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kvcanary_cli", copy / "kvcanary_cli", ignore=compiled)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path)]
    done = python("-m", "pip", "wheel", *options, str(copy))
    assert done.code == 0, done.err
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"kvcanary-{__version__}-")
    with zipfile.ZipFile(wheel) as content:
        held = set(content.namelist())
    code = {p.relative_to(ROOT).as_posix() for p in (ROOT / "kvcanary_cli").rglob("*.py")}
    data = {
        p.relative_to(ROOT).as_posix()
        for suffix in ("yaml", "npz", "tsv")
        for p in (ROOT / "kvcanary_cli").rglob(f"*.{suffix}")
    }
    assert code <= held
    assert data <= held
    assert any(name.endswith("/LICENSE") for name in held)
    assert not any(name.startswith("tests/") for name in held)


def test_license_is_apache_2():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_ci_runs_exactly_what_the_readme_says():
    commands = [line for line in listed(".ci/run") if not line.startswith(("set ", "cd "))]
    assert commands == ["exec make test"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme
