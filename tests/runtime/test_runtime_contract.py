"""Both backends do the same with the same trace: violations, counters, stamps and bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.replay.capacities import Limits
from kvcanary_cli.replay.engine import Replay
from kvcanary_cli.replay.state import new_state
from kvcanary_cli.replay.violations import ViolationBatch
from kvcanary_cli.runtime.base import Counters, Runtime
from kvcanary_cli.runtime.calls import ForwardCall, HostCopy, SweepCall
from kvcanary_cli.runtime.cpu import CpuRuntime
from kvcanary_cli.runtime.gpu import GpuRuntime
from kvcanary_cli.runtime.layout import layout_of
from kvcanary_cli.sim.scenarios import SCENARIOS, scenario
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.reader import open_trace
from tests.runtime.contract_traces import TRACES, header

RECORDED = Path(__file__).parents[1] / "traces" / "sglang-classes"
EMPTY = np.zeros(0, np.int64)


class NoLedger:
    """Stands in for the ownership ledger, which no backend asks anything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Side:
    """One backend under one replay."""

    def __init__(self, head: ev.Header, device: str | None, is_affine: bool = False) -> None:
        layout = layout_of(head, is_affine=is_affine)
        state = new_state(layout, track_changes=device is not None)
        masters = (layout, state.table, state.swa_map, state.expected)
        self.runtime: Runtime = (
            CpuRuntime(*masters) if device is None else GpuRuntime(*masters, torch_device=device)
        )
        self.batches: list[ViolationBatch] = []
        self.replay = Replay(
            self.runtime, state, NoLedger(), Limits(), path="t.jsonl", on_violations=self.batches.append
        )

    def take_batches(self) -> list[ViolationBatch]:
        taken, self.batches[:] = list(self.batches), []
        return taken

    def memory(self) -> dict[str, HostCopy]:
        groups = self.runtime.layout.groups
        return {group.kind: self.runtime.save(group.kind, np.arange(group.num_slots)) for group in groups}


def as_multiset(rows: np.ndarray) -> list[tuple[int, ...]]:
    return sorted(map(tuple, rows.tolist()))


def assert_same_memory(one: Side, other: Side, where: str) -> None:
    want, got = one.memory(), other.memory()
    assert want.keys() == got.keys()
    for kind, copy in want.items():
        for key, stamps in copy.stamps.items():
            np.testing.assert_array_equal(got[kind].stamps[key], stamps, f"{where}: stamps {kind} {key}")
        for number, data in copy.kv.items():
            np.testing.assert_array_equal(
                got[kind].kv[number], data, f"{where}: bytes {kind} source {number}"
            )


def replay_on_both(
    head: ev.Header,
    events: Iterable[ev.Event],
    device: str,
    *,
    every_event: bool = True,
    is_affine: bool = False,
) -> tuple[int, Counters]:
    """Apply each event to both backends and compare; returns the union of reason bits and the counters."""
    cpu, other = Side(head, None, is_affine), Side(head, device, is_affine)
    bits = 0
    for line, event in enumerate(events, start=2):
        cpu.replay.apply(line, event)
        other.replay.apply(line, event)
        want, got = cpu.take_batches(), other.take_batches()
        where = f"line {line} {type(event).__name__}"
        assert len(want) == len(got), where
        for batch, twin in zip(want, got, strict=True):
            assert as_multiset(twin.rows) == as_multiset(batch.rows), where
            assert twin.lost == batch.lost == 0, where
            bits |= int(np.bitwise_or.reduce(batch.rows[:, 7]))
        if every_event:
            assert_same_memory(cpu, other, where)
    assert_same_memory(cpu, other, "at the end")
    want_counters, got_counters = cpu.runtime.finish(), other.runtime.finish()
    assert got_counters == want_counters
    assert got_counters.missing() == []
    return bits, got_counters


@pytest.mark.parametrize("is_affine", [False, True], ids=["mixed", "affine"])
@pytest.mark.parametrize("name", sorted(TRACES))
def test_small_traces(name, is_affine, device):
    trace = TRACES[name]()
    bits, counters = replay_on_both(trace.header, trace.events, device, is_affine=is_affine)
    assert bits == trace.bits
    assert sum(counters.entries) > 0


@pytest.mark.parametrize("is_affine", [False, True], ids=["mixed", "affine"])
@pytest.mark.parametrize("name", ["spec", "swa"])
def test_first_steps_of_scenarios(name, is_affine, device):
    assert_scenario_is_clean(name, device, steps=2, is_affine=is_affine)


@pytest.mark.gpu
@pytest.mark.parametrize("is_affine", [False, True], ids=["mixed", "affine"])
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_scenarios(name, is_affine, device):
    assert_scenario_is_clean(name, device, steps=100, is_affine=is_affine)


def assert_scenario_is_clean(name: str, device: str, steps: int, *, is_affine: bool) -> None:
    head, events = scenario(name, steps=steps, pool_slots=512, seed=3)
    bits, counters = replay_on_both(head, events, device, every_event=False, is_affine=is_affine)
    assert bits == 0
    assert sum(counters.entries) > 50 * steps


def test_beginning_of_a_recorded_trace(device):
    trace = open_trace(str(RECORDED / "clean_p1.jsonl.gz"))
    events = [event for _, event in itertools.islice(trace, 40)]
    bits, counters = replay_on_both(trace.header, events, device, every_event=False)
    assert bits == 0
    assert sum(counters.launches) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["clean_p1", "clean_p16", "rowkeeps_p1", "outslot_p16"])
def test_recorded_traces(name, device):
    trace = open_trace(str(RECORDED / f"{name}.jsonl.gz"))
    bits, _ = replay_on_both(trace.header, [event for _, event in trace], device, every_event=False)
    assert bool(bits) == (not name.startswith("clean"))


@pytest.mark.parametrize("is_affine", [False, True], ids=["mixed", "affine"])
@pytest.mark.parametrize("seed", range(2))
def test_random_traces(seed, is_affine, device):
    head, events = random_trace(seed, 4 if device == "cpu" else 200)
    bits, _ = replay_on_both(head, events, device, every_event=False, is_affine=is_affine)
    assert bits


def random_trace(seed: int, num_forwards: int) -> tuple[ev.Header, list[ev.Event]]:
    """Forwards with slots drawn from anywhere, map changes and truths between them: hardly any rule is kept."""
    draw = np.random.default_rng(seed)
    groups = [ev.Group(kind="full"), ev.Group(kind="swa", window=5, slots=40)]
    sources = [
        ev.Source(name="k", bytes_per_slot=32, hashed_bytes=16),
        ev.Source(name="w", bytes_per_slot=16, hashed_bytes=16, group="swa", half="v"),
    ]
    events: list[ev.Event] = [ev.Bind(row=row, rid=f"r{row}") for row in range(1, 8)]
    for _ in range(num_forwards):
        changed = draw.integers(0, 64, 12)
        events.append(ev.SwaMap(full=changed, swa=draw.integers(0, 40, 12)))
        row = int(draw.integers(1, 8))
        tokens = draw.integers(0, 4, 6).tolist()
        events.append(ev.Truth(rid=f"r{row}", at=int(draw.integers(0, 3)) * 4, tokens=tokens))
        lanes = int(draw.integers(1, 7))
        lens = draw.integers(0, 4, lanes)
        rows = draw.permutation(7)[:lanes] + 1
        padded = int(draw.integers(0, 2))
        rows[lanes - padded :] = 0
        events.append(
            ev.Forward(
                rows=rows.tolist(),
                prefix=draw.integers(0, 30, lanes).tolist(),
                lens=lens.tolist(),
                slots=draw.integers(-1, 66, int(lens.sum())),
                tokens=draw.integers(0, 4, int(lens.sum())).tolist(),
                expect=draw.integers(-1, 4, int(lens.sum())).tolist() if draw.integers(0, 2) else None,
                byte_salt=int(draw.integers(0, 3)),
            )
        )
    return header(groups=groups, sources=sources), events


def call(**changes: np.ndarray) -> ForwardCall:
    one = np.ones(1, np.int64)
    arguments = {
        "rows": one,
        "prefix": 0 * one,
        "lens": one,
        "tokens": one,
        "positions": 0 * one,
        "slots": 4 * one,
    }
    return ForwardCall(**{**arguments, **changes})


@pytest.mark.parametrize("is_cpu", [True, False], ids=["numba", "triton"])
def test_phases_out_of_order(is_cpu, device):
    runtime = Side(header(), None if is_cpu else device).runtime
    with pytest.raises(PhaseError, match="write_model_bytes needs the phase begun, the runtime is in idle"):
        runtime.write_model_bytes()
    runtime.begin_forward(call())
    with pytest.raises(PhaseError, match="end_forward needs the phase modelled, the runtime is in begun"):
        runtime.end_forward()
    with pytest.raises(PhaseError, match="begin_forward needs the phase idle"):
        runtime.begin_forward(call())
    with pytest.raises(PhaseError, match="sweep needs the phase idle"):
        runtime.sweep("full", SweepCall(slots=EMPTY, positions=EMPTY, predecessors=EMPTY))
    runtime.write_model_bytes()
    runtime.end_forward()
    runtime.forward(call(slots=np.array([5])))
    assert runtime.drain()[0].shape == (0, 8)
