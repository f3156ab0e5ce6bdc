"""Decode steps that run before the host has followed them: the same findings, step by step, as one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.faults.planting import plant
from kvcanary_cli.faults.stream import NotApplicable
from kvcanary_cli.kinds import KINDS
from kvcanary_cli.replay import run as run_module
from kvcanary_cli.replay import run_ahead
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import run_replay
from kvcanary_cli.replay.violations import ViolationBatch
from kvcanary_cli.report.incidents import incident_json
from kvcanary_cli.runtime import ahead_gpu
from kvcanary_cli.runtime.ahead_gpu import AheadRuntime
from kvcanary_cli.runtime.stretch import Stretch
from kvcanary_cli.sim.scenarios import SCENARIOS, scenario
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import TraceWriter
from tests.cli import call
from tests.replay.ahead_cpu import CpuAhead
from tests.replay.driving import CPU, CUDA, Found, replay_events, slots

STEPS = 20
STRETCH = 16  # few, as the interpreter takes its time
A, B = 1, 2


class Watched(AheadRuntime):
    """Notes what became of every stretch."""

    stretches: list[tuple[int, bool]]

    def start_stretch(self, stretch: Stretch) -> None:
        self._steps = stretch.num_steps
        super().start_stretch(stretch)

    def end_stretch(self) -> bool:
        is_clean = super().end_stretch()
        self.stretches.append((self._steps, is_clean))
        return is_clean


@pytest.fixture
def ahead(monkeypatch, device):
    """Replays on the GPU backend; returns what was found and the stretches."""

    def replay(header: ev.Header, events, **options) -> tuple[Found, list[tuple[int, bool]]]:
        Watched.stretches = []

        def opened(_device, *masters, **_options):
            return Watched(*masters[:4], torch_device=device)

        with monkeypatch.context() as patch:
            patch.setattr(run_module, "open_runtime", opened)
            patch.setattr(ahead_gpu, "STRETCH_STEPS", STRETCH)
            return replay_events(header, events, CUDA, **options), Watched.stretches

    return replay


def header(**changes: object) -> ev.Header:
    """256 slots, 4 rows of 64 columns, no bytes."""
    pool = ev.Pool(slots=256, page_size=1, rows=4, row_width=64)
    return ev.Header(**{"format": "kvcanary-trace", "version": 1, "pool": pool, **changes})


def decode(steps: range, *, first: int = 0) -> Iterator[ev.Event]:
    """One token a step for A and B in slots 1 to 100 and 101 to 200, each allocated before its step."""
    for at in steps:
        own = slots(1 + at, 101 + at)
        yield ev.Alloc(to="A", slots=own[:1])
        yield ev.Alloc(to="B", slots=own[1:])
        yield ev.Forward(rows=[A, B], prefix=[at - first, at - first], slots=own)


def bound() -> list[ev.Event]:
    return [ev.Bind(row=A, rid="A"), ev.Bind(row=B, rid="B")]


def incidents(found: Found) -> list[dict[str, object]]:
    return [incident_json(incident, number, 1) for number, incident in enumerate(found.result.incidents, 1)]


def assert_same(found: Found, wanted: Found) -> None:
    assert sizes(found) == sizes(wanted)
    assert found.result.totals == wanted.result.totals
    assert found.result.capacity_violations == wanted.result.capacity_violations
    assert found.result.counters == wanted.result.counters
    assert found.result.counters.missing() == []
    if any(batch.lost for batch in wanted.batches):
        # which of thousands of rows are looked at depends on their order, which is free on a GPU
        assert {i["kind"] for i in incidents(found)} == {i["kind"] for i in incidents(wanted)}
        return
    assert [rows(batch) for batch in found.batches] == [rows(batch) for batch in wanted.batches]
    assert found.violations == wanted.violations
    assert incidents(found) == incidents(wanted)
    assert repr(found.result.ledger.breaches) == repr(wanted.result.ledger.breaches)


def sizes(found: Found) -> list[tuple[int, int]]:
    """Step and number of violations of each batch."""
    return [(batch.step, len(batch) + batch.lost) for batch in found.batches]


def rows(batch: ViolationBatch) -> list[tuple[int, ...]]:
    return sorted(map(tuple, batch.rows.tolist()))


def test_clean_steps_run_in_stretches(ahead):
    events = [*bound(), *decode(range(STEPS))]
    found, stretches = ahead(header(), events)
    assert stretches == [(16, True)]
    assert found.batches == []
    assert_same(found, replay_events(header(), events, CPU))


def test_a_stretch_of_affine_chains(ahead):
    events = [
        *bound(),
        *decode(range(STEPS)),
        ev.Stamp(slot=9, field="prev_hash", xor=4),
        *decode(range(STEPS, 40)),
    ]
    found, stretches = ahead(header(), events, is_affine=True)
    assert stretches[0] == (16, True)
    wanted = replay_events(header(), events, CPU, is_affine=True)
    assert {violation.slot for violation in wanted.violations} == {9, 10}
    assert_same(found, wanted)


def test_truth_is_checked_in_a_stretch(ahead):
    truth = ev.Truth(rid="A", at=0, tokens=[7] * STEPS)
    events = [*bound(), truth, *decode(range(STEPS))]
    wrong = [
        replace_tokens(event, [7 if event.prefix[0] != 9 else 8, 5])
        if isinstance(event, ev.Forward)
        else event
        for event in events
    ]
    found, stretches = ahead(header(), wrong)
    assert stretches == [(16, False)]
    assert found.batches[0].step == 10  # written by step 9, read by the next
    assert_same(found, replay_events(header(), wrong, CPU))


def replace_tokens(event: ev.Forward, tokens: list[int]) -> ev.Forward:
    return ev.Forward(rows=event.rows, prefix=event.prefix, slots=event.slots, tokens=tokens)


def test_a_stretch_that_finds_damage_is_undone(ahead):
    events = [*bound(), *decode(range(STEPS))]
    # step 12 of B writes the slot that A wrote at step 3: no clash within the step, a broken chain from then on
    forwards = [event for event in events if isinstance(event, ev.Forward)]
    forwards[12].slots[1] = 4
    found, stretches = ahead(header(), events)
    assert stretches == []  # the slot is written twice: not a stretch to begin with
    assert_same(found, replay_events(header(), events, CPU))
    assert found.batches


@pytest.mark.parametrize("step", [0, 5, 16, 19])
def test_damage_between_steps(ahead, step):
    events = [
        *bound(),
        *decode(range(step)),
        ev.Stamp(slot=1, field="position", xor=4),
        *decode(range(step, STEPS)),
    ]
    found, _stretches = ahead(header(), events)
    assert_same(found, replay_events(header(), events, CPU))


def test_a_stretch_over_old_damage_is_undone_and_then_steps_run_alone(ahead):
    events = [
        *bound(),
        *decode(range(8)),
        ev.Stamp(slot=3, field="token", xor=4, buffer="tail"),
        *decode(range(8, 2 * STEPS)),
    ]
    found, stretches = ahead(header(), events)
    assert stretches == [(8, True), (16, False)]
    assert [batch.step for batch in found.batches] == list(range(8, 2 * STEPS))
    assert_same(found, replay_events(header(), events, CPU))


def test_the_last_steps_before_a_sweep_of_the_interval_end_a_stretch(ahead):
    published = [ev.Publish(rid="A", at=0, slots=np.arange(1, 5))]
    events = [*bound(), *decode(range(4)), *published, *decode(range(4, STEPS))]
    found, stretches = ahead(header(), events, sweep_interval=12)
    # of the 16 steps after the publish 8 end at the sweep; the rest is read as far as the trace goes
    assert stretches == [(8, True)]
    assert found.result.totals.sweeps == 1
    assert_same(found, replay_events(header(), events, CPU, sweep_interval=12))


def test_window_group(ahead):
    groups = [ev.Group(kind="full"), ev.Group(kind="swa", window=6, slots=256)]
    every = np.arange(1, 201)
    events = [ev.SwaMap(full=every, swa=every[::-1].copy()), *bound(), *decode(range(STEPS))]
    found, stretches = ahead(header(groups=groups), events)
    assert stretches == [(16, True)]
    assert_same(found, replay_events(header(groups=groups), events, CPU))


def test_lanes_that_change_end_a_stretch(ahead):
    events = [
        *bound(),
        *decode(range(10)),
        ev.Forward(rows=[A], prefix=[10], slots=slots(11)),
        ev.Unbind(row=B),
        *(ev.Forward(rows=[A], prefix=[at], slots=slots(1 + at)) for at in range(11, 30)),
    ]
    found, stretches = ahead(header(), events)
    assert stretches == [(8, True), (16, True)]
    assert_same(found, replay_events(header(), events, CPU))


def test_stops_at_the_first_finding(ahead):
    events = [*bound(), *decode(range(8)), ev.Stamp(slot=3, field="token", xor=4), *decode(range(8, STEPS))]
    found, _ = ahead(header(), events, stop_on_violation=True)
    assert found.result.totals.steps == 9
    assert found.result.stopped == "violation"


def test_limit_of_steps_inside_a_stretch(ahead):
    events = [*bound(), *decode(range(STEPS))]
    found, _ = ahead(header(), events, limit_steps=5)
    assert found.result.totals.steps == 5
    assert found.result.limited == {"steps": 5}
    assert found.result.counters.missing() == []


def test_an_error_of_the_source_comes_after_what_was_read_before(ahead, monkeypatch, device):
    def broken() -> Iterator[tuple[int, ev.Event]]:
        yield from enumerate([*bound(), *decode(range(12))], 2)
        raise InputError("not JSON", where="t.jsonl:40")

    done: list[int] = []
    monkeypatch.setattr(
        run_module,
        "open_runtime",
        lambda _device, *masters, **_: AheadRuntime(*masters[:4], torch_device=device),
    )
    with pytest.raises(InputError, match="not JSON"):
        run_replay(
            header(),
            broken(),
            ReplayOptions(device=CUDA),
            path="t.jsonl",
            on_progress=lambda steps, *_: done.append(steps),
        )
    assert done == list(range(1, 13))


def without_bytes(head: ev.Header, events: list[ev.Event]) -> tuple[ev.Header, list[ev.Event]]:
    """The same trace of a pool that nobody records bytes of."""
    kept = [event for event in events if not isinstance(event, ev.Kv | ev.Digest)]
    return ev.Header(**{name: getattr(head, name) for name in head.__struct_fields__} | {"sources": []}), kept


def assert_kinds_agree(ahead, name: str, kinds: list[str], *, steps: int, seed: int) -> int:
    """Replays of planted faults on both backends; returns how many stretches ran."""
    ran = 0
    for kind in [None, *kinds]:
        head, stream = scenario(name, steps=steps, seed=seed)
        events = list(stream)
        if kind is not None:
            try:
                head, events, _ = plant(head, events, kind, seed)
            except NotApplicable:
                continue
        head, events = without_bytes(head, events)
        found, stretches = ahead(head, events)
        assert_same(found, replay_events(head, events, CPU))
        ran += len(stretches)
    return ran


@pytest.fixture
def ahead_on_cpu(monkeypatch):
    """As `ahead`, by Numba."""

    def replay(header: ev.Header, events, **options) -> tuple[Found, list[tuple[int, bool]]]:
        opened: list[CpuAhead] = []

        def open_one(_device, *masters, **_options):
            opened.append(CpuAhead(*masters[:4]))
            return opened[0]

        with monkeypatch.context() as patch:
            patch.setattr(run_module, "open_runtime", open_one)
            patch.setattr(run_ahead, "GRAIN", 1)  # the scenarios have few long stretches
            return replay_events(header, events, CPU, **options), opened[0].stretches

    return replay


@pytest.mark.parametrize("behind", [0, 3])
def test_two_lanes_of_one_row_are_no_stretch(ahead_on_cpu, behind):
    # which of two slots a column names, and so what the next step reads, depends on the order of lanes
    own = [slots(1 + at, 101 + at) for at in range(STEPS)]
    events = [
        ev.Bind(row=A, rid="A"),
        ev.Forward(rows=[A], prefix=[0], lens=[behind + 1], slots=np.arange(201, 202 + behind)),
        *(
            ev.Forward(rows=[A, A], prefix=[1 + at, 1 + at + behind], slots=own[at], tokens=[at, 50 + at])
            for at in range(STEPS)
        ),
    ]
    found, stretches = ahead_on_cpu(header(), events)
    assert stretches == []
    assert_same(found, replay_events(header(), events, CPU))


def test_lines_behind_a_limit_are_not_counted(capsys, tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    with TraceWriter(str(path), header()) as writer:
        for event in [*bound(), *decode(range(STEPS))]:
            writer.write(event)
    with open(path, "ab") as file:
        file.write(b'{"ev":"bind"}\n{"ev":"forw')
    words = ["replay", str(path), "--skip-bad-lines", "--device", "cpu", "--format", "json", "--limit-steps"]
    wanted = call(capsys, *words, "4"), call(capsys, *words, "400")
    monkeypatch.setattr(run_module, "open_runtime", lambda _device, *masters, **_: CpuAhead(*masters[:4]))
    found = call(capsys, *words, "4"), call(capsys, *words, "400")
    assert [done.code for done in found] == [done.code for done in wanted] == [0, 4]
    for one, other in zip(found, wanted, strict=True):
        assert json.loads(one.out)["coverage"] == json.loads(other.out)["coverage"]


@pytest.mark.parametrize("name", ["chunked", "prefill", "shared-prefix", "swa"])
def test_faults_where_stretches_run_on_a_cpu(ahead_on_cpu, name):
    kinds = ["K01", "K02", "K05", "K07", "K11", "K13", "K22", "K26"]
    assert assert_kinds_agree(ahead_on_cpu, name, kinds, steps=120, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["chunked", "prefill", "shared-prefix", "swa"])
def test_every_kind_on_a_cpu(ahead_on_cpu, name, seed):
    assert assert_kinds_agree(ahead_on_cpu, name, sorted(KINDS), steps=200, seed=seed)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_kind_in_every_scenario(ahead, name):
    assert_kinds_agree(ahead, name, sorted(KINDS), steps=200, seed=2)
