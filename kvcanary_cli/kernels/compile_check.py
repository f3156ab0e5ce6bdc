"""Compile every Triton kernel for the GPUs we name, on a machine that may have none.

    python -m kvcanary_cli.kernels.compile_check

prints one line of JSON a kernel and target: `kernel`, `target`, `ok`, `error`, `variants`. Kernels are found, not
listed: every `_*_kernel` of a module in this package. Needs a process of its own in which TRITON_INTERPRET is not
set, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvcanary_cli import kernels

TARGETS = {"sm_80": 80, "sm_90": 90}
WARP_SIZE = 32

# Pointers are to int64 unless named here, scalars are int32 as they nearly always are.
INT32_POINTERS = {
    "cells_ptr",
    "pool_ptr",
    "out_pool_ptr",
    "num_valid_ptr",
    "out_num_valid_ptr",
    "enable_ptr",
    "out_enable_ptr",
    "out_write_index_ptr",
    "out_write_num_valid_ptr",
}

# Values that constants are compiled with; a constant that is missing here fails the check. The first values of all
# of them are compiled together, then the second ones: code under a flag is compiled with it and without, in a time
# that does not double with every flag.
CONSTANTS: dict[str, tuple[int | bool, ...]] = {
    "BLOCK": (128,),
    "STRIDE": (4,),
    "SMALL": (True,),
    "GRAIN": (16,),
    "ROWS": (2,),
    "UNROLL": (2,),
    "SLOTS": (32,),
    "WORDS": (32,),
    "EVEN": (False, True),
    "AFFINE": (False, True),
    "HAS_SOURCES": (False, True),
    "HAS_MAP": (False, True),
    "HAS_POOL": (False, True),
    "HAS_EXPECTED": (False, True),
    "CHECK_CHAIN": (False, True),
    "CHECK_TOKEN": (False, True),
}


def find_kernels() -> dict[str, Any]:
    """Name and function of every Triton kernel in this package."""
    found = {}
    for module in pkgutil.iter_modules(kernels.__path__):
        if module.name.endswith(("_cpu", "_ref")) or module.name == "compile_check":
            continue
        content = vars(importlib.import_module(f"{kernels.__name__}.{module.name}"))
        for name, value in content.items():
            if name.startswith("_") and name.endswith("_kernel") and hasattr(value, "arg_names"):
                found[name.removeprefix("_").removesuffix("_kernel")] = value
    return dict(sorted(found.items()))


def variants(kernel: Any) -> Iterator[dict[str, int | bool]]:
    """All first values of the kernel's constants, then all second ones. KeyError names one that has no values here."""
    values = {name: CONSTANTS[name] for name in kernel.arg_names if name.isupper()}
    for number in range(max(map(len, values.values()), default=1)):
        yield {name: those[min(number, len(those) - 1)] for name, those in values.items()}


def compile_kernel(kernel: Any, constants: dict[str, int | bool], capability: int) -> Any:
    """The compiled kernel; `asm` holds its code. Triton's own errors pass through."""
    signature = {name: _type_of(name) for name in kernel.arg_names}
    # torch allocates on 256 bytes, and launchers pass whole tensors
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if name.endswith("_ptr")
    }
    source = ASTSource(kernel, signature, constexprs=dict(constants), attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, WARP_SIZE))


def check_kernel(name: str, kernel: Any, target: str) -> dict[str, object]:
    """Compile all variants of one kernel for one target."""
    compiled = 0
    error = ""
    try:
        for constants in variants(kernel):
            compile_kernel(kernel, constants, TARGETS[target])
            compiled += 1
    except Exception as caught:  # whatever the compiler throws is the result
        error = f"{type(caught).__name__}: {caught}"
    return {"kernel": name, "target": target, "ok": not error, "error": error, "variants": compiled}


def main() -> int:
    """Check all kernels for all targets. Returns 1 if one does not compile."""
    is_ok = True
    for name, kernel in find_kernels().items():
        for target in TARGETS:
            result = check_kernel(name, kernel, target)
            is_ok = is_ok and bool(result["ok"])
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()
    return 0 if is_ok else 1


def _type_of(name: str) -> str:
    if name.isupper():
        return "constexpr"
    if name.endswith("_ptr"):
        return "*i32" if name in INT32_POINTERS else "*i64"
    return "i32"


if __name__ == "__main__":
    sys.exit(main())
