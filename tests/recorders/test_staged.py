"""Copies of tensors are of the moment in which they were staged, whatever happens to the tensors after it."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.recorders.staged import Staged

PLACES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", marks=pytest.mark.gpu, id="cuda")]


@pytest.mark.parametrize("place", PLACES)
def test_copy_keeps_what_was_there(place):
    torch = pytest.importorskip("torch")
    table = torch.zeros((257, 4096), dtype=torch.int32, device=place)
    rows = torch.arange(1, 257, device=place)
    staged = []
    for step in range(50):
        columns = torch.full((256,), step, device=place)
        slots = torch.arange(256, device=place) + step
        table[rows, columns] = slots.to(torch.int32)
        staged.append((Staged([rows, columns, slots, table[rows, columns]]), Staged([table[1, : step + 1]])))
        slots.fill_(-1)
        columns.fill_(-1)
        table[1] = -1
        table[1, : step + 2] = torch.arange(step + 2, device=place)
    for step, (whole, row) in enumerate(staged):
        wanted = np.arange(256) + step
        assert np.array_equal(whole.numbers().reshape(4, -1)[2], wanted)
        assert np.array_equal(whole.numbers().reshape(4, -1)[3], wanted)
        assert row.numbers().dtype == np.int64
        assert np.array_equal(row.numbers()[:step], np.arange(step))
