"""Launches for tests: one that needs nothing else, and the ways to read and size another."""

from __future__ import annotations

from kvcanary_cli.capacity.audit import Audit, audit
from kvcanary_cli.capacity.request import Request, make_request
from kvcanary_cli.capacity.setup import Setup, resolve
from kvcanary_cli.capacity.sizes import Sizes, derive

PROGRAM = ["python", "-m", "sglang.launch_server", "--model-path", "/models/one"]
OPTIONS = {"pool_tokens": "400000", "context_length": "131072", "gpu": "H100"}


def request(*words: str, env: dict[str, str] | None = None, **options: str | None) -> Request:
    """A launch on an H100 with 400,000 tokens and a context of 131,072, and more flags."""
    assignments = [f"{name}={value}" for name, value in (env or {}).items()]
    return make_request(command=[*assignments, *PROGRAM, *words], **{**OPTIONS, **options})


def setup(*words: str, **options: str | None) -> Setup:
    return resolve(request(*words, **options))


def sizes(*words: str, **options: str | None) -> Sizes:
    return derive(setup(*words, **options))


def audited(*words: str, env: dict[str, str] | None = None, **options: str | None) -> Audit:
    return audit(request(*words, env=env, **options))


def write_config(tmp_path, text: str, name: str = "c.yaml") -> str:
    """A config file in a test's folder."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)
