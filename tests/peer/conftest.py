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
def hooks() -> Any:
    """The hooks, applied by SGLang's registry; they record nothing until a test says where to."""
    stubs.torchvision_operators()
    from sglang.srt.plugins.hook_registry import HookRegistry

    from kvcanary_cli.recorders.hooks import install
    from kvcanary_cli.settings import RecordSettings

    installed = install(RecordSettings(folder=""))
    installed.stop()
    HookRegistry.apply_hooks()
    return installed


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
