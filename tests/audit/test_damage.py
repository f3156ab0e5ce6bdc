"""Damage of every kind in a dump: found at exactly the damaged slots, by the checks of an independent look."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvcanary_cli.audit.dump import open_dump
from kvcanary_cli.audit.run import audit
from kvcanary_cli.kernels.consts import RING_BITS, bit_names
from kvcanary_cli.runtime.devices import DeviceChoice
from tests.audit.dumps import World, failing

CPU = DeviceChoice(kind="cpu", index=0, name="cpu", reason="")


def found_in(path: str, device: DeviceChoice = CPU):
    """The audit's result, after its failed checks were compared with those of the independent look."""
    result = audit(open_dump(path), device=device)
    got = set()
    for group in result.groups:
        for buffer in group.results:
            for entry, row in zip(buffer.entries.tolist(), buffer.rows, strict=True):
                slot, position = int(group.entries.slot[entry]), int(group.entries.position[entry])
                got.add((buffer.launch, slot, position, tuple(bit_names(int(row[RING_BITS])))))
            for entry in np.flatnonzero(group.entries.is_outside).tolist():
                slot, position = int(group.entries.slot[entry]), int(group.entries.position[entry])
                got.add((buffer.launch, slot, position, ("slot_out_of_range",)))
    assert got == failing(path)
    return result


def incidents(path: str) -> list[tuple[str, list[int], list[int]]]:
    """(kind, rows, slots) of every incident."""
    return [(i.kind, i.holders, i.slots) for group in found_in(path).groups for i in group.incidents]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "d.safetensors"


def everywhere(world: World, slot: int, word: int, xor: int) -> None:
    for buffer in world.canary.values():
        buffer[slot, word] ^= xor


def test_triton_finds_the_same(world, path, device):
    everywhere(world, 53, 2, 0x100)
    world.table[2, 6] = 15
    world.kv["v"][33, 5] ^= 1
    # the launchers of the GPU, interpreted where there is none
    choice = SimpleNamespace(kind="cuda", label=device)
    result, on_cpu = found_in(world.write(path), choice), audit(open_dump(str(path)), device=CPU)
    for one, other in zip(result.groups[0].results, on_cpu.groups[0].results, strict=True):
        assert (one.entries == other.entries).all()
        assert (one.rows == other.rows).all()
    assert result.groups[0].incidents == on_cpu.groups[0].incidents


def test_a_clean_dump(world, path):
    result = found_in(world.write(path))
    assert (result.missing, result.not_checked, result.groups[0].incidents) == ({}, {}, [])
    assert result.rows == [1, 2, 5]
    # 36 slots are held; both rows and the cache hold 4 of them, and they are verified once
    assert result.num_entries == 4 * 36
    assert result.groups[0].mixed == []


@pytest.mark.parametrize("where", ["tail_k_full", "head_v_full", "all"])
@pytest.mark.parametrize("word", [0, 1, 2])
@pytest.mark.parametrize("tokens", [True, False])
def test_a_flipped_word_of_a_stamp(world, path, where, word, tokens):
    if where == "all":
        everywhere(world, 53, word, 0x100)
    else:
        world.canary[where][53, word] ^= 0x100
    absent = {} if tokens else {"expected_tokens": ..., "expected_lens": ...}
    assert incidents(world.write(path, **absent)) == [("changed-stamp", [5], [53])]


def test_a_flipped_hash_of_bytes(world, path):
    world.canary["tail_k_full"][53, 3] ^= 1
    assert incidents(world.write(path)) == [("changed-bytes", [5], [53])]


@pytest.mark.parametrize("half", ["k", "v"])
def test_a_flipped_byte(world, path, half):
    row, column = (13, 32 + 3) if half == "k" else (53, 3)
    world.kv[half][row, column] ^= 0x10
    assert incidents(world.write(path)) == [("changed-bytes", [5], [53])]


@pytest.mark.parametrize("column", [32 + 16, 32 + 31])
def test_a_byte_that_stamps_do_not_cover(world, path, column):
    world.kv["k"][13, column] ^= 0x10
    assert incidents(world.write(path)) == []


def test_a_wrong_table_entry(world, path):
    world.table[2, 6] = 15
    result = found_in(world.write(path))
    (found,) = result.groups[0].incidents
    assert (found.kind, found.holders, found.slots, found.shadows) == ("shared-slot", [2], [15], [35])
    origin = found.damages[0].origin
    assert (origin.state, origin.holders, origin.position) == ("held", (5,), 11)
    assert found.damages[0].also == [5]


def test_a_slot_of_another_row_at_the_same_position(world, path):
    world.table[2, 6] = 54
    assert incidents(world.write(path)) == [("shared-slot", [2], [54])]


@pytest.mark.parametrize("tokens", [True, False])
def test_a_run_of_another_row_though_only_its_ends_fail(world, path, tokens):
    world.table[2, 4:8] = [52, 53, 54, 55]
    absent = {} if tokens else {"expected_tokens": ..., "expected_lens": ...}
    result = found_in(world.write(path, **absent))
    (found,) = result.groups[0].incidents
    assert (found.kind, found.holders, found.slots) == ("shared-slot", [2], [52, 53, 54, 55])
    assert found.shadows == [40]


def test_swapped_slots(world, path):
    world.table[5, [9, 14]] = world.table[5, [14, 9]]
    found = incidents(world.write(path))
    assert found == [("misplaced-slot", [5], [18]), ("misplaced-slot", [5], [13])]


def test_a_run_shifted_by_one(world, path):
    world.table[5, 8:18] = world.table[5, 9:19].copy()
    result = found_in(world.write(path, seq_lens=np.array([0, 10, 11, 0, 0, 18, 0])))
    (found,) = result.groups[0].incidents
    assert (found.kind, found.slots) == ("misplaced-slot", [13, 14, 15, 16, 17, 18, 19, 24, 25, 26])
    assert found.displacement == 1


def test_a_stale_row_whose_slots_another_row_has_now(world, path):
    world.table[3, :5] = [54, 52, 53, 24, 25]
    world.lens[3] = 5
    found = incidents(world.write(path, expected_tokens=..., expected_lens=...))
    assert [(kind, rows) for kind, rows, _ in found] == [("shared-slot", [3])] * len(found)
    assert {slot for *_, slots in found for slot in slots} == {54, 52, 53, 24, 25}


def test_a_foreign_run_written_over_a_row(world, path):
    # a request that is gone wrote its positions 3 to 6 into slots of row 5
    rest = world.stamp([60, 61, 62], [7, 8, 9])
    world.stamp([14, 15, 16, 17], [10, 11, 12, 13], prev=rest, start=3)
    result = found_in(world.write(path))
    (found,) = result.groups[0].incidents
    assert (found.kind, found.holders, found.slots) == ("former-stamp", [5], [14, 15, 16, 17])
    assert found.displacement == 3 - 10
    assert found.damages[0].origin.since == 0


def test_a_row_written_over_by_a_row_that_is_there(world, path):
    stamps = world.canary["tail_k_full"][[21, 22, 23]].copy()
    for name, buffer in world.canary.items():
        buffer[[14, 15, 16], :3] = stamps[:, :3]
        half = name.split("_")[1]
        kv = [world.slot_hash(half, slot) for slot in (14, 15, 16)]
        buffer[[14, 15, 16], 3] = np.array(kv, np.uint64).view(np.int64) if name.startswith("tail") else 0
    result = found_in(world.write(path))
    (found,) = result.groups[0].incidents
    assert (found.kind, found.holders, found.slots) == ("foreign-stamp", [5], [14, 15, 16])
    assert found.damages[0].origin.holders == (1,)


def test_an_unwritten_slot(world, path):
    for buffer in world.canary.values():
        buffer[42] = 0
    assert incidents(world.write(path)) == [("unwritten-slot", [2], [42])]


def test_a_wrong_input_token(world, path):
    world.tokens[5, 6] += 1
    assert incidents(world.write(path)) == [("wrong-token", [5], [54])]


@pytest.mark.parametrize(("slot", "kind"), [(64, "outside"), (-3, "outside"), (0, "padding")])
def test_a_slot_that_can_not_be(world, path, slot, kind):
    world.table[5, 10] = slot
    name = {"outside": "slot-outside-pool", "padding": "padding-slot"}[kind]
    assert incidents(world.write(path)) == [(name, [5], [slot])]


def test_a_cached_chain_that_no_row_holds(world, path):
    world.stamp([56, 57, 58, 59], [5, 6, 7, 8])
    world.cache += [(56, 0, -1), (57, 1, 56), (58, 2, 57), (59, 3, 58)]
    assert incidents(world.write(path)) == []
    everywhere(world, 58, 1, 0x40)
    assert incidents(world.write(path)) == [("changed-stamp", [-1], [58])]


def test_two_requests_with_the_same_tokens_and_no_common_slots(world, path):
    tokens = world.tokens[5, :10].tolist()
    copy = [1, 2, 3, 4, 5, 6, 7, 30, 31, 36]
    world.stamp(copy, tokens)
    world.table[4, :10], world.tokens[4, :10], world.lens[4] = copy, tokens, 10
    clean = world.write(path)
    assert incidents(clean) == []
    # the break is not blamed on the copy, whose stamps are the same
    everywhere(world, 4, 0, 1)
    for absent in ({}, {"expected_tokens": ..., "expected_lens": ...}):
        assert incidents(world.write(path, **absent)) == [("changed-stamp", [4], [4])]


def test_a_slot_behind_two_slots_that_are_alike_is_a_warning(world, path):
    world.stamp([1, 2, 3, 4], world.tokens[2, :4].tolist())
    world.table[2, :4] = [1, 2, 3, 4]
    world.table[1, :3] = [1, 2, 3]
    result = found_in(world.write(path))
    assert result.groups[0].incidents == []
    assert [slot for slot, _ in result.groups[0].mixed] == [11]


def test_the_middle_of_many_claims_is_verified_up_to_a_limit(world, path):
    world.table[3, :] = 50
    world.table[4, :] = 50
    world.table[6, :] = 51
    world.lens[[3, 4, 6]] = world.width
    result = found_in(world.write(path, expected_tokens=..., expected_lens=...))
    assert "entries" not in result.missing
    assert {slot for i in result.groups[0].incidents for slot in i.slots} == {50, 51}


def test_one_slot_at_more_places_than_are_verified(path):
    world = World(width=100)
    world.table[3, :] = 50
    world.lens[3] = 100
    result = audit(open_dump(world.write(path)), device=CPU)
    assert result.groups[0].num_unchecked == 101 - 64
    assert "entries" in result.missing
    assert result.groups[0].incidents


@pytest.mark.parametrize("length", [-1, 25])
def test_a_length_that_can_not_be(world, path, length):
    world.lens[3] = length
    result = audit(open_dump(world.write(path, expected_lens=np.maximum(world.lens, 0))), device=CPU)
    assert [(p.row, p.length, p.width) for p in result.lengths] == [(3, length, 24)]


def test_the_buffers_tell_which_stamp_was_changed_where_nothing_follows(world, path):
    world.canary["tail_k_full"][25, 0] ^= 1
    absent = {"expected_tokens": ..., "expected_lens": ...}
    assert incidents(world.write(path, **absent)) == [("changed-stamp", [5], [25])]
    world.canary["tail_k_full"][25, 0] ^= 1
    world.canary["tail_k_full"][26, 2] ^= 1
    assert incidents(world.write(path, **absent)) == [("changed-stamp", [5], [26])]


def test_the_padding_row_is_not_looked_at(world, path):
    world.table[0, :5] = [60, 61, 8, 9, 0]
    world.lens[0] = 5
    result = found_in(world.write(path))
    assert (result.rows, result.groups[0].incidents) == ([1, 2, 5], [])


def test_the_pool_of_a_draft_model_holds_the_next_token(world, path):
    shifted = np.roll(world.tokens, 1, axis=1)
    expected = {"expected_tokens": shifted, "expected_lens": np.where(world.lens > 0, world.lens + 1, 0)}
    assert incidents(world.write(path, **expected, token_offset=1)) == []
    assert incidents(world.write(path, **expected))


def test_a_slot_that_is_held_is_found_before_a_copy_that_nobody_holds(world, path):
    copy = [30, 31, 36, 37, 38, 43, 44, 45, 1, 2, 3, 4]
    world.stamp(copy, world.tokens[5, : len(copy)].tolist())
    world.table[2, 6] = 15
    (found,) = found_in(world.write(path)).groups[0].incidents
    assert (found.kind, found.damages[0].origin.holders) == ("shared-slot", (5,))


def test_neighbours_with_different_stories_are_two_incidents(world, path):
    world.kv["v"][53, 5] ^= 1
    world.tokens[5, 6] += 1
    found = incidents(world.write(path))
    assert found == [("changed-bytes", [5], [53]), ("wrong-token", [5], [54])]
