"""Documentation that can't fall behind the code."""

from __future__ import annotations

import re
import shlex

import pytest

from kvcanary_cli.main import COMMANDS, GROUPS, build_app
from tests.cli import ROOT, call

PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), target


def test_readme_names_every_page():
    readme = page("README.md")
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in readme]
    assert missing == []


GROUPED = [f"{group} {command}" for group, (_, commands) in GROUPS.items() for command in commands]


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPED])
def test_every_command_is_shown_in_the_readme(command):
    assert re.search(rf"^kvcanary {command}\b", page("README.md"), re.MULTILINE)


def shown_commands() -> list[str]:
    found = []
    for path in PAGES:
        blocks = re.findall(r"```(?:bash|console)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        for block in blocks:
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?kvcanary ", line)]
    return sorted(set(found))


@pytest.mark.parametrize("line", shown_commands())
def test_shown_command_lines_use_flags_that_exist(capsys, line):
    words = shlex.split(line.partition(";")[0].partition("|")[0], comments=True)[1:]
    own = words[: words.index("--")] if "--" in words else words
    flags = {word.partition("=")[0] for word in own if word.startswith("--")}
    if own and own[0] in GROUPS:
        assert flags <= set(re.findall(r"--[a-z-]+", call(capsys, *own[:2], "--help").out))
    elif own and own[0] in COMMANDS:
        assert flags <= set(re.findall(r"--[a-z-]+", call(capsys, own[0], "--help").out))
    else:
        assert flags <= {"--help", "--version"}


def test_the_set_up_of_the_readme_fails_as_it_says(capsys):
    (line,) = [line for line in shown_commands() if line.startswith("kvcanary check-capacities --gpu")]
    done = call(capsys, *shlex.split(line)[1:])
    assert (done.code, done.err) == (1, "")
    assert "fix:    --max-running-requests 511" in done.out
    assert "`--max-running-requests 511`" in page("README.md")


def test_architecture_lists_exactly_the_packages():
    listed = set(re.findall(r"^\| `kvcanary_cli/([a-z_]+)/` \|", page("docs/architecture.md"), re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "kvcanary_cli").glob("*/__init__.py")}
    assert listed == packages


def test_changelog_has_this_version():
    from kvcanary_cli import __version__

    assert f"## {__version__}" in page("CHANGELOG.md")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_help(command):
    from typer.main import get_command

    parameters = get_command(build_app([command])).commands[command].params
    assert [p.name for p in parameters if p.param_type_name == "option" and not p.help] == []


@pytest.mark.parametrize("words", GROUPED)
def test_every_flag_of_a_group_has_help(words):
    from typer.main import get_command

    group, command = words.split()
    parameters = get_command(build_app([group])).commands[group].commands[command].params
    assert [p.name for p in parameters if p.param_type_name == "option" and not p.help] == []
