"""A failing trace shrinks by a large factor and keeps its incident; a budget ends the search honestly."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.trace.events import Forward
from kvcanary_cli.trace_tools.minimise import Search, minimise
from kvcanary_cli.trace_tools.reduce import reduced, smallest
from kvcanary_cli.trace_tools.same import findings_of, keeps
from tests.trace_tools.made import DEVICE, clean, original, replayed

SLOW = (("mixed", "K01"), ("mixed", "K21"), ("spec", "K06"), ("shared-prefix", "K25"))


def search(header, events, number=1, **more):
    return Search(header, events, number, path="bad.jsonl", device=DEVICE, **more)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mixed", "K02"),
        ("mixed", "K07"),
        ("mixed", "K11"),
        ("spec", "K12"),
        ("swa", "K22"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW),
    ],
)
def test_a_fault_keeps_its_incident_in_a_tenth_of_the_events(name, kind):
    header, events, _, whole = original(name, kind)
    looked = search(header, events)
    done = minimise(looked, 1)
    assert done.stopped is None
    assert done.after.events * 10 <= done.before.events
    assert done.after.requests <= 3
    result = replayed(done.header, done.events)
    assert keeps(result, findings_of(whole)[0], findings_of(whole))
    assert {incident.kind for incident in result.incidents} == {whole.incidents[0].kind}


def test_the_same_trace_gives_the_same_reproducer():
    header, events, _, _ = original("mixed", "K11")
    one, two = (minimise(search(header, list(events)), 1) for _ in range(2))
    assert (one.after, one.replays, one.header) == (two.after, two.replays, two.header)


def test_no_single_event_can_be_left_out():
    header, events, _, _ = original("mixed", "K02")
    done = minimise(search(header, events), 1)
    again = search(done.header, done.events)
    for index in range(len(done.events)):
        assert not again.accept(done.events[:index] + done.events[index + 1 :])


def test_an_exceeded_capacity_can_be_kept():
    header, events, _, whole = original("mixed", "C2")
    done = minimise(search(header, events, len(whole.incidents) + 1), len(whole.incidents) + 1)
    assert done.target.kind == "C2"
    assert sum(isinstance(event, Forward) for event in done.events) <= 2


def test_a_budget_leaves_what_there_is():
    header, events, _, whole = original("mixed", "K01")
    looked = search(header, events, seconds=0)
    done = minimise(looked, 1)
    assert (done.stopped, done.after, done.replays) == ("budget", done.before, 1)
    assert keeps(replayed(done.header, done.events), looked.target, findings_of(whole))


def test_ctrl_c_leaves_what_there_is():
    header, events, _, _ = original("mixed", "K01")
    looked = search(header, events)
    looked._should_stop = lambda: looked.replays >= 20
    done = minimise(looked, 1)
    assert (done.stopped, done.replays) == ("interrupted", 20)
    assert done.after.events < done.before.events


def test_nothing_to_keep():
    header, events = clean("mixed")
    with pytest.raises(InputError, match="finds nothing"):
        search(header, events)
    header, events, _, _ = original("mixed", "K07")
    with pytest.raises(UsageError, match="--incident 9"):
        search(header, events, 9)


def test_reduced_is_minimal():
    tried = []

    def test(part):
        tried.append(list(part))
        return {3, 17}.issubset(part)

    assert reduced(list(range(40)), test) == [3, 17]
    assert len(tried) < 40
    assert reduced([1, 2, 3], lambda part: True) == []
    assert reduced([], lambda part: True) == []


def test_smallest_number():
    assert smallest(0, 100, lambda n: n >= 37) == 37
    assert smallest(0, 5, lambda n: False) == 5
