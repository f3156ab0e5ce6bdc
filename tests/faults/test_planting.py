"""Planting as a whole: what may be asked for, same seed same trace, several faults in one trace."""

from __future__ import annotations

import io
import random

import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.faults.planting import dress, parse_fault, plant, plant_all
from kvcanary_cli.faults.stream import NotApplicable
from kvcanary_cli.faults.table import FAULTS, SCENARIO_NAMES
from kvcanary_cli.kinds import KINDS
from kvcanary_cli.sim.scenarios import SCENARIOS
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import TraceWriter, encode_event
from tests.faults.streams import expand, made, replayed


def lines(header, events):
    return [encode_event(event) for event in (header, *events)]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("K07", ("K07", 1)),
        ("K07:4", ("K07", 4)),
        ("K07=4", ("K07", 4)),
        ("k07", ("K07", 1)),
        ("c1:2", ("C1", 2)),
        ("late-remote-write:3", ("K07", 3)),
        ("Row-Width", ("C5", 1)),
    ],
)
def test_parse_fault(text, parsed):
    assert parse_fault(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("K7", "fault `K7` is not known, did you mean `K07 late-remote-write`?"),
        ("K99", "fault `K99` is not known"),
        ("", "fault `` is not known"),
        ("late-remote-wite", "fault `late-remote-wite` is not known, did you mean `K07 late-remote-write`?"),
        ("K07:0", "fault `K07:0` asks for `0` places, a number from 1 to 1,000 is needed"),
        ("K07:", "fault `K07:` asks for `` places, a number from 1 to 1,000 is needed"),
        ("K07:x", "fault `K07:x` asks for `x` places, a number from 1 to 1,000 is needed"),
        ("K07:1001", "fault `K07:1001` asks for `1001` places, a number from 1 to 1,000 is needed"),
        ("K07:²", "fault `K07:²` asks for `²` places, a number from 1 to 1,000 is needed"),
    ],
)
def test_parse_fault_refuses(text, message):
    with pytest.raises(UsageError) as error:
        parse_fault(text)
    assert error.value.message == message


def test_the_table_has_every_kind_and_knows_the_scenarios():
    assert list(FAULTS) == list(KINDS)
    assert tuple(SCENARIOS) == SCENARIO_NAMES
    assert all(set(entry.scenarios) <= set(SCENARIOS) for entry in FAULTS.values())
    assert {entry.name for entry in FAULTS.values()} == set(KINDS.values())


@pytest.mark.parametrize("kind", FAULTS)
def test_every_planter_says_what_finds_it(kind):
    text = FAULTS[kind].planter.__doc__
    assert text.startswith(f"{kind}: ")
    assert "\n\n    Found by: " in text
    assert "\n\n    Silent: " in text


@pytest.mark.parametrize("kind", FAULTS)
def test_same_seed_same_trace(kind):
    header, events = made(FAULTS[kind].scenarios[-1])
    first, again = (plant(header, events, kind, 6) for _ in range(2))
    assert lines(*first[:2]) == lines(*again[:2])
    assert first[2] == again[2]


@pytest.mark.parametrize("kind", ["K01", "K10", "K21", "K22"])
def test_another_seed_is_another_place(kind):
    header, events = made("mixed")
    places = {str(plant(header, events, kind, seed)[2]) for seed in range(6)}
    assert len(places) > 3


@pytest.mark.parametrize("kind", FAULTS)
def test_events_that_came_in_stay_as_they_were(kind):
    header, events = made(FAULTS[kind].scenarios[0])
    before = lines(header, events)
    plant(header, events, kind, 1)
    assert lines(header, events) == before


@pytest.mark.parametrize("kind", FAULTS)
def test_damaged_traces_can_be_written_and_read(kind, tmp_path):
    damaged, events, _ = plant(*made(FAULTS[kind].scenarios[-1]), kind, 8)
    path = tmp_path / "t.jsonl"
    with TraceWriter(str(path), damaged) as writer:
        for event in events:
            writer.write(event)
    with open_trace(str(path)) as reader:
        assert lines(reader.header, [event for _, event in reader]) == lines(damaged, events)


@pytest.mark.parametrize("kind", FAULTS)
def test_the_damage_is_more_than_the_dress(kind):
    header, events = made(FAULTS[kind].scenarios[-1])
    assert lines(*dress(header, events, kind, 4)) != lines(*plant(header, events, kind, 4)[:2])


def test_the_global_random_state_is_left_alone():
    random.seed(1)
    before = random.getstate()
    plant(*made("mixed"), "K12", 1)
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("kind", "name", "page_size", "lack"),
    [
        ("K14", "mixed", 16, "it has no sliding-window group"),
        ("K16", "mixed", 16, "no forward verifies drafts"),
        ("C3", "mixed", 16, "no forward verifies more draft tokens than it has lanes"),
        ("K13", "decode", 1, "its pages have one slot, so that there are no page edges"),
    ],
)
def test_no_place(kind, name, page_size, lack):
    with pytest.raises(NotApplicable) as error:
        plant(*made(name, page_size=page_size), kind, 0)
    assert error.value.message == f"{kind} {KINDS[kind]} has no place in this trace: {lack}"
    assert error.value.hint.startswith("scenarios that have one: ")


@pytest.mark.parametrize("kind", FAULTS)
def test_an_empty_trace_has_no_place_for_anything(kind):
    header, _ = made("mixed")
    with pytest.raises(NotApplicable):
        plant(header, [], kind, 0)


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind.startswith("K")])
def test_a_trace_whose_state_is_unknown_gets_no_wrong_answers(kind):
    """Slots of unknown ownership are never handed to guests."""
    header, events = made(FAULTS[kind].scenarios[-1])
    unknown = type(header)(
        **{name: getattr(header, name) for name in header.__struct_fields__} | {"state": "unknown"}
    )
    try:
        damaged, after, (answer,) = plant(unknown, events, kind, 2)
    except NotApplicable:
        return
    assert answer.step >= 0
    assert replayed(damaged, after).result.totals.steps >= 40


def test_count_plants_at_different_places():
    answers = plant(*made("mixed", steps=120), "K21", 7, count=4)[2]
    assert [answer.kind for answer in answers] == ["K21"] * 4
    assert len({tuple(map(tuple, answer.slots)) for answer in answers}) == 4
    assert [answer.step for answer in answers] == sorted(answer.step for answer in answers)
    assert len({answer.rid for answer in answers}) == 4


def test_faults_of_many_kinds_leave_each_other_alone():
    wanted = [
        (kind, 1) for kind in ("K01", "K03", "K07", "K10", "K12", "K15", "K19", "K21", "K25", "C5", "C6")
    ]
    damaged, events, answers = plant_all(*made("mixed", steps=200), wanted, 5)
    assert sorted(answer.kind for answer in answers) == sorted(kind for kind, _ in wanted)
    allowed = set()
    for answer in answers:
        for pairs in (answer.slots, answer.side, answer.innocent.slots):
            allowed |= expand(pairs)
    seen = replayed(damaged, events)
    assert set(seen.bits) <= allowed
    for answer in answers:
        named = expand(answer.slots) & set(seen.first)
        assert named, answer.kind
        assert min(seen.first[key] for key in named) >= answer.step


def test_steps_of_earlier_faults_count_forwards_that_later_ones_add():
    header, events = made("mixed", steps=120)
    damaged, after, answers = plant_all(header, events, [("K21", 1), ("K22", 3)], 3)
    (flip,) = [answer for answer in answers if answer.kind == "K21"]
    seen = replayed(damaged, after)
    (slot,) = expand(flip.slots)
    assert seen.first[slot] == flip.found_by_step


def test_binary_output_of_a_planted_trace_is_stable():
    damaged, events, _ = plant(*made("swa"), "K14", 1)
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        with TraceWriter(file, damaged) as writer:
            for event in events:
                writer.write(event)
    assert files[0].getvalue() == files[1].getvalue()
    assert isinstance(events[0], ev.Bind)
