"""Violations of a log: both spellings, every launch, what the numbers say."""

from __future__ import annotations

import pytest

from kvcanary_cli.explain.violations import PREFIX, decoded_launch, facts, is_known, read_violation
from kvcanary_cli.kernels.consts import BIT_NAMES, LaunchTag
from tests.explain.server_lines import violation


def read(*arguments: object, **fields: object):
    found = read_violation(violation(*arguments, **fields).removeprefix(PREFIX))
    assert found is not None
    return found


@pytest.mark.parametrize("tag", LaunchTag)
@pytest.mark.parametrize("spell", [lambda tag: tag.name, int, lambda tag: f"CanaryLaunchTag.{tag.name}"])
def test_a_launch_by_name_and_by_number(tag, spell):
    found = read(spell(tag))
    assert found.launch == tag.name
    decoded = decoded_launch(found.launch)
    assert decoded is not None
    assert ("before" in decoded["phase"]) == tag.name.startswith("HEAD")
    assert ("window" in decoded["group"]) == tag.name.endswith("SWA")


@pytest.mark.parametrize("launch", ["HEAD_K_MLA", "12", "x"])
def test_a_launch_that_no_release_has(launch):
    assert read(launch).launch == launch
    assert decoded_launch(launch) is None


@pytest.mark.parametrize(
    ("reason", "names"),
    [
        ("verify_chain_hash", ("chain_hash",)),
        ("chain_hash", ("chain_hash",)),
        ("verify_chain_hash+verify_position+verify_real_kv_hash", ("chain_hash", "position", "real_kv_hash")),
        ("chain_hash+position+real_kv_hash", ("chain_hash", "position", "real_kv_hash")),
        ("verify_token", ("verify_token",)),
        ("write_token+write_position", ("write_token", "write_position")),
        ("CHAIN_HASH|POSITION", ("chain_hash", "position")),
        ("FailReason.VERIFY_TOKEN", ("verify_token",)),
        ("35", ("chain_hash", "position", "verify_token")),
        ("something_new", ("something_new",)),
    ],
)
def test_reasons_in_all_spellings(reason, names):
    found = read(reason=reason)
    assert found.reasons == names
    assert [is_known(name) for name in names] == [name in BIT_NAMES.values() for name in names]


def test_numbers_and_hashes():
    found = read(slot=9, position=3, stored_token=11, expected_token=12)
    assert (found.slot, found.position, found.stored_token, found.expected_token) == (9, 3, 11, 12)
    assert (found.stored_hash, found.aux) == (0xAB, 0xFEDCBA9876543210)


def test_fields_in_another_order_or_missing():
    found = read_violation("fail_reason=position slot_idx = 9, launch_tag: TAIL_V_SWA")
    assert found is not None
    assert (found.launch, found.reasons, found.slot) == ("TAIL_V_SWA", ("position",), 9)
    assert (found.position, found.stored_hash) == (None, None)
    assert read_violation("slot_idx=9 position=3") is None


@pytest.mark.parametrize(
    ("reason", "fields", "said"),
    [
        (
            "chain_hash",
            {},
            "stored prev-hash 0x00000000000000ab, 0xfedcba9876543210 follows from the slot before it",
        ),
        ("write_position", {"expected_aux": "0x0000000000000010"}, "position 17 was written, 16 was due"),
        ("write_position", {"expected_aux": "0xffffffffffffffff"}, "position 17 was written, -1 was due"),
        ("verify_token", {"expected_token": 7}, "token 5 is stored, the request has 7"),
        ("write_token", {"expected_token": 7}, "token 5 was written, 7 was expected"),
    ],
)
def test_what_the_numbers_say(reason, fields, said):
    assert said in facts(read(reason=reason, **fields))


def test_a_slot_that_was_never_stamped():
    never = read(position=0, stored_token=0, stored_chain_hash="0x0000000000000000")
    assert facts(never)[0] == "all stored fields are 0: the slot was never stamped, or was wiped since"
    assert not any("never stamped" in fact for fact in facts(read()))
