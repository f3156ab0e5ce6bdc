"""Device copies of what the host keeps: page table, expected tokens, window map.

The host's arrays are the masters. They list what changed; before each forward the listed cells are fetched
with the values that they have now, so it does not matter how often or in which order a cell changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import triton
import triton.language as tl

from kvcanary_cli.kernels.scatter import launch_scatter
from kvcanary_cli.runtime.calls import IntArray
from kvcanary_cli.runtime.expected import UNKNOWN, ExpectedTokens
from kvcanary_cli.runtime.layout import Layout
from kvcanary_cli.runtime.page_table import PageTable

DEFAULT_BLOCK = 1024  # cells a program; a decode forward changes one cell a lane


class Mirrors:
    """The device's copies, filled from the masters when made.

    Attributes:
        table: [num_rows, width] int32 page table.
        expected: [num_rows, width] int32 expected tokens, UNKNOWN where nothing was ever expected.
        swa_map: [num_slots] int64 full-to-window map; the identity for a single window pool, else None.

    ValueError unless both masters were made with `track_changes`.
    """

    def __init__(
        self,
        layout: Layout,
        table: PageTable,
        swa_map: IntArray,
        expected: ExpectedTokens,
        device: torch.device,
    ) -> None:
        if table.changed is None or expected.changed is None:
            raise ValueError(
                "a device keeps copies of table and expected tokens: both must track their changes"
            )
        self._table_master = table
        self._expected_master = expected
        self._swa_master = swa_map
        self._swa_changed: list[IntArray] = []
        shape = (table.num_rows, table.width)
        self.table = torch.from_numpy(table.entries.reshape(shape)).to(device, copy=True)
        if expected.pool is None:
            self.expected = torch.full(shape, UNKNOWN, dtype=torch.int32, device=device)
        else:
            self.expected = torch.from_numpy(expected.pool).to(device, copy=True)
        self.swa_map = _window_map(layout, swa_map, device)
        table.changed.clear()
        expected.changed.clear()

    def note_swa_map(self, full: IntArray) -> None:
        """Entries [n] of the window map changed."""
        self._swa_changed.append(full)

    def take_changes(self) -> dict[str, IntArray]:
        """What changed since the last call, as arrays for `Staging.send`; nothing changed: no arrays."""
        return {**self._table_changes(), **self._expected_changes(), **self._swa_changes()}

    def store(self, sent: Mapping[str, torch.Tensor]) -> None:
        """Bring changes that were sent into the copies."""
        if "table_cells" in sent:
            launch_store_cells(
                cells=sent["table_cells"], values=sent["table_values"], out_memory=self.table.view(-1)
            )
        if "scatter_rows" in sent:
            launch_scatter(
                flat=sent["scatter_flat"],
                offsets=sent["scatter_offsets"],
                req_pool_indices=sent["scatter_rows"],
                pool=self.expected,
            )
        if "expected_cells" in sent:
            launch_store_cells(
                cells=sent["expected_cells"],
                values=sent["expected_values"],
                out_memory=self.expected.view(-1),
            )
        if "swa_cells" in sent and self.swa_map is not None:
            launch_store_cells(cells=sent["swa_cells"], values=sent["swa_values"], out_memory=self.swa_map)

    def _table_changes(self) -> dict[str, IntArray]:
        spans = self._table_master.changed
        if not spans:
            return {}
        starts = np.concatenate([starts for starts, _ in spans])
        stops = np.concatenate([stops for _, stops in spans])
        spans.clear()
        written = stops > starts
        if not written.all():
            starts, stops = starts[written], stops[written]
        if not starts.size:
            return {}
        entries = self._table_master.entries
        cells = _cells(starts, stops, entries.size)
        return {"table_cells": cells, "table_values": entries[cells].astype(np.int64)}

    def _expected_changes(self) -> dict[str, IntArray]:
        changed, pool = self._expected_master.changed, self._expected_master.pool
        if not changed or pool is None:
            return {}
        ranges = np.array(changed, np.int64)
        changed.clear()
        arrays: dict[str, IntArray] = {}
        whole = ranges[ranges[:, 1] == 0]  # rewritten from the start, as the server's scatter does
        if whole.size:
            # the scatter takes no row twice: of several ranges that start at 0, the longest has all the others
            longest = np.zeros(pool.shape[0], np.int64)
            np.maximum.at(longest, whole[:, 0], whole[:, 2])
            rows = np.nonzero(longest)[0]
            stops = longest[rows]
            arrays["scatter_rows"] = rows
            arrays["scatter_offsets"] = np.concatenate(([0], np.cumsum(stops)))
            parts = [pool[row, :stop] for row, stop in zip(rows.tolist(), stops.tolist(), strict=True)]
            arrays["scatter_flat"] = np.concatenate(parts).astype(np.int64)
        rest = ranges[ranges[:, 1] != 0]
        if rest.size:
            base = rest[:, 0] * pool.shape[1]
            cells = _cells(base + rest[:, 1], base + rest[:, 2], pool.size)
            arrays["expected_cells"] = cells
            arrays["expected_values"] = pool.reshape(-1)[cells].astype(np.int64)
        return arrays

    def _swa_changes(self) -> dict[str, IntArray]:
        if not self._swa_changed:
            return {}
        cells = np.concatenate(self._swa_changed)
        self._swa_changed.clear()
        return {"swa_cells": cells, "swa_values": self._swa_master[cells]}


def _window_map(layout: Layout, swa_map: IntArray, device: torch.device) -> torch.Tensor | None:
    if layout.maps_window:
        return torch.from_numpy(swa_map).to(device, copy=True)
    if layout.groups[0].window > 0:
        # the plan takes no window without a map; of a single pool every slot is its own window slot
        return torch.arange(layout.groups[0].num_slots, dtype=torch.int64, device=device)
    return None


def _cells(starts: IntArray, stops: IntArray, num_cells: int) -> IntArray:
    """Cells of all ranges [start, stop), one after another; at most all cells there are."""
    lens = stops - starts
    total = int(lens.sum())
    if total > num_cells:
        return np.arange(num_cells)
    if total == starts.size and lens.min() == 1:
        return starts  # a decode step: one cell a lane
    before = np.cumsum(lens) - lens
    cells: IntArray = np.arange(total) + np.repeat(starts - before, lens)
    return cells


def launch_store_cells(
    *, cells: torch.Tensor, values: torch.Tensor, out_memory: torch.Tensor, block: int = DEFAULT_BLOCK
) -> None:
    """Store `values[i]` at `out_memory[cells[i]]`.

    Args:
        cells: [n] int64. Those outside of the memory are skipped; a repeated one must have equal values.
        values: [n] int64, cut to the memory's type.
        out_memory: [num_cells] int32 or int64, contiguous. Cells that are not named stay.
        block: cells a program, a power of two.

    Contract: no host sync, no allocation.
    """
    num_stores = cells.shape[0]
    if num_stores == 0:
        return
    _store_cells_kernel[(triton.cdiv(num_stores, block),)](
        cells,
        values,
        out_memory,
        num_stores,
        out_memory.shape[0],
        BLOCK=block,
    )


@triton.jit(do_not_specialize=["num_stores", "num_cells"])
def _store_cells_kernel(
    cells_ptr,  # [num_stores] int64
    values_ptr,  # [num_stores] int64
    out_memory_ptr,  # [num_cells] int32 or int64
    num_stores,  # scalar
    num_cells,  # scalar
    BLOCK: tl.constexpr,
):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < num_stores
    cells = tl.load(cells_ptr + offs, mask=mask, other=-1)
    values = tl.load(values_ptr + offs, mask=mask, other=0)
    inside = mask & (cells >= 0) & (cells < num_cells)
    tl.store(out_memory_ptr + cells, values.to(out_memory_ptr.dtype.element_ty), mask=inside)
