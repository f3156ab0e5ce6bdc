"""Rows of the table of corrupted slots: runs of one story, both groups, and slots that no check ever failed at."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.report.slots_text import slots_table
from kvcanary_cli.report.tables import Table
from tests.cli import call


def story(slot: int, **changes: object) -> dict:
    return {
        "slot": slot,
        "group": "full",
        "page": slot // 4,
        "is_shadow": False,
        "position": slot - 8,
        "held_by": ["A"],
        "seen": {"step": 5, "bits": ["real_kv_hash"]},
    } | changes


def report(stories: list[dict], groups: tuple[str, ...] = ("full",), **changes: object) -> dict:
    incident = {
        "kind": "K06",
        "group": "full",
        "is_damaged": True,
        "slots": [[8, 13]],
        "page_size": 4,
        "held_by": [{"rid": "A"}],
        "writer": {"rid": "B"},
        "damaged_step": [4, 4],
        "latency_steps": [1, 1],
        "slot_stories": stories,
    }
    return {"pool": {"groups": list(groups)}, "summary": {"shadows": 0}, "incidents": [incident | changes]}


def rows(value: dict, **flags: bool) -> list[list[str]]:
    (table,) = [
        part
        for part in slots_table(value, **({"show_all": False, "shadows": False} | flags))
        if isinstance(part, Table)
    ]
    return [list(row) for row in table.rows]


def test_slots_at_which_no_check_failed_are_listed_too():
    assert rows(report([story(8), story(9)])) == [
        ["8-9", "2", "K06", "A", "0-1", "B", "4", "5", "1", "---b"],
        ["10-13", "2-3", "K06", "A", "-", "B", "4", "never", "-", "----"],
    ]


def test_all_gives_each_slot_a_row():
    assert [row[0] for row in rows(report([story(8), story(9)]), show_all=True)] == [
        "8",
        "9",
        "10",
        "11",
        "12",
        "13",
    ]


def test_rules_that_damage_nothing_have_no_rows():
    assert slots_table(report([], is_damaged=False), show_all=False, shadows=False) == [
        "no slot failed a check"
    ]


@pytest.mark.parametrize(
    "change",
    [{"held_by": ["C"]}, {"position": 7}, {"seen": {"step": 6, "bits": ["real_kv_hash"]}}],
    ids=["holder", "position", "step"],
)
def test_another_story_is_another_row(change):
    value = report([story(8), story(9, **change)], ("full", "swa"), slots=[[8, 9]])
    assert len([row for row in rows(value) if row[0] in ("8", "9")]) == 2


def test_hybrid_pools_name_the_group():
    first, *_ = rows(report([story(8)], ("full", "swa"), slots=[[8, 8]]))
    assert first[:3] == ["8", "full", "2"]


@pytest.mark.parametrize(
    ("bits", "letters"),
    [
        (["verify_token"], "t---"),
        (["write_token"], "t---"),
        (["position", "chain_hash"], "-pc-"),
        (["write_position"], "-p--"),
        (["slot_out_of_range"], "----x"),
    ],
)
def test_letters(bits, letters):
    value = report([story(8, seen={"step": 5, "bits": bits})], slots=[[8, 8]])
    assert rows(value)[0][-1] == letters
    text = "\n".join(
        part for part in slots_table(value, show_all=False, shadows=False) if isinstance(part, str)
    )
    assert ("x slot out of range" in text) == letters.endswith("x")


def test_shadows_of_the_window_group_are_shadows(capsys, tmp_path):
    """K05 damages two slots of the parent; in both groups the slot after them is healthy."""
    path = str(tmp_path / "t.jsonl")
    assert call(capsys, "synth", path, "--scenario", "swa", "--steps", "60", "--fault", "K05").code == 0
    found = json.loads(call(capsys, "replay", path, "--device", "cpu", "--format", "json").out)
    (incident,) = [i for i in found["incidents"] if i["kind"] == "K05"]
    by_group = {
        group: [s["is_shadow"] for s in incident["slot_stories"] if s["group"] == group]
        for group in ("full", "swa")
    }
    assert by_group["full"] == by_group["swa"] == [False, False, True]
