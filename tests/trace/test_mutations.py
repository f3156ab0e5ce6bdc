"""Whatever is wrong with an input, the answer is one of our own errors, or facts; never another exception."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcanary_cli.commands._inspect_run import InspectWords, run_inspect
from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.exits import Exit
from kvcanary_cli.progress import Progress
from kvcanary_cli.report.inspect_text import render_inspect
from kvcanary_cli.trace.formats import REQUEST_FORMATS
from tests.cli import call, spawn
from tests.trace.mutations import SAMPLES, TABLES, of_csv, of_file, of_json

NAMES = sorted(SAMPLES)
STRIDE = 7  # of the default tier, which takes every so manyth input
ENDS = {Exit.USAGE, Exit.ENVIRONMENT}
"""Codes of errors that are the user's or the machine's; an internal one would be a bug."""


def mutations(name: str) -> Iterator[tuple[str, bytes]]:
    data = SAMPLES[name]
    yield "none", data
    yield from of_file(data)
    yield from of_csv(data) if b"{" not in data else of_json(data)


@pytest.fixture
def little_memory():
    """A number in a file must not become memory: what asks for gigabytes fails here, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def folder(tmp_path):
    for name, data in TABLES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def inspect(path: Path, *, input_format: str | None = None, skip: bool = False) -> dict | KvCanaryError:
    """The report, rendered too, or the error, which has to say where."""
    words = InspectWords(
        file=str(path),
        input_format=input_format,
        block_size=None,
        limit_requests=None,
        skip_bad_lines=skip,
        output=None,
    )
    found: dict | KvCanaryError
    try:
        found = run_inspect(words, Progress("inspect", stream=None))
    except KvCanaryError as error:
        found = error
    if isinstance(found, KvCanaryError):
        assert (found.exit_code in ENDS, found.message != "") == (True, True)
        assert (found.where or "").startswith(str(path)), repr(found)
    else:
        render_inspect(found, verbose=True)
        json.dumps(found)
    return found


def test_every_format_has_a_sample():
    assert set(REQUEST_FORMATS) | {"trace-v1"} == set(SAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_valid(folder, name):
    path = folder / "t"
    path.write_bytes(SAMPLES[name])
    report = inspect(path, input_format=name)
    assert isinstance(report, dict), report
    assert report["status"] == "pass"


def check_all(path: Path, name: str, damaged: list[tuple[str, bytes]]) -> None:
    """Read each input with the format told, strictly and leniently, and with the format left to be found."""
    wrong = []
    for what, data in damaged:
        path.write_bytes(data)
        for options in ({"input_format": name}, {"input_format": name, "skip": True}, {}):
            try:
                inspect(path, **options)
            except Exception as error:
                wrong.append(f"{what}, {options}: {type(error).__name__}: {str(error)[:200]}")
    assert not wrong, f"{len(wrong)} of {len(damaged)}:\n" + "\n".join(wrong[:20])


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", NAMES)
def test_only_our_errors_escape(folder, name):
    damaged = list(mutations(name))
    check_all(folder / "t", name, damaged[NAMES.index(name) % STRIDE :: STRIDE])
    assert len(damaged) > 300


@pytest.mark.slow
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", NAMES)
def test_only_our_errors_escape_from_any_damage(folder, name):
    check_all(folder / "t", name, list(mutations(name)))


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_them_through_the_command(capsys, folder, name):
    path = folder / "t"
    for what, data in list(mutations(name))[::67]:
        path.write_bytes(data)
        done = call(capsys, "inspect", str(path), "--quiet")
        assert done.code in (0, 2), (what, done)
        assert "Traceback" not in done.err
        assert (done.code == 0) == done.out.startswith("kvcanary: PASS inspect ")
        assert (done.code == 2) == done.err.startswith(f"error: {path}")


@pytest.mark.parametrize("name", ["trace-v1", "mooncake", "azure"])
def test_a_bomb_in_a_process_of_its_own(folder, name):
    path = folder / "t"
    path.write_bytes(SAMPLES[name] + b"\n" + b"[" * 1_000_000 + b"\n")
    done = spawn("inspect", str(path))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {path}:")
