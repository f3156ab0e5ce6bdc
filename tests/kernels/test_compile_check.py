"""Every Triton kernel compiles for the GPUs we name, and none is forgotten."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from kvcanary_cli import kernels

ROOT = Path(kernels.__file__).parents[2]


def written_kernels() -> set[str]:
    """Names of all functions `_<op>_kernel` under `@triton.jit`, read from the source."""
    functions = [
        node
        for path in Path(kernels.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
    ]
    return {f.name.removeprefix("_").removesuffix("_kernel") for f in functions if f.name.endswith("_kernel")}


def test_every_kernel_compiles_for_every_target():
    # Triton decides at import whether it interprets: this needs a process of its own
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "kvcanary_cli.kernels.compile_check"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["error"] for result in results if not result["ok"]] == []
    assert done.returncode == 0
    assert {(r["kernel"], r["target"]) for r in results} == {
        (name, target) for name in written_kernels() for target in ("sm_80", "sm_90")
    }
    assert all(result["variants"] > 0 for result in results)


def test_kernels_are_found_by_name():
    from kvcanary_cli.kernels.compile_check import find_kernels

    assert set(find_kernels()) == written_kernels()
    assert written_kernels() >= {
        "plan_offsets",
        "plan_entries",
        "verify",
        "write_chains",
        "write_entries",
        "scatter",
    }


def test_a_kernel_that_does_not_compile_is_told():
    from kvcanary_cli.kernels.compile_check import check_kernel

    result = check_kernel("new", SimpleNamespace(arg_names=["x_ptr", "NEW_CONSTANT"]), "sm_90")
    assert (result["ok"], result["variants"]) == (False, 0)
    assert result["error"] == "KeyError: 'NEW_CONSTANT'"
