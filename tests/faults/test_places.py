"""How planters choose places: room that stays free, victims that are read again, prefixes that stay."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.faults.addressing import same_distance
from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.faults.prefixes import cached_prefixes, quiet_units
from kvcanary_cli.faults.scenes import find_scene, free_units
from kvcanary_cli.faults.stream import NotApplicable, Stream
from kvcanary_cli.faults.victims import private_victim
from kvcanary_cli.trace import events as ev
from tests.faults.streams import made


def opened(name, **options):
    stream = Stream(*made(name, **options))
    stream.start("seed")
    return stream


@pytest.mark.parametrize(("page_size", "unit"), [(1, 8), (3, 9), (4, 8), (8, 8), (16, 16)])
def test_unit(page_size, unit):
    header, events = made("mixed")
    pool = ev.Pool(slots=960, page_size=page_size, rows=5, row_width=64)
    assert Stream(ev.Header(format="x", version=1, pool=pool), events).unit == unit
    assert Stream(header, events).unit == 16


def test_places_are_neither_early_nor_late():
    stream = opened("mixed", steps=48)
    assert [step.number for step in stream.middle()] == list(range(6, 40))
    short = Stream(*made("mixed", steps=5))
    assert [step.number for step in short.middle()] == [2]


@pytest.mark.parametrize("name", ["decode", "spec", "swa"])
def test_free_units_stay_free(name):
    stream = opened(name)
    size = stream.header.pool.page_size
    for step, state in stream.visit(stream.middle()[::5]):
        end = stream.survey.steps[step.number + 2].index
        units = free_units(stream, state, step.index, end)
        flat = [slot for unit in units for slot in unit]
        assert len(set(flat)) == len(flat)
        assert all(slot in state.free and slot >= size for slot in flat)
        given = [
            cell.event for cell in stream.cells[step.index : end + 1] if isinstance(cell.event, ev.Alloc)
        ]
        assert not set(flat) & {slot for event in given for slot in event.slots.tolist()}


def test_slots_of_earlier_faults_are_not_free():
    stream = opened("mixed")
    scene = find_scene(stream, 1)
    stream.used.update(slot for unit in scene.units for slot in unit)
    stream.start("seed")
    again = find_scene(stream, 1)
    assert not {slot for unit in again.units for slot in unit} & stream.used


def test_guests_have_rows_of_their_own():
    stream = opened("decode")
    scene = find_scene(stream, 3)
    rows = [scene.guest(f"guest-{number}", 1).row for number in range(3)]
    begin, end = scene.steps[0].index, scene.steps[-1].index
    busy = {s.row for s in stream.survey.sessions if s.begin <= end and s.end >= begin}
    assert len(set(rows)) == 3
    assert not set(rows) & busy
    assert max(rows) < stream.header.pool.rows


def test_the_table_grows_where_all_rows_are_in_use():
    stream = opened("mixed")
    rows = stream.header.pool.rows
    taken = {stream.spare_row(0, 10_000) for _ in range(rows)}
    assert max(taken) >= rows
    assert stream.header.pool.rows == max(taken) + 1


@pytest.mark.parametrize("name", ["decode", "prefill", "mixed", "spec"])
def test_a_victim_holds_its_slots_alone_and_reads_them_twice(name):
    stream = opened(name)
    victim = private_victim(stream, spare=1)
    stream.commit()
    state, read = Ownership(stream.header), []
    for cell in stream.cells:
        if isinstance(cell.event, ev.Forward):
            for lane in state.lanes(cell.event):
                if lane.rid == victim.rid and cell in (victim.first, victim.then):
                    row = state.row(lane.row, victim.at, victim.at + stream.unit + 1).tolist()
                    assert row[:-1] == victim.slots
                    assert row[-1] != 0
                    assert all(state.holders_of(slot) == {victim.rid} for slot in victim.slots)
                    assert lane.prefix > victim.at + stream.unit
                    read.append(cell)
        state.apply(cell.event)
    assert read == [victim.first, victim.then]


@pytest.mark.parametrize(("name", "steps"), [("shared-prefix", 40), ("decode", 100)])
def test_cached_prefixes_stay_cached_and_have_the_tokens_of_their_publisher(name, steps):
    stream = opened(name, steps=steps)
    seen = 0
    for step, state in stream.visit(stream.middle()[::6]):
        later = [cell.event for cell in stream.cells[step.index :] if isinstance(cell.event, ev.Evict)]
        gone = {slot for event in later for slot in event.slots.tolist()}
        for prefix in cached_prefixes(stream, state, step.index, len(stream.cells) - 1, 2):
            seen += 1
            assert [state.cached[slot][0] for slot in prefix.slots] == list(range(32))
            rid, _ = state.content[prefix.slots[-1]]
            assert prefix.tokens == state.tokens(rid, 0, 32)
            assert all("cache" in state.holders_of(slot) for slot in prefix.slots)
            assert not set(prefix.slots) & gone
    assert seen


def test_quiet_units_are_not_named_again_and_never_the_first_of_a_prefix():
    stream = opened("chunked", steps=60)
    seen = 0
    for step, state in stream.visit(stream.middle()[::6]):
        named = set()
        for cell in stream.cells[step.index :]:
            slots = getattr(cell.event, "slots", None)
            if slots is not None and not isinstance(cell.event, ev.Forward):
                named.update(slots.tolist())
        for unit in quiet_units(stream, state, step.index):
            seen += 1
            assert not set(unit) & named
            assert state.cached[unit[0]][0] >= stream.unit
            assert all(state.holders_of(slot) == {"cache"} for slot in unit)
    assert seen


def test_nothing_is_quiet_without_a_later_sweep():
    header, events = made("chunked", steps=60)
    stream = Stream(header, [event for event in events if not isinstance(event, ev.Sweep)])
    assert not any(
        quiet_units(stream, state, step.index) for step, state in stream.visit(stream.middle()[::6])
    )


def test_same_distance():
    assert same_distance([10, 11, 12], [4, 5, 6]) == 3
    assert same_distance([10, 11, 13], [4, 5, 6]) == 2
    assert same_distance([10, 20, 30], [4, 5, 6]) == 1
    assert same_distance([10, 11], [4, 5, 6]) == 2


def test_a_pool_that_is_full_has_no_scene():
    header, events = made("mixed")
    full = [ev.Alloc(to="hog", slots=np.arange(16, header.pool.slots)), *events]
    with pytest.raises(NotApplicable, match=r"it nowhere has 48 slots that stay free for 3 forwards"):
        find_scene(Stream(header, full), 3)


def test_rows_that_are_too_narrow():
    header, events = made("mixed")
    pool = ev.Pool(slots=header.pool.slots, page_size=16, rows=header.pool.rows, row_width=40)
    narrow = ev.Header(format="x", version=1, pool=pool)
    with pytest.raises(NotApplicable, match="rows of 48 columns are needed, they have 40"):
        find_scene(Stream(narrow, events), 3)
