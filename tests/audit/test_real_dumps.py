"""Dumps of what SGLang's kernels wrote (golden vectors) and of our own runs: clean, then damaged."""

from __future__ import annotations

import numpy as np
import pytest

from kvcanary_cli.audit.dump import open_dump
from kvcanary_cli.audit.run import audit
from kvcanary_cli.kernels.consts import BIT_VERIFY_TOKEN, RING_AUX, RING_BITS, RING_SLOT
from kvcanary_cli.kernels.vectors import Vector, load_vector, vector_paths
from tests.audit.dumps import failing
from tests.audit.runs import stopped_run, write_vector_dump
from tests.audit.test_damage import CPU, found_in
from tests.cli import ROOT, call

GOLDEN = vector_paths(ROOT / "tests" / "golden")


def written_entries(vector: Vector) -> dict[str, np.ndarray] | None:
    """What a write vector's lanes wrote, as chains; None where one thing undoes another."""
    arrays, offsets = vector.arrays, vector.arrays["in_write_offsets"]
    slots, positions = arrays["in_out_cache_loc"], arrays["in_positions"]
    num_slots = len(arrays["in_canary_buf"])
    entries = []
    for lane in range(vector.meta["write_num_valid_reqs"]):
        before = int(arrays["in_write_seed_slot_indices"][lane])
        for at in range(int(offsets[lane]), int(offsets[lane + 1])):
            slot = int(slots[at])
            if slot < 0:
                continue
            if slot >= num_slots or before >= num_slots or positions[at] < 0:
                return None
            entries.append((slot, int(positions[at]), before))
            before = slot
    written = [slot for slot, *_ in entries]
    seeds = {int(seed) for seed in arrays["in_write_seed_slot_indices"]}
    if not entries or len(set(written)) < len(written) or seeds & set(written):
        return None
    columns = np.array(entries, np.int64)
    return {"slots": columns[:, 0], "positions": columns[:, 1], "predecessors": columns[:, 2]}


def test_what_sglang_wrote_is_clean(tmp_path):
    num_clean = num_entries = 0
    for path in GOLDEN:
        vector = load_vector(path)
        entries = written_entries(vector) if vector.operation == "write" else None
        if entries is None:
            continue
        dumped = write_vector_dump(tmp_path / "d", vector, entries)
        result = audit(open_dump(dumped), device=CPU)
        assert [len(buffer.entries) for group in result.groups for buffer in group.results] == [0], path.name
        assert failing(dumped) == set(), path.name
        num_clean += 1
        num_entries += result.num_entries
    assert num_clean > 50
    assert num_entries > 3000


def test_what_sglang_found_is_found(tmp_path):
    num_failing = 0
    for path in GOLDEN:
        vector = load_vector(path)
        if vector.operation != "verify":
            continue
        arrays, meta = vector.arrays, vector.meta
        count = int(arrays["out_write_index"][0])
        if not meta["enable"] or count > meta["ring_capacity"]:
            continue
        n = min(meta["verify_num_valid"], len(arrays["in_verify_slot_indices"]))
        entries = {
            "slots": arrays["in_verify_slot_indices"][:n],
            "positions": arrays["in_verify_expected_positions"][:n],
            "predecessors": arrays["in_verify_prev_slot_indices"][:n],
        }
        result = audit(open_dump(write_vector_dump(tmp_path / "d", vector, entries)), device=CPU)
        if any(group.num_unchecked for group in result.groups):
            continue
        rows = [row for group in result.groups for buffer in group.results for row in buffer.rows]
        found = {(int(r[RING_SLOT]), int(r[RING_BITS]), int(r[RING_AUX])) for r in rows}
        # a cached entry has no expected token
        wanted = {
            (int(r[RING_SLOT]), int(r[RING_BITS]) & ~BIT_VERIFY_TOKEN, int(r[RING_AUX]))
            for r in arrays["out_ring"][:count]
        }
        assert found == {row for row in wanted if row[1]}, path.name
        num_failing += bool(found)
    assert num_failing > 30


@pytest.fixture(scope="module")
def runs():
    return {
        ("shared-prefix", False): stopped_run("shared-prefix", 60),
        ("swa", False): stopped_run("swa", 90),
        ("decode", True): stopped_run("decode", 40, is_affine=True),
    }


@pytest.mark.parametrize("name", ["shared-prefix", "swa"])
def test_a_run_is_clean(runs, tmp_path, name):
    run = runs[name, False]
    result = found_in(run.write(tmp_path / "d"))
    assert (result.missing, result.not_checked) == ({}, {})
    assert [group.incidents for group in result.groups] == [[]] * len(run.runtime.layout.groups)
    assert [group.mixed for group in result.groups] == [[]] * len(result.groups)
    assert [group.unmapped for group in result.groups] == [0] * len(result.groups)
    assert len(result.rows) > 3
    assert result.num_entries > 1000


def test_a_run_with_affine_chains_is_clean(runs, tmp_path):
    run = runs["decode", True]
    result = audit(open_dump(run.write(tmp_path / "d")), device=CPU)
    assert [group.incidents for group in result.groups] == [[]]
    assert result.num_entries > 100
    arguments = run.arguments() | {"chain": "mixed"}
    assert audit(open_dump(run.write(tmp_path / "e", arguments)), device=CPU).groups[0].incidents


def live(run, arguments, least=40):
    """A row with so many positions, and its slots."""
    row = int(np.argmax(run.lens))
    assert run.lens[row] >= least
    return row, arguments["req_to_token"][row, : run.lens[row]].tolist()


def single(result, group=0):
    (found,) = result.groups[group].incidents
    return found


@pytest.mark.parametrize("name", ["shared-prefix", "swa"])
def test_damage_in_a_run(runs, tmp_path, name):
    run = runs[name, False]
    args = run.arguments()
    row, slots = live(run, args)
    last = len(slots) - 3
    slot = slots[last]
    for buffer in args["canary"].values():
        if len(buffer) == run.runtime.layout.num_slots:
            buffer[slot, 1] ^= 0x20
    found = single(found_in(run.write(tmp_path / "d", args)))
    assert (found.kind, found.slots, found.shadows) == ("changed-stamp", [slot], [slots[last + 1]])
    assert row in found.holders


def test_a_flipped_byte_in_a_window_pool(runs, tmp_path):
    run = runs["swa", False]
    args = run.arguments()
    row, slots = live(run, args)
    slot = int(args["full_to_swa"][slots[-5]])
    tensor = args["sources"][1].tensor
    tensor.reshape(-1, 32)[slot, 31] ^= 1
    result = found_in(run.write(tmp_path / "d", args))
    assert result.groups[0].incidents == []
    found = single(result, 1)
    assert (found.kind, found.slots) == ("changed-bytes", [slot])
    assert row in found.holders


def test_a_wrong_entry_in_a_run(runs, tmp_path):
    run = runs["shared-prefix", False]
    args = run.arguments()
    row, slots = live(run, args)
    other = next(r for r in np.argsort(run.lens).tolist() if run.lens[r] > 20 and r != row)
    theirs = int(args["req_to_token"][other, run.lens[other] - 2])
    args["req_to_token"][row, len(slots) - 4] = theirs
    result = found_in(run.write(tmp_path / "d", args))
    found = single(result)
    assert (found.kind, found.holders, found.slots) == ("shared-slot", [row], [theirs])
    assert found.damages[0].origin.position == run.lens[other] - 2
    assert other in found.damages[0].origin.holders


def test_a_slot_given_up_inside_the_window_is_a_warning(runs, tmp_path, capsys):
    run = runs["swa", False]
    args = run.arguments()
    _, slots = live(run, args)
    args["full_to_swa"][slots[-5]] = 0
    dumped = run.write(tmp_path / "d", args)
    done = call(capsys, "audit", dumped, "--device", "cpu")
    assert "  WARN                     1 position of rows inside the window without a slot" in done.out
    assert "warnings=1" in done.out


@pytest.mark.parametrize(
    ("absent", "why"),
    [("full_to_swa", "the dump has no full_to_swa"), ("window_size", "the metadata has no window_size")],
)
def test_a_window_group_that_can_not_be_checked(runs, tmp_path, capsys, absent, why):
    run = runs["swa", False]
    dumped = run.write(tmp_path / "d", run.arguments() | {absent: None})
    done = call(capsys, "audit", dumped, "--device", "cpu")
    assert (done.code, why in done.out, "missing=swa exit=4" in done.out) == (4, True, True)
    if absent == "window_size":
        window = str(run.runtime.layout.group("swa").window)
        assert call(capsys, "audit", dumped, "--device", "cpu", "--window", window).code == 0
