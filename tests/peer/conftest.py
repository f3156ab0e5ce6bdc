"""SGLang's classes in this process, hooked once; a test records into a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peer import stubs
from tests.peer.recording import Recording


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs SGLang."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("peer")


@pytest.fixture(scope="session")
def installed() -> tuple[Any, Any]:
    """The hooks of recorder and dumps, applied by SGLang's registry; they do nothing until a test says where to."""
    stubs.torchvision_operators()
    from sglang.srt.plugins.hook_registry import HookRegistry

    from kvcanary_cli.recorders import dumps, hooks
    from kvcanary_cli.settings import DumpSettings, RecordSettings

    pair = hooks.install(RecordSettings(folder="")), dumps.install(DumpSettings(folder=""))
    for each in pair:
        each.stop()
    HookRegistry.apply_hooks()
    return pair


@pytest.fixture(scope="session")
def hooks(installed: tuple[Any, Any]) -> Any:
    """The recorder's hooks."""
    return installed[0]


@pytest.fixture
def dump_into(installed: tuple[Any, Any], tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Turns dumps on: `dump_into(limit=3, with_kv=True)` gives the folder."""
    from kvcanary_cli.settings import DumpSettings

    dumps = installed[1]

    def start(**options: Any) -> Path:
        folder = tmp_path / "dumps"
        dumps.__init__(DumpSettings(**({"folder": str(folder)} | options)))
        return folder

    yield start
    dumps.stop()


@pytest.fixture
def record(hooks: Any, tmp_path: Path) -> Iterator[Callable[..., Recording]]:
    """Starts a recording: `record(page_size=16, tokens="hash", …)` gives a world whose events are recorded."""
    begun: list[Recording] = []

    def start(**options: Any) -> Recording:
        begun.append(Recording(hooks, tmp_path / f"recording{len(begun)}", **options))
        return begun[-1]

    yield start
    for recording in begun:
        recording.close()
