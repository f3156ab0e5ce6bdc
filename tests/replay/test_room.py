"""Runs that do not fit are refused with numbers, before memory is taken."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import MissingError
from kvcanary_cli.replay.room import host_bytes, require_room
from kvcanary_cli.runtime.layout import layout_of
from kvcanary_cli.trace import events as ev
from tests.replay.driving import small_header


def layout(**changes: object):
    pool = {"slots": 64, "page_size": 4, "rows": 4, "row_width": 16} | changes
    return layout_of(small_header(pool=ev.Pool(**pool)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 10**6, "row_width": 10**6}, ["page table", "1,000,000 rows x 1,000,000 columns"]),
        ({"slots": 2**31 - 4}, ["ledger", "2,147,483,644 slots"]),
    ],
    ids=["table", "slots"],
)
def test_the_largest_part_is_named_with_its_sizes(changes, words):
    with pytest.raises(MissingError, match="GiB are free") as caught:
        require_room(layout(**changes), is_cpu=True, available=2**34)
    for word in [*words, "16.00 GiB are free"]:
        assert word in caught.value.message
    assert "in the trace's header" in caught.value.hint


def test_a_long_log_names_its_flag():
    with pytest.raises(MissingError) as caught:
        require_room(layout_of(small_header(), ring_capacity=10**9), is_cpu=True, available=2**30)
    assert "the largest part is ring with 59.60 GiB: 1,000,000,000 rows" in caught.value.message
    assert caught.value.hint == "`--ring 1024`"


def test_wide_sources_are_named():
    source = ev.Source(name="k", bytes_per_slot=2**26, hashed_bytes=16)
    with pytest.raises(MissingError, match=r"kv with 4\.00 GiB: 64 slots x 67,108,864 bytes"):
        require_room(layout_of(small_header(sources=[source])), is_cpu=True, available=2**30)


def test_the_limit_itself_fits():
    need = sum(host_bytes(layout(), is_cpu=True).values())
    require_room(layout(), is_cpu=True, available=need)
    with pytest.raises(MissingError):
        require_room(layout(), is_cpu=True, available=need - 1)


def test_with_a_gpu_the_pool_is_not_on_the_host():
    parts = host_bytes(layout(), is_cpu=False)
    assert not {"stamps", "kv"} & set(parts)
