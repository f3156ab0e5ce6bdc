"""KV byte sources in torch memory, for the Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from kvcanary_cli.kernels._sources import SOURCE_COLUMNS, KvSource, table_rows

__all__ = ["KvSource", "source_table"]


def source_table(sources: Sequence[KvSource], hash_mode: int, device: torch.device) -> torch.Tensor:
    """[sources, 5] int64 on the device, what the kernels walk (`_sources.SOURCE_*`); empty in mode NONE.

    The table is kept and given again for the same memory, so only the first launch with these sources copies
    to the device: do one before capturing a graph. The sources' tensors must stay alive as long as it is used.
    """
    return _table(table_rows(sources, hash_mode), str(device))


@lru_cache(maxsize=256)
def _table(rows: tuple[tuple[int, ...], ...], device: str) -> torch.Tensor:
    # the rows say all there is about the memory, so an old table can't be wrong about new sources
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(rows), SOURCE_COLUMNS)
