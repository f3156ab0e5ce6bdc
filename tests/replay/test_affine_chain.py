"""A run with affine chains finds what a run with mixed ones does: the same checks fail, to the same incidents."""

from __future__ import annotations

import pytest

from kvcanary_cli.faults.planting import plant
from kvcanary_cli.faults.stream import NotApplicable
from kvcanary_cli.kernels.consts import RING_AUX, RING_BITS, RING_STORED_PREV_HASH
from kvcanary_cli.kernels.hashing_ref import HEAD
from kvcanary_cli.kinds import KINDS
from kvcanary_cli.replay.run import checks_made
from kvcanary_cli.report.incidents import incident_json
from kvcanary_cli.sim.scenarios import SCENARIOS, scenario
from kvcanary_cli.trace import events as ev
from tests.replay.driving import CUDA, Found, replay_events, slots, small_header

STEPS = 40
HASHES = {"prev_hash"}  # what stamps of the two chains differ in
WRITE_BITS = 8 | 16


def findings(found: Found, page_size: int) -> dict[str, object]:
    """All that a run found, without the hashes."""
    result = found.result
    return {
        "rows": [row for batch in found.batches for row in rows_of(batch)],
        "incidents": [
            without_hashes(incident_json(i, n, page_size)) for n, i in enumerate(result.incidents, 1)
        ],
        "capacity": result.capacity_violations,
        "digests": result.digest_mismatches,
        "totals": result.totals,
        "checks": checks_made(result),
        "violations": result.stories.total,
    }


def rows_of(batch) -> list[tuple]:
    """Rows with their step and place; a hash is left out, the position that a write expected is not."""
    rows = batch.rows.copy()
    rows[:, RING_STORED_PREV_HASH] = 0
    rows[(rows[:, RING_BITS] & WRITE_BITS) == 0, RING_AUX] = 0
    places = (batch.table_row, batch.rids, batch.positions, batch.predecessors)
    return [
        (batch.step, *row, *place) for row, *place in zip(map(tuple, rows.tolist()), *places, strict=True)
    ]


def without_hashes(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_hashes(item) for key, item in value.items() if key not in HASHES}
    return [without_hashes(item) for item in value] if isinstance(value, list) else value


def damaged(kind: str, name: str, seed: int) -> tuple[ev.Header, list[ev.Event]] | None:
    """A scenario with one fault, None where it has no place for it."""
    header, stream = scenario(name, steps=STEPS, seed=seed)
    if kind == "clean":
        return header, list(stream)
    try:
        planted, events, _ = plant(header, list(stream), kind, seed)
    except NotApplicable:
        return None
    return planted, list(events)


def assert_the_same(kind: str, name: str, seed: int) -> None:
    trace = damaged(kind, name, seed)
    if trace is None:
        return
    header, events = trace
    want = findings(replay_events(header, events), header.pool.page_size)
    for incremental in (True, False):
        found = replay_events(header, events, is_affine=True, incremental=incremental)
        assert findings(found, header.pool.page_size) == want
        assert found.result.counters.missing() == []


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kind", ["clean", *KINDS])
def test_finds_what_mixed_chains_find(kind, name):
    assert_the_same(kind, name, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3, 4])
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kind", ["clean", *KINDS])
def test_finds_the_same_with_more_seeds(kind, name, seed):
    assert_the_same(kind, name, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["shared-prefix", "swa", "spec"])
@pytest.mark.parametrize("kind", ["clean", *KINDS])
def test_finds_the_same_on_a_gpu(kind, name):
    trace = damaged(kind, name, 2)
    if trace is None:
        return
    want, found = replay_events(*trace), replay_events(*trace, CUDA, is_affine=True)
    assert found.result.totals == want.result.totals
    assert found.result.counters.missing() == []
    assert [(i.kind, i.slots) for i in found.result.incidents] == [
        (i.kind, i.slots) for i in want.result.incidents
    ]
    # rows come in any order there, which decides which of thousands are looked at
    if not any(batch.lost for batch in want.batches):
        page_size = trace[0].pool.page_size
        ways = [findings(run, page_size) | {"rows": sorted_rows(run)} for run in (want, found)]
        assert ways[0] == ways[1]


def sorted_rows(found: Found) -> list[tuple]:
    return sorted((row for batch in found.batches for row in rows_of(batch)), key=repr)


@pytest.mark.parametrize("is_affine", [False, True], ids=["mixed", "affine"])
def test_a_slot_with_two_readers_is_placed_by_its_chain(is_affine):
    """Slot 9 stands at position 1 of two rows; it goes on from slot 8, so only row 2 has it after a wrong one."""
    events = [
        ev.Bind(row=1, rid="A"),
        ev.Bind(row=2, rid="B"),
        ev.Forward(rows=[1, 2], prefix=[0, 0], lens=[2, 1], slots=slots(8, 9, 12), tokens=[1, 2, 3]),
        ev.Map(row=2, at=1, slots=slots(9)),
        ev.Forward(rows=[1, 2], prefix=[2, 2], slots=slots(10, 13), tokens=[4, 5]),
    ]
    found = replay_events(small_header(), events, is_affine=is_affine)
    broken = [v for v in found.violations if v.slot == 9]
    assert broken
    assert {(v.row, v.rid, v.predecessor, v.bits) for v in broken} == {(2, "B", 12, 1)}


def test_stamps_do_hold_other_hashes():
    header, events = damaged("K01", "shared-prefix", 2)
    mixed, affine = (replay_events(header, events, is_affine=way).violations for way in (False, True))
    stored = [{v.stored["prev_hash"] for v in found} for found in (mixed, affine)]
    assert stored[0] & stored[1] <= {0, HEAD}
