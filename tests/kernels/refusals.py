"""Arguments as they must not be, for the tests of what launchers refuse."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcanary_cli.kernels._vector_backends import Backend


def changed(backend: Backend, array: Any, change: Any) -> Any:
    """An argument as it must not be: of another dtype, rank, width, length, or with gaps; or the value itself."""
    values = backend.get(array) if isinstance(change, str) else None
    if values is None:
        return change
    if change == "gaps":
        return backend.put(np.repeat(values, 2, axis=-1))[..., ::2]
    others = {
        "flat": values.reshape(-1),
        "deep": values[None],
        "narrow": values[..., :-1],
        "short": values[:-1],
        "long": np.concatenate([values, values[:1]]),
    }
    return backend.put(others[change] if change in others else values.astype(change))


def in_words_of(backend: Backend, message: str) -> str:
    """A message with dtypes written as the backend's array library writes them."""
    prefix = "torch." if backend.name == "triton" else ""
    return message.format(int64=f"{prefix}int64", int32=f"{prefix}int32", uint8=f"{prefix}uint8")
