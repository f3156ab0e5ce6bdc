"""The environment: one module reads it, one page lists it, and the caches find a place."""

from __future__ import annotations

import re
import tempfile

import pytest

from kvcanary_cli import settings
from kvcanary_cli.errors import MissingError
from tests.cli import ROOT


def test_page_lists_exactly_the_variables():
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE) == list(settings.VARIABLES)


def test_module_reads_exactly_the_variables():
    source = (ROOT / "kvcanary_cli" / "settings.py").read_text(encoding="utf-8")
    body = source.partition('"""Every variable that changes')[2]
    read = set(re.findall(r'"([A-Z][A-Z_]{3,})"', body))
    assert read == set(settings.VARIABLES)


def test_no_other_module_reads_the_environment():
    readers = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kvcanary_cli").rglob("*.py")
        if re.search(r"\benviron\b|\bgetenv\b", path.read_text(encoding="utf-8"))
    ]
    assert readers == ["kvcanary_cli/settings.py"]


@pytest.fixture
def places(monkeypatch, tmp_path):
    """A home and a temporary folder of the test's own, and no variable set."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for variable in ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(settings, "sys", type("Sys", (), {"modules": {}, "platform": "linux"}))
    return home, temporary


@pytest.fixture
def read_only(monkeypatch):
    """Make paths under the given ones look read-only; modes mean nothing to root, who may run the tests."""

    def use(*prefixes) -> None:
        access = settings.os.access
        monkeypatch.setattr(
            settings.os,
            "access",
            lambda path, mode: not str(path).startswith(tuple(map(str, prefixes))) and access(path, mode),
        )

    return use


def test_writable_package_needs_nothing(places):
    assert settings.prepare_numba_cache() is None
    assert "NUMBA_CACHE_DIR" not in settings.os.environ


def test_read_only_package_is_fine_with_a_home(places, read_only):
    read_only(ROOT)
    assert settings.prepare_numba_cache() is None


def test_nothing_writable_falls_back_to_a_private_folder(places, read_only):
    home, temporary = places
    read_only(ROOT, home)
    note = settings.prepare_numba_cache()
    folder = settings.os.environ["NUMBA_CACHE_DIR"]
    assert folder.startswith(str(temporary / "kvcanary-numba-"))
    assert note == f"neither the package nor ~/.cache can be written, compiled code is kept in {folder}"
    assert settings.Path(folder).stat().st_mode & 0o077 == 0


def test_fallback_is_the_same_folder_each_time(places, read_only):
    home, _ = places
    read_only(ROOT, home)
    settings.prepare_numba_cache()
    first = settings.os.environ.pop("NUMBA_CACHE_DIR")
    settings.prepare_numba_cache()
    assert settings.os.environ["NUMBA_CACHE_DIR"] == first


def test_fallback_that_others_can_write_is_not_used(places, read_only):
    home, temporary = places
    read_only(ROOT, home)
    planted = temporary / f"kvcanary-numba-{settings.os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    settings.prepare_numba_cache()
    assert settings.os.environ["NUMBA_CACHE_DIR"] != str(planted)


def test_fallback_is_no_link(places, read_only):
    home, temporary = places
    read_only(ROOT, home)
    (temporary / "elsewhere").mkdir()
    planted = temporary / f"kvcanary-numba-{settings.os.getuid()}"
    planted.symlink_to(temporary / "elsewhere")
    settings.prepare_numba_cache()
    assert settings.os.environ["NUMBA_CACHE_DIR"] != str(planted)


def test_chosen_folder_is_respected_while_it_can_be_written(places, read_only, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    assert settings.prepare_numba_cache() is None
    (tmp_path / "mine").mkdir()
    read_only(tmp_path / "mine")
    note = settings.prepare_numba_cache()
    assert note.startswith(f"{tmp_path / 'mine'} can't be written, compiled code is kept in ")


def test_no_folder_at_all_is_an_error_that_names_the_variable(places, read_only, monkeypatch):
    home, _ = places
    read_only(ROOT, home)
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    with pytest.raises(
        MissingError, match="no folder can be written for the code that numba compiles"
    ) as refused:
        settings.prepare_numba_cache()
    assert "`NUMBA_CACHE_DIR`" in refused.value.hint


def test_triton_keeps_its_place_under_home(places):
    assert settings.prepare_triton_cache() is None


def test_triton_falls_back_when_home_is_read_only(places, read_only):
    home, temporary = places
    read_only(home)
    note = settings.prepare_triton_cache()
    assert settings.os.environ["TRITON_CACHE_DIR"].startswith(str(temporary / "kvcanary-triton-"))
    assert str(home / ".triton" / "cache") in note


@pytest.mark.parametrize(
    ("value", "is_set"), [("1", True), ("TRUE", True), ("0", False), ("", False), (None, False)]
)
def test_triton_interpret(monkeypatch, value, is_set):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    assert settings.is_triton_interpreted() is is_set


def test_child_interprets_only_when_told(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET" not in settings.child_environment(interpret=False)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert settings.child_environment(interpret=True)["TRITON_INTERPRET"] == "1"


@pytest.mark.parametrize(
    ("visible", "index", "seen"), [(None, 2, "2"), ("4,7", 1, "7"), ("GPU-1a,GPU-2b", 0, "GPU-1a")]
)
def test_child_sees_the_one_gpu_that_was_chosen(monkeypatch, visible, index, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert settings.child_environment(interpret=False, gpu_index=index)["CUDA_VISIBLE_DEVICES"] == seen


def test_child_finds_this_package_first(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert (
        settings.child_environment(interpret=False)["PYTHONPATH"] == f"{ROOT}{settings.os.pathsep}/elsewhere"
    )
