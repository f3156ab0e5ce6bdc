"""KV byte sources in NumPy memory, for the Numba kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcanary_cli.kernels._sources import SOURCE_COLUMNS, KvSource, table_rows

__all__ = ["KvSource", "source_table"]


def source_table(sources: Sequence[KvSource], hash_mode: int) -> np.ndarray:
    """[sources, 5] int64, what the kernels walk (`_sources.SOURCE_*`); empty in mode NONE.

    The table holds addresses: the sources' arrays must stay alive as long as it is used.
    """
    rows = table_rows(sources, hash_mode)
    return np.array(rows, dtype=np.int64).reshape(len(rows), SOURCE_COLUMNS)
