"""The program's ways out: help, version, usage errors, our errors, bugs, Ctrl-C, a reader that goes away."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import typer

from kvcanary_cli import __version__, main
from kvcanary_cli.errors import InputError
from kvcanary_cli.exits import Exit
from tests.cli import ROOT, call, python, spawn

LAUNCH = [
    *["--gpu", "H100", "--context-length", "8k", "--from-args", "--"],
    *["python", "-m", "sglang.launch_server", "--model-path", "m"],
]


@pytest.fixture
def broken(monkeypatch):
    """Make `doctor` raise what a test gives."""

    def use(error: BaseException) -> None:
        def doctor(output_format: str = typer.Option("text", "--format")) -> None:
            raise error

        monkeypatch.setattr("kvcanary_cli.commands.doctor.doctor", doctor)

    return use


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(capsys, flag):
    done = call(capsys, flag)
    assert (done.code, done.err) == (0, "")
    commands = re.findall(
        r"^  ([a-z-]+) ", done.out.partition("Commands:")[2].partition("Exit codes:")[0], re.M
    )
    assert sorted(commands) == sorted([*main.COMMANDS, *main.GROUPS])


GROUPED = [(group, command) for group, (_, commands) in main.GROUPS.items() for command in commands]


@pytest.mark.parametrize("words", [*((group,) for group in main.GROUPS), *GROUPED], ids=" ".join)
def test_help_of_each_group(capsys, words):
    done = call(capsys, *words, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: kvcanary {' '.join(words)} ")
    assert "Example: kvcanary" in done.out
    assert "    130  stopped by Ctrl-C\n" in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_usage_errors_of_a_group_name_the_command(capsys):
    done = call(capsys, "trace", "cut", "--nonsense")
    assert (done.code, "kvcanary trace cut --help" in done.err) == (2, True)
    assert call(capsys, "trace", "nonsense").code == 2


@pytest.mark.parametrize("group", main.GROUPS)
def test_a_bare_group_gets_its_help(capsys, group):
    done = call(capsys, group)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"Usage: kvcanary {group} ")
    assert all(f"\n  {command} " in done.err for command in main.GROUPS[group][1])


@pytest.mark.parametrize("command", [*main.COMMANDS, *main.ALIASES])
def test_help_of_each_command(capsys, command):
    done = call(capsys, command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: kvcanary {command} ")
    first = done.out.splitlines()[2].strip()
    assert 0 < len(first) < 60
    assert "Example" in done.out
    assert "    130  stopped by Ctrl-C\n" in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_alias_is_not_listed(capsys):
    assert "synthesize" not in call(capsys, "--help").out


def test_version(capsys):
    assert call(capsys, "--version").out == f"kvcanary {__version__}\n"


def test_no_command_is_help_on_stderr(capsys):
    done = call(capsys)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: kvcanary ")


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["nope"], "no such command", "`kvcanary --help`"),
        (["doctor", "--nope"], "no such option", "`kvcanary doctor --help`"),
        (["doctor", "--format", "xml"], "'--format': ", "`kvcanary doctor --help`"),
        (["doctor", "--vectors"], "option '--vectors' requires an argument", "`kvcanary doctor --help`"),
    ],
)
def test_usage_errors(capsys, argv, message, hint):
    done = call(capsys, *argv)
    assert (done.code, done.out) == (2, "")
    first, blank, second, *rest = done.err.split("\n")
    assert message in first.lower()
    assert re.match(r"error: [^A-Z]", first)
    assert not first.endswith(".")
    assert (blank, second, rest) == ("", f"hint: {hint}", [""])


def test_our_error_as_text_and_as_json(capsys, broken):
    broken(
        InputError("slot 9 is outside the pool", where="t.jsonl:17", path="$.slots[3]", hint="`kvcanary x`")
    )
    done = call(capsys, "doctor")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: t.jsonl:17: $.slots[3]: slot 9 is outside the pool\n\nhint: `kvcanary x`\n"
    as_json = call(capsys, "doctor", "--format", "json")
    assert as_json.err == done.err
    assert json.loads(as_json.out) == {
        "schema": "kvcanary.report/1",
        "status": "error",
        "error": {
            "code": "input",
            "where": "t.jsonl:17",
            "path": "$.slots[3]",
            "message": "slot 9 is outside the pool",
            "hint": "`kvcanary x`",
        },
        "exit_code": 2,
    }


def test_error_in_json_lines_is_the_summary(capsys, broken):
    broken(InputError("no"))
    out = call(capsys, "doctor", "--format=jsonl").out
    assert out.count("\n") == 1
    assert json.loads(out)["type"] == "summary"
    assert json.loads(out)["error"]["hint"] is None


def test_usage_error_in_json(capsys):
    done = call(capsys, "doctor", "--format", "json", "--nope")
    assert json.loads(done.out)["error"]["code"] == "usage"


def test_format_after_the_double_dash_is_not_ours(capsys):
    assert call(capsys, "doctor", "--", "--format", "json").out == ""


def test_error_text_is_ascii(capsys, broken):
    broken(InputError("caf\u00e9\x1b[2J", where="\u2192.jsonl"))
    assert call(capsys, "doctor").err == "error: \\u2192.jsonl: caf\\xe9\\x1b[2J\n"


def test_a_bug_exits_70_with_one_line(capsys, broken):
    broken(ValueError("two\nlines"))
    done = call(capsys, "doctor")
    assert (done.code, done.out) == (70, "")
    first, _, hint, end = done.err.split("\n")
    assert first == "error: a bug in kvcanary: ValueError: two lines"
    assert "KVCANARY_DEBUG=1" in hint
    assert end == ""


def test_debug_adds_the_traceback_and_keeps_the_code(capsys, broken, monkeypatch):
    monkeypatch.setenv("KVCANARY_DEBUG", "1")
    broken(ValueError("why"))
    done = call(capsys, "doctor")
    assert done.code == 70
    assert done.err.startswith("Traceback (most recent call last)")
    assert "error: a bug in kvcanary: ValueError: why" in done.err


def test_ctrl_c_before_a_report(capsys, broken):
    broken(KeyboardInterrupt())
    done = call(capsys, "doctor", "--format", "json")
    assert done.code == 130
    assert json.loads(done.out)["error"]["code"] == "interrupted"


def test_ctrl_c_after_a_report_adds_nothing(capsys, broken):
    broken(typer.Exit(Exit.INTERRUPTED))
    done = call(capsys, "doctor", "--format", "json")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_ctrl_c_from_a_real_signal(tmp_path):
    program = (
        "import os, signal, sys, kvcanary_cli.commands.doctor as module\n"
        "def doctor() -> None:\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "module.doctor = doctor\nsys.argv = ['kvcanary', 'doctor']\n"
        "from kvcanary_cli.main import main\nmain()\n"
    )
    done = python("-c", program)
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err


def test_a_reader_that_goes_away_ends_it_silently():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvcanary_cli", "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    finally:
        os.close(writer)
    # the shell shows this as 141
    assert done.returncode == -signal.SIGPIPE
    assert done.stderr == b""


@pytest.mark.parametrize(
    "argv", [["--help"], ["check-capacities", "--pool-tokens", "400k", *LAUNCH]], ids=["help", "report"]
)
def test_a_full_disk_is_not_a_pass(argv):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvcanary_cli", *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            # what stays in a buffer is what Python tries to write again at its end
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == b"error: stdout: can't be written: No space left on device\n"


def test_module_and_entry_point_are_the_same():
    assert spawn("--version").out == f"kvcanary {__version__}\n"
    assert python("-c", "from kvcanary_cli.main import main; main()").code == 2
