"""Slot lists: runs in, arrays out, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.trace import slots
from kvcanary_cli.trace.slots import SlotListError, compress_slots, describe, element_path, parse_slots


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([7], [7]),
        ([4, 5, [8, 4]], [4, 5, 8, 9, 10, 11]),
        ([[3, 1]], [3]),
        ([[-1, 3], 5, 5, [4, 2]], [-1, 0, 1, 5, 5, 4, 5]),
        ([2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ([[2**63 - 2, 2]], [2**63 - 2, 2**63 - 1]),
    ],
)
def test_runs_are_expanded(value, expected):
    result = parse_slots(value)
    assert result.dtype == np.int64
    assert result.tolist() == expected


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ([], "", "the slot list is empty, it needs at least 1 slot"),
        (5, "", "a list of slots is expected, found 5"),
        (None, "", "a list of slots is expected, found null"),
        ([1, True], "[1]", "a slot number or a run [start, count] is expected, found true"),
        ([1, 2, 2.0], "[2]", "a slot number or a run [start, count] is expected, found 2.0"),
        (["7"], "[0]", 'a slot number or a run [start, count] is expected, found "7"'),
        ([None], "[0]", "a slot number or a run [start, count] is expected, found null"),
        ([1, []], "[1]", "a run is [start, count], found []"),
        ([1, [3]], "[1]", "a run is [start, count], found [3]"),
        ([[1, 2, 3]], "[0]", "a run is [start, count], found [1, 2, 3]"),
        ([[1, 0]], "[0][1]", "a run has at least 1 slot, found 0"),
        ([9, [1, -4]], "[1][1]", "a run has at least 1 slot, found -4"),
        ([[1, False]], "[0][1]", "a whole number is expected, found false"),
        ([[1.5, 2]], "[0][0]", "a whole number is expected, found 1.5"),
        ([[[1], 2]], "[0][0]", "a whole number is expected, found [1]"),
        ([1, 2**63], "[1]", "slot 9223372036854775808 does not fit into 64 bits"),
        ([1, -(2**63) - 1], "[1]", "slot -9223372036854775809 does not fit into 64 bits"),
        ([[2**63 - 2, 3]], "[0]", "slot 9223372036854775808 does not fit into 64 bits"),
        ([[1, 10**12]], "[0][1]", "a run has at most 67,108,864 slots, found 1,000,000,000,000"),
        ([[0, 2**26], 1], "", "the list has 67,108,865 slots, at most 67,108,864 are read"),
    ],
)
def test_bad_lists(value, path, message):
    with pytest.raises(SlotListError) as caught:
        parse_slots(value)
    assert (caught.value.path, caught.value.message) == (path, message)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 4], [[1, 4]]),
        ([9, 1, 2, 3, 4, 6, 7, 8], [9, [1, 4], 6, 7, 8]),
        ([4, 3, 2, 1], [4, 3, 2, 1]),
        ([5, 5, 5, 5], [5, 5, 5, 5]),
        ([-1, 0, 1, 2, 2], [[-1, 4], 2]),
    ],
)
def test_four_consecutive_slots_become_a_run(array, expected):
    assert compress_slots(np.array(array)) == expected


slot_arrays = st.lists(st.tuples(st.integers(-3, 200), st.integers(1, 9)), min_size=1, max_size=12).map(
    lambda runs: np.concatenate([np.arange(start, start + count) for start, count in runs])
)


@given(slot_arrays)
def test_round_trip(array):
    np.testing.assert_array_equal(parse_slots(compress_slots(array)), array)


@given(slot_arrays)
def test_element_path_finds_the_element_of_every_slot(array):
    elements = compress_slots(array)
    for index, slot in enumerate(array.tolist()):
        element = elements[int(element_path(elements, index)[1:-1])]
        assert slot == element or slot in range(element[0], sum(element))


def test_element_path_counts_repeated_slots_one_by_one():
    assert [element_path([5, [5, 2], 5], index) for index in range(4)] == ["[0]", "[1]", "[1]", "[2]"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.0, "1.0"),
        ("a", '"a"'),
        ('é "\n', r'"é \"\n"'),
        ({"a": 1}, "an object"),
        ([1, "a"], '[1, "a"]'),
        (list(range(9)), "a list of 9"),
        ("x" * 100, '"' + "x" * 56 + "..."),
    ],
)
def test_values_in_messages(value, text):
    assert describe(value) == text


def test_the_largest_list_is_still_read(monkeypatch):
    monkeypatch.setattr(slots, "MAX_SLOTS", 8)
    assert len(parse_slots([[0, 8]])) == 8
    with pytest.raises(SlotListError, match="at most 8"):
        parse_slots([[0, 9]])
