"""Steps of one shape: captured once on a GPU, launched as they are in the interpreter, the same results in both."""

from __future__ import annotations

import pytest
import torch

from kvcanary_cli.kernels.consts import BIT_CHAIN_HASH, BIT_POSITION
from kvcanary_cli.runtime.step_graphs import CAPTURE_AFTER, MAX_GRAPHS, StepGraphs
from kvcanary_cli.trace import events as ev
from tests.runtime.contract_traces import bound, forward, header, run, slots
from tests.runtime.test_runtime_contract import Side, replay_on_both


def decode_steps(first: int, last: int) -> list[ev.Event]:
    """One token a step for A and B, in slots 4 to 23 and 24 to 43."""
    return [forward([1, 2], [at, at], slots(4 + at, 24 + at)) for at in range(first, last)]


@pytest.mark.parametrize("groups", [["full"], ["full", "swa"]], ids=["full", "swa"])
def test_steps_of_one_shape_give_what_a_cpu_gives(groups, device):
    head = header(
        sources=None,
        groups=[
            ev.Group(kind=kind) if kind == "full" else ev.Group(kind=kind, window=6, slots=64)
            for kind in groups
        ],
    )
    swa = [ev.SwaMap(full=run(4, 40), swa=run(4, 40))] if "swa" in groups else []
    events = [
        *bound(1, 2),
        *swa,
        *decode_steps(0, 8),
        ev.Stamp(slot=9, field="position", xor=1),  # between two steps that are replayed
        *decode_steps(8, 13),
        # two lanes write one slot: not a step that a graph may do
        forward([1, 2], [13, 13], slots(60, 60)),
        *decode_steps(14, 19),
    ]
    bits, counters = replay_on_both(head, events, device)
    assert bits & BIT_POSITION
    assert bits & BIT_CHAIN_HASH
    assert counters.missing() == []


@pytest.mark.gpu
def test_steps_are_captured_on_a_gpu(device):
    side = Side(header(sources=None), device)
    for line, event in enumerate([*bound(1, 2), *decode_steps(0, 12)], start=2):
        side.replay.apply(line, event)
    assert len(side.runtime._graphs._graphs) == 1


def test_without_cuda_every_step_is_launched():
    graphs, launched = StepGraphs(torch.device("cpu")), []
    for step in range(CAPTURE_AFTER + 3):
        graphs.run("shape", lambda step=step: launched.append(step))
    assert launched == list(range(CAPTURE_AFTER + 3))


@pytest.mark.gpu
def test_graphs_are_forgotten_when_there_are_too_many(device):
    graphs = StepGraphs(torch.device(device))
    memory = torch.zeros(1, dtype=torch.int64, device=device)
    for shape in range(MAX_GRAPHS + 2):
        for _ in range(CAPTURE_AFTER + 2):
            graphs.run(shape, lambda shape=shape: memory.add_(shape + 1))
    torch.cuda.synchronize()
    assert int(memory[0]) == (CAPTURE_AFTER + 2) * sum(range(1, MAX_GRAPHS + 3))
    assert len(graphs._graphs) == 2
