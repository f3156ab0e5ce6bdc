"""Incidents as they turn up: each once, at the step at which something is known of it."""

from __future__ import annotations

from kvcanary_cli.replay import watch
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import run_replay
from tests.replay.driving import CPU, one_request, small_header
from tests.report import made


def told(events, **options):
    """(step, kind) of each announcement, and the result."""
    found = []
    counts = []
    result = run_replay(
        small_header(),
        enumerate(events, 2),
        ReplayOptions(device=CPU, **options),
        path="t.jsonl",
        on_incident=lambda step, incident: found.append((step, incident.kind)),
        on_progress=lambda step, entries, incidents: counts.append(incidents),
    )
    return found, counts, result


def test_each_incident_once_when_it_turns_up():
    found, counts, result = told(made.damaged())
    assert found == [(3, "K07"), (7, "K01"), (9, "K21")]
    assert counts == [0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
    assert len(result.incidents) == 3


def test_a_clean_run_says_nothing():
    assert told(one_request())[0] == []


def test_what_was_not_diagnosed_early_is_told_at_the_end(monkeypatch):
    monkeypatch.setattr(watch, "MOST_LOOKS", 0)
    found, counts, _ = told(made.damaged())
    assert found == [(10, "K07"), (10, "K01"), (10, "K21")]
    assert set(counts) == {0}


def test_a_breach_after_the_last_forward_is_told_at_the_end():
    assert told(made.damaged(), limit_steps=3)[0] == [(2, "K07")]


def test_diagnosis_runs_only_when_something_is_new(monkeypatch):
    calls = []
    real = watch.diagnose
    monkeypatch.setattr(watch, "diagnose", lambda *args: calls.append(1) or real(*args))
    told(made.damaged())
    # K07's breach comes with step 3; its shadow, K01's breach, its damage and its shadow, the flip
    assert len(calls) <= 5
