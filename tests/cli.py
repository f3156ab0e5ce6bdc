"""Run a command line as a user does, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvcanary_cli.main import run

ROOT = Path(__file__).parent.parent

# Put before a program: makes packages unimportable, as on a machine that doesn't have them.
BLOCKER = """
import sys
class _Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
        return None
sys.meta_path.insert(0, _Blocker())
"""


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> Done:
    """Run a command line in this process."""
    capsys.readouterr()
    code = run(list(argv))
    captured = capsys.readouterr()
    return Done(code, captured.out, captured.err)


def spawn(*argv: str, env: dict[str, str] | None = None, cwd: Path | None = None, stdin: str = "") -> Done:
    """Run a command line in a process of its own, with `env` added to the environment."""
    return python("-m", "kvcanary_cli", *argv, env=env, cwd=cwd, stdin=stdin)


def python(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
) -> Done:
    """Run Python on this checkout."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=cwd or ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def spawn_without(packages: set[str], *argv: str) -> Done:
    """Run a command line where `packages` can't be imported."""
    program = (
        BLOCKER.format(blocked=packages)
        + f"from kvcanary_cli.main import run\nsys.exit(run({list(argv)!r}))\n"
    )
    return python("-c", program)


def imported_by(*argv: str) -> set[str]:
    """Top-level packages that a command line loads."""
    program = (
        "import sys\nfrom kvcanary_cli.main import run\n"
        f"code = run({list(argv)!r})\n"
        "sys.stderr.write('\\nLOADED ' + ' '.join({name.partition('.')[0] for name in sys.modules}))\n"
        "sys.exit(code)\n"
    )
    return set(python("-c", program).err.rpartition("LOADED ")[2].split())
