"""What all tests share: a fixed environment, and a word about the tests that were not run."""

from __future__ import annotations

import os
import re

import pytest

from kvcanary_cli.runtime.devices import survey

for _variable in ("FORCE_COLOR", "KVCANARY_DEBUG", "KVCANARY_NO_PROGRESS"):
    os.environ.pop(_variable, None)
os.environ.update(COLUMNS="80", LINES="24", NO_COLOR="1", TERM="dumb")

DEVICE = pytest.StashKey[str]()

TIERS = {
    "slow": "many seeds, large pools: make test-slow",
    "gpu": "needs a CUDA GPU: python -m pytest -m gpu",
    "peer": "needs SGLang beside it: make test-peer",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        help="where Triton kernels run: cpu (interpreted), cuda or cuda:N; cuda with -m gpu, else cpu",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the device before any test imports triton, which decides at import whether it interprets."""
    device = config.getoption("--device") or ("cuda" if selects_gpu(config) else "cpu")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
        if not survey().gpus:
            raise pytest.UsageError(f"these tests were to run on {device}, but no GPU is visible")
    config.stash[DEVICE] = device


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let every test that runs Triton kernels be part of the gpu tier too, and no other run a test of that tier."""
    for item in items:
        if selects_gpu(config):
            if "device" in getattr(item, "fixturenames", ()):
                item.add_marker("gpu")
        elif item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="marked gpu: run with -m gpu where there is one"))


def selects_gpu(config: pytest.Config) -> bool:
    """Whether the marker expression asks for the gpu tier."""
    return re.search(r"(?<!not )\bgpu\b", config.getoption("markexpr")) is not None


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """Where Triton kernels run: `cpu`, which is its interpreter, or a GPU."""
    return pytestconfig.stash[DEVICE]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tiers that the marker expression leaves out; a tier never passes for being absent."""
    expression = config.getoption("markexpr")
    for tier, reason in TIERS.items():
        if f"not {tier}" in expression:
            terminalreporter.write_line(f"not run: tests marked {tier} ({reason})")
