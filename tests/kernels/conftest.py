"""The implementations under test, each loaded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvcanary_cli.kernels._vector_backends import BACKENDS, Backend, load_backend
from kvcanary_cli.kernels.vectors import load_vector, run_vector

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest, device: str) -> Backend:
    """One of the three implementations."""
    return load_backend(request.param, device)


@pytest.fixture(scope="session")
def reference() -> Backend:
    """The implementation the others are compared with."""
    return load_backend("reference")


@pytest.fixture(scope="session")
def golden_failures() -> Callable[[str, Backend], list[str]]:
    """Runs all golden vectors of one operation and returns those that differ."""

    def run(operation: str, backend: Backend) -> list[str]:
        paths = sorted(GOLDEN.glob(f"{operation}_*.npz"))
        assert len(paths) == {"scatter": 30}.get(operation, 90)
        differences = {path.name: run_vector(load_vector(path), backend) for path in paths}
        return [f"{name}: {difference}" for name, difference in differences.items() if difference]

    return run
