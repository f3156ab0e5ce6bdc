"""Traces with and without a planted fault, and their replays."""

from __future__ import annotations

from functools import cache

from kvcanary_cli.faults.planting import plant
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import run_replay
from kvcanary_cli.runtime.devices import pick_device
from kvcanary_cli.sim.scenarios import scenario
from kvcanary_cli.trace.writer import TraceWriter

DEVICE = pick_device("cpu")


def clean(name, *, steps=60, seed=1):
    header, events = scenario(name, steps=steps, seed=seed)
    return header, list(events)


def planted(name, kind, *, steps=60, seed=1):
    header, events = scenario(name, steps=steps, seed=seed)
    return plant(header, list(events), kind, seed)


def replayed(header, events):
    options = ReplayOptions(device=DEVICE, incremental=True)
    return run_replay(header, enumerate(events, 2), options, path="made")


def findings(result):
    return len(result.incidents) + result.capacity_total + len(result.digest_mismatches)


def written(path, header, events):
    with TraceWriter(str(path), header) as writer:
        for event in events:
            writer.write(event)
    return str(path)


@cache
def original(name, kind):
    """A faulty trace, its answer and its replay."""
    header, events, (answer,) = planted(name, kind)
    return header, events, answer, replayed(header, events)
