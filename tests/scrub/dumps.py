"""Small dumps for the tests of `scrub`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kvcanary_cli.trace.safetensors_writer import RawTensor, write_safetensors


def arrays(num_slots: int = 40, *, layers: int = 11, width: int = 8, seed: int = 3) -> dict[str, np.ndarray]:
    """K and V of several layers, [slots, 2, width] uint16, every slot with other bytes than every other."""
    numbers = np.random.default_rng(seed)
    return {
        f"{kv}.{layer}": numbers.integers(0, 1 << 15, (num_slots, 2, width), dtype=np.uint16)
        for layer in range(layers)
        for kv in "kv"
    }


def dump(path: Path, tensors: dict[str, np.ndarray], dtype: str = "BF16") -> str:
    """Write uint16 arrays under a type of two bytes."""
    write_safetensors(
        path, {name: RawTensor(dtype=dtype, shape=data.shape, data=data) for name, data in tensors.items()}
    )
    return str(path)


def file_of(path: Path, header: object, data: bytes = b"") -> str:
    """Write a file with any header: text as it is, anything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)
