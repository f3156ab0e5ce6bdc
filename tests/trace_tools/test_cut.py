"""A part of a trace is judged as the whole is: nothing is invented, and no finding of the part is lost."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.faults.stream import NotApplicable
from kvcanary_cli.sim.scenarios import SCENARIOS
from kvcanary_cli.trace.events import Forward, same_event
from kvcanary_cli.trace_tools.cut import (
    ASKED,
    count_steps,
    cut_requests,
    cut_steps,
    parse_span,
    requests_of,
)
from tests.trace_tools.made import clean, findings, original, replayed

KINDS = (
    "K01",
    "K02",
    "K04",
    "K06",
    "K07",
    "K08",
    "K10",
    "K11",
    "K12",
    "K15",
    "K20",
    "K21",
    "K22",
    "K25",
    "C6",
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_span_of_a_clean_trace_is_clean(name):
    header, events = clean(name)
    for first, last in ((5, 12), (30, 40), (50, 59)):
        done = cut_steps(header, events, first, last)
        result = replayed(done.header, done.events)
        assert findings(result) == 0
        assert result.totals.steps == done.steps_before + last - first + 1
        assert not result.began_unknown


@pytest.mark.parametrize("name", SCENARIOS)
def test_single_requests_of_a_clean_trace_are_clean(name):
    header, events = clean(name)
    for rid in requests_of(events)[::5]:
        done = cut_requests(header, events, [rid])
        assert findings(replayed(done.header, done.events)) == 0
        assert done.why[rid] == ASKED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["mixed", "swa", *(pytest.param(name, marks=pytest.mark.slow) for name in ("shared-prefix", "spec"))],
)
def test_a_span_around_a_fault_gives_the_same_incident(name, kind):
    try:
        header, events, answer, whole = original(name, kind)
    except NotApplicable:
        pytest.skip("the scenario has no place for it")
    done = cut_steps(header, events, max(0, answer.step - 1), answer.found_by_step + 1)
    result = replayed(done.header, done.events)
    assert [(i.kind, i.group) for i in result.incidents] == [(i.kind, i.group) for i in whole.incidents]
    for mine, theirs in zip(result.incidents, whole.incidents, strict=True):
        assert set(mine.slots) <= set(theirs.slots)
        assert mine.breaches == [] or mine.breaches[0].rule == theirs.breaches[0].rule


def test_the_span_itself_is_as_it_was():
    header, events = clean("mixed")
    done = cut_steps(header, events, 20, 29)
    forwards = [event for event in events if isinstance(event, Forward)][20:30]
    kept = [event for event in done.events if isinstance(event, Forward)][done.steps_before :]
    assert len(kept) == 10
    assert all(same_event(a, b) for a, b in zip(kept, forwards, strict=True))


def test_what_is_over_before_the_span_is_left_out():
    header, events = clean("prefill", steps=60)
    done = cut_steps(header, events, 50, 59)
    assert done.left_out
    assert count_steps(done.events) < 60
    assert set(done.why).isdisjoint(done.left_out)


def test_a_reader_of_a_prefix_brings_its_writer():
    header, events = clean("shared-prefix")
    brought = [rid for rid in requests_of(events) if len(cut_requests(header, events, [rid]).why) > 1]
    assert brought
    done = cut_requests(header, events, brought[:1])
    assert {why for rid, why in done.why.items() if rid != brought[0]} != {ASKED}


@pytest.mark.parametrize(
    ("text", "span"), [("3:9", (3, 9)), ("3:", (3, None)), (":9", (0, 9)), ("7:7", (7, 7))]
)
def test_spans(text, span):
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", ":", "9", "9:3", "a:b", "-1:4", "1:2:3", "１:2"])
def test_no_spans(text):
    with pytest.raises(UsageError, match="--steps"):
        parse_span(text)


def test_what_is_not_there():
    header, events = clean("mixed")
    with pytest.raises(UsageError, match="the trace has 60 steps"):
        cut_steps(header, events, 60, 70)
    with pytest.raises(UsageError, match="is not in the trace") as raised:
        cut_requests(header, events, ["req1"])
    assert raised.value.hint == "did you mean req-1?"
