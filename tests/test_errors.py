"""Errors as a user reads them."""

from __future__ import annotations

import pytest

from kvcanary_cli import errors
from kvcanary_cli.errors import InputError, KvCanaryError, MissingError, PhaseError, UsageError, nearest
from kvcanary_cli.exits import Exit


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "slot 70001 is outside the pool (0 to 65,535)"),
        ({"where": "t.jsonl:17"}, "t.jsonl:17: slot 70001 is outside the pool (0 to 65,535)"),
        (
            {"where": "t.jsonl:17", "path": "$.slots[3]"},
            "t.jsonl:17: $.slots[3]: slot 70001 is outside the pool (0 to 65,535)",
        ),
        ({"path": "$.v", "hint": "not part of it"}, "$.v: slot 70001 is outside the pool (0 to 65,535)"),
    ],
    ids=["bare", "where", "where-path", "path"],
)
def test_text_leaves_out_what_is_absent(fields, text):
    assert str(InputError("slot 70001 is outside the pool (0 to 65,535)", **fields)) == text


@pytest.mark.parametrize(
    ("kind", "code", "exit_code"),
    [
        (InputError, "input", Exit.USAGE),
        (UsageError, "usage", Exit.USAGE),
        (MissingError, "environment", Exit.ENVIRONMENT),
        (PhaseError, "internal", Exit.INTERNAL),
    ],
)
def test_kind_decides_code(kind, code, exit_code):
    assert (kind.code, kind.exit_code) == (code, exit_code)


def test_no_kind_of_error_exits_as_findings():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KvCanaryError)
    ]
    assert len(kinds) == 5
    assert all(kind.exit_code not in (Exit.FINDINGS, Exit.PASS, Exit.INCOMPLETE) for kind in kinds)


@pytest.mark.parametrize(
    ("name", "found"), [("trition", "triton"), ("refrence", "reference"), ("xyz", None), ("numba", "numba")]
)
def test_nearest(name, found):
    assert nearest(name, ["reference", "numba", "triton"]) == found
