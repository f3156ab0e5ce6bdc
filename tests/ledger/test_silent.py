"""Traces without a fault give no breach; recorded faults give theirs first."""

from __future__ import annotations

import json
import random

import pytest

from kvcanary_cli.sim.run import simulate_file
from kvcanary_cli.sim.scenarios import SCENARIOS, scenario
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.formats import MOONCAKE
from kvcanary_cli.trace.reader import open_trace
from tests.cli import ROOT
from tests.ledger.driver import Driver, breaches, header, rules
from tests.ledger.made import (
    alloc,
    bind,
    decode,
    evict,
    forward,
    free,
    leaves,
    publish,
    remap,
    s,
    served,
    share,
)
from tests.sim.made import draw_config, draw_requests

RECORDED = ROOT / "tests" / "traces" / "sglang-classes"


def recorded(name: str) -> Driver:
    reader = open_trace(str(RECORDED / f"{name}.jsonl.gz"))
    return Driver(reader.header).feed(event for _, event in reader)


@pytest.mark.parametrize("name", ["clean_p1", "clean_p16"])
def test_recorded_traces_without_a_fault(name):
    driver = recorded(name)
    assert driver.ledger.breaches == []
    # whole life of the pool was followed: only what the cache holds is left
    for slot in range(1, driver.ledger._state.full.num_slots):
        assert set(driver.ledger.slot("full", slot).holders and ["cache"]) >= {
            holder.name for holder in driver.ledger.slot("full", slot).holders
        }


def test_recorded_row_that_keeps_released_slots():
    first = recorded("rowkeeps_p1").ledger.breaches[0]
    fault = json.loads((RECORDED / "manifest.json").read_text())["rowkeeps_p1"]
    assert (first.rule, first.actor) == ("row-names-released", fault["fault"]["rid"])
    assert first.slots.tolist() == fault["fault"]["slots"]
    released = first.facts["released"]
    assert isinstance(released, dict)
    assert released["line"] == fault["line"]
    assert first.step < fault["first_violation_forward"]


def test_recorded_write_to_a_wrong_slot():
    first, second = recorded("outslot_p16").ledger.breaches[:2]
    fault = json.loads((RECORDED / "manifest.json").read_text())["outslot_p16"]
    assert (first.rule, second.rule) == ("write-outside-row", "write-foreign")
    assert first.line == second.line == fault["line"]
    assert (second.actor, second.victims) == (fault["fault"]["rid"], (fault["fault"]["victim"],))
    assert second.slots.tolist() == fault["fault"]["slots"]
    assert second.facts["row_entry"] == fault["fault"]["right"]
    assert second.step == fault["first_violation_forward"]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name, page_size):
    head, events = scenario(name, steps=120, page_size=page_size, seed=3)
    assert breaches(head, events) == []


@pytest.mark.parametrize("seed", range(12))
def test_models_of_all_kinds(seed):
    rng = random.Random(seed)
    head, events = simulate(draw_requests(rng, 40), draw_config(rng, seed))
    assert breaches(head, events) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 300))
def test_many_models_of_all_kinds(seed):
    test_models_of_all_kinds(seed)


def test_mooncake_requests(tmp_path):
    rng = random.Random(5)
    rows = []
    for number in range(40):
        shared = list(range(rng.randrange(4)))
        blocks = shared + [1000 + 10 * number + i for i in range(rng.randint(1, 4))]
        rows.append(
            {
                "timestamp": 400 * number,
                "input_length": 512 * len(blocks) - rng.randrange(500),
                "output_length": rng.randint(1, 60),
                "hash_ids": blocks,
            }
        )
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = simulate_file(str(path), MOONCAKE)
    driver = Driver(model.header).feed(model.events)
    assert driver.ledger.breaches == []
    assert driver.steps > 100


A = served("A", 1, range(4, 8))

LEGAL: dict[str, list[ev.Event]] = {
    "sharing a published prefix": [
        *A, publish("A", 4, 5), *leaves("A", 1, range(4, 8)),
        bind("B", 1), share("B", 4, 5), alloc("B", 8), decode((1, 2, 8)),
    ],
    "reuse after every holder released it": [
        *A, publish("A", 4, 5), *leaves("A", 1, range(4, 8)), evict(4, 5), *served("B", 2, range(4, 8)),
    ],
    "row re-pointed before the old slots go": [
        *A, publish("A", 4, 5), *served("B", 2, range(8, 12)), share("B", 4, 5), free("B", 8, 9),
        alloc("B", 14), decode((2, 4, 14)),
    ],
    "padded lanes": [
        *A, alloc("A", 9), decode((1, 4, 9), (0, 0, 0), width=8, pad_writes=s(0)),
    ],
    "chunked prefill": [
        *A, publish("A", range(4, 8)), alloc("A", range(8, 12)), forward(1, 4, range(8, 12)),
        publish("A", range(8, 12), at=4, after=7),
    ],
    "rewriting after a rollback": [
        *A, alloc("A", range(8, 14)), forward(1, 4, 8, 9, 10, accepted=[1]), forward(1, 5, 9, 10, 11, accepted=[3]),
        forward(1, 8, 12),
    ],
    "moving bytes and stamps": [
        *A, ev.Offload(key="k", slots=s(range(4, 8))), alloc("A", range(20, 24)),
        ev.Reload(key="k", slots=s(range(20, 24))), remap(1, 0, range(20, 24)), free("A", range(4, 8)),
        alloc("A", 9), decode((1, 4, 9)),
    ],
    "retry on new slots": [
        *A, *leaves("A", 1, range(4, 8), why="retract"), *served("A", 3, range(10, 14)),
    ],
    "a new request of an old name": [
        *A, *leaves("A", 1, range(4, 8)), *served("A", 1, range(4, 8)),
    ],
    "truth, share and publish before the bind": [
        *A, publish("A", 4, 5), ev.Truth(rid="B", at=3, tokens=[1]), share("B", 4, 5), bind("B", 2),
        alloc("B", 9), decode((2, 2, 9)),
    ],
    "an ended request publishes and frees": [
        *A, ev.Unbind(row=1), ev.End(rid="A", why="done"), publish("A", 4, 5), free("A", range(4, 8)),
    ],
    "end without a row": [ev.End(rid="A", why="cancel")],
    "an idle forward": [*A, ev.Forward(mode="idle", rows=[], prefix=[], width=4)],
    "damage that nobody records": [
        *A, ev.Kv(op="flip", slots=s(5), byte=0, xor=1), ev.Stamp(slot=5, field="token", xor=1), ev.Sweep(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_legal_events(name):
    assert rules(header(), LEGAL[name]) == []
