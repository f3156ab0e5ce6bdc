"""Every kind of fault is found and named, by a rule of its own, and incremental verification sees the same."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from kvcanary_cli.faults.answers import compare, unplanted
from kvcanary_cli.faults.planting import plant
from kvcanary_cli.faults.stream import NotApplicable
from kvcanary_cli.kinds import KINDS
from kvcanary_cli.ledger.records import Breach
from kvcanary_cli.replay.diagnose import UNKNOWN, diagnose
from kvcanary_cli.replay.rules import RULES, Context
from kvcanary_cli.report.expectation import findings_of
from kvcanary_cli.report.incidents import incident_json
from kvcanary_cli.sim.scenarios import SCENARIOS, scenario
from kvcanary_cli.trace import events as ev
from tests.replay.driving import CPU, DEVICES, Found, replay_events, slots, small_header

STEPS = 40
HOME = {"K14": "swa", "K16": "spec", "C3": "spec"}  # kinds that need a window pool, or draft tokens

# found by numbers in the header, not by a rule about a case
BY_LIMIT = {"C1", "C2", "C3", "C4", "C7"}


def planted(kind: str, name: str, seed: int):
    """(header, events, answers) of one fault."""
    header, stream = scenario(name, steps=STEPS, seed=seed)
    return plant(header, list(stream), kind, seed)


def findings(found: Found, page_size: int) -> list[dict]:
    incidents = [incident_json(i, n, page_size) for n, i in enumerate(found.result.incidents, 1)]
    capacity = [asdict(violation) for violation in found.result.capacity_violations]
    return findings_of({"incidents": incidents, "capacity_violations": capacity})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_found_and_named_and_nothing_else_is(kind, device):
    header, events, answers = planted(kind, HOME.get(kind, "shared-prefix"), 0)
    reported = findings(replay_events(header, events, device), header.pool.page_size)
    (match,) = compare(answers, reported)
    assert match.found
    assert match.named_right, [finding["kind"] for finding in reported]
    assert match.in_time
    assert (match.false_slots, match.blamed_rids) == ([], [])
    spare = [reported[i]["kind"] for i in unplanted([match], reported)]
    assert [code for code in spare if code != "C7" or kind == "C7"] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_in_every_scenario(kind, name, seed):
    try:
        header, events, answers = planted(kind, name, seed)
    except NotApplicable:
        return
    reported = findings(replay_events(header, events), header.pool.page_size)
    (match,) = compare(answers, reported)
    assert match.named_right, [finding["kind"] for finding in reported]
    assert (match.false_slots, match.blamed_rids) == ([], [])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in BY_LIMIT])
def test_each_rule_is_needed(kind):
    """Without its rule a kind is not named any more."""
    header, events, answers = planted(kind, HOME.get(kind, "shared-prefix"), 0)
    result = replay_events(header, events).result
    context = Context(page_size=header.pool.page_size, num_slots=header.pool.slots, has_transfers=True)
    stories = result.stories.all()
    with_rule = {i.kind for i in diagnose(result.ledger.breaches, stories, context)}
    others = {code: rule for code, rule in RULES.items() if code != kind}
    without = {i.kind for i in diagnose(result.ledger.breaches, stories, context, others)}
    assert kind in with_rule
    assert kind not in without
    assert answers[0].kind == kind


def test_every_kind_has_a_rule_or_a_limit():
    assert set(RULES) | BY_LIMIT == set(KINDS)
    assert not set(RULES) & BY_LIMIT


def test_a_case_that_no_rule_explains_says_so():
    odd = Breach(rule="rule-of-the-future", step=3, line=9, group="full", slots=slots(8))
    (incident,) = diagnose([odd], [], Context(page_size=4, num_slots=64))
    assert (incident.kind, incident.strength.name, incident.slots) == (UNKNOWN, "UNKNOWN", [8])
    assert incident_json(incident, 1, 4)["name"] == "unknown-cause"


@pytest.mark.parametrize("name", ["shared-prefix", "swa", "spec"])
@pytest.mark.parametrize("kind", ["clean", *KINDS])
def test_incremental_verification_reports_the_same(kind, name):
    header, stream = scenario(name, steps=STEPS, seed=2)
    events = list(stream)
    if kind != "clean":
        try:
            header, events, _ = plant(header, events, kind, 2)
        except NotApplicable:
            assert HOME.get(kind, name) != name or kind == "K15"
            return
    full, incremental = (replay_events(header, events, CPU, incremental=mode) for mode in (False, True))
    assert _rows(incremental) == _rows(full)
    assert incremental.result.totals == full.result.totals
    assert incremental.result.counters.missing() == []


def test_incremental_verification_checks_less():
    header, stream = scenario("decode", steps=STEPS, seed=0)
    events = list(stream)
    full, incremental = (replay_events(header, events, CPU, incremental=mode) for mode in (False, True))
    assert sum(incremental.result.counters.entries) < sum(full.result.counters.entries) / 4
    assert incremental.result.totals.entries == full.result.totals.entries


def test_a_report_is_json():
    header, events, _ = planted("K07", "swa", 0)
    found = replay_events(header, events)
    assert json.loads(json.dumps(findings(found, header.pool.page_size)))


def _rows(found: Found) -> list[tuple[int, list[list[int]]]]:
    return [(batch.step, sorted(batch.rows.tolist())) for batch in found.batches]


@pytest.mark.parametrize("device", DEVICES)
def test_a_token_that_its_publisher_takes_back_is_the_wrong_input(device):
    """No check saw the token fail: the publisher of its slot says that the request has another one there."""
    tokens = [100 + position for position in range(8)]
    tokens[5] = 7
    publish = ev.Publish(rid="A", at=0, slots=np.arange(8, 16), tokens=tokens)
    # no truth is known beforehand: what the forward ran with is what the slots say
    forward = ev.Forward(rows=[1], prefix=[0], lens=[8], slots=np.arange(8, 16), tokens=list(range(100, 108)))
    events = [ev.Bind(row=1, rid="A"), ev.Alloc(to="A", slots=np.arange(8, 16)), forward, publish]
    (incident,) = replay_events(small_header(), events, device).result.incidents
    assert (incident.kind, incident.is_damaged, incident.slots) == ("K18", False, [13])
    assert incident.evidence[0].text.endswith("wrote token 105 at position 5 and publishes it as 7")
