"""What all tests share: a fixed environment, and a word about the tests that were not run."""

from __future__ import annotations

import os

import pytest

from kvcanary_cli.runtime.devices import survey

for _variable in ("FORCE_COLOR", "KVCANARY_DEBUG", "KVCANARY_NO_PROGRESS"):
    os.environ.pop(_variable, None)
os.environ.update(COLUMNS="80", LINES="24", NO_COLOR="1", TERM="dumb")

if not survey().gpus:
    # read when a kernel module is imported, so it has to stand before any test does that
    os.environ.setdefault("TRITON_INTERPRET", "1")

TIERS = {
    "slow": "many seeds, large pools: make test-slow",
    "gpu": "needs a CUDA GPU: python -m pytest -m gpu",
    "peer": "needs SGLang beside it: make test-peer",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tiers that the marker expression leaves out; a tier never passes for being absent."""
    expression = config.getoption("markexpr")
    for tier, reason in TIERS.items():
        if f"not {tier}" in expression:
            terminalreporter.write_line(f"not run: tests marked {tier} ({reason})")
