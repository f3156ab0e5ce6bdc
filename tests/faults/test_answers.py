"""The answer sheet: its file, and how incidents are compared with it."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.faults.answers import (
    Answer,
    Innocent,
    compare,
    first_seen,
    read_answers,
    sheet_text,
    unplanted,
    write_answers,
)

LATE = Answer(
    kind="K07",
    slots=[[4704, 4719]],
    rid="req-42",
    writer="req-17",
    step=841,
    found_by_step=853,
    innocent=Innocent(slots=[[4720, 4720]], rids=["req-88"]),
)


def incident(kind="K07", slots=((4704, 4719),), *, breach=841, seen=853, writer="req-17", **more):
    return {
        "kind": kind,
        "slots": [list(pair) for pair in slots],
        "breach": None if breach is None else {"step": breach},
        "seen": None if seen is None else {"step": seen},
        "writer": None if writer is None else {"rid": writer},
        **more,
    }


def test_file_as_documented(tmp_path):
    path = tmp_path / "t.faults.json"
    write_answers(str(path), [LATE], seed=7)
    written = json.loads(path.read_text())
    assert (written["version"], written["seed"]) == (1, 7)
    (fault,) = written["faults"]
    assert fault == {
        "kind": "K07",
        "slots": [[4704, 4719]],
        "rid": "req-42",
        "writer": "req-17",
        "step": 841,
        "found_by_step": 853,
        "not": {"slots": [[4720, 4720]], "window_slots": [], "rids": ["req-88"]},
        "damaged": True,
    }


def test_round_trip(tmp_path):
    answers = [
        LATE,
        Answer(
            kind="K14",
            slots=[[5, 5]],
            step=3,
            found_by_step=4,
            damaged=False,
            group="swa",
            window_slots=[[1, 2]],
            side=[[9, 9]],
            also=["K21"],
            variant="reused",
        ),
    ]
    path = tmp_path / "sheet"
    write_answers(str(path), answers, seed=0)
    sheet = read_answers(str(path))
    assert (sheet.version, sheet.seed, sheet.faults) == (1, 0, answers)
    assert path.read_text() == sheet_text(answers, seed=0)


def test_a_sheet_without_faults(tmp_path):
    path = tmp_path / "sheet"
    write_answers(str(path), [], seed=1)
    assert read_answers(str(path)).faults == []


def test_a_sheet_of_somebody_else_may_have_more_keys(tmp_path):
    path = tmp_path / "sheet"
    path.write_text(
        '{"version": 1, "seed": 7, "by": "hand", "faults": [{"kind": "K02", "slots": [[1, 2]], "rid": null,'
        ' "writer": null, "step": 4, "found_by_step": 4, "not": {"slots": [], "rids": []}, "why": "x"}]}'
    )
    (fault,) = read_answers(str(path)).faults
    assert (fault.kind, fault.slots, fault.damaged) == ("K02", [[1, 2]], True)


@pytest.mark.parametrize(
    ("text", "path", "part"),
    [
        ("", None, "no answer sheet: "),
        ("[]", None, "no answer sheet: expected `object`, got `array`"),
        ('{"version": 1, "seed": 1}', None, "missing required field `faults`"),
        ('{"version": 2, "seed": 1, "faults": []}', "$.version", "answer sheet of version 2, 1 is read"),
        (
            '{"version": 1, "seed": 1, "faults": [{"kind": "K01", "slots": [5], "step": 1, "found_by_step": 2}]}',
            "$.faults[0].slots[0]",
            "expected `array`, got `int`",
        ),
    ],
)
def test_what_is_no_sheet(tmp_path, text, path, part):
    file = tmp_path / "sheet"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_answers(str(file))
    assert (error.value.where, error.value.path) == (str(file), path)
    assert part in error.value.message


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match=r"can't be read: No such file"):
        read_answers(str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"can't be written: "):
        write_answers(str(tmp_path / "none" / "x"), [], seed=0)


def test_found_and_named():
    (match,) = compare([LATE], [incident("K21", [(7, 7)]), incident()])
    assert (match.incident, match.found, match.named_right, match.others) == (1, True, True, [])
    assert (match.first_seen_step, match.latency, match.in_time) == (841, 0, True)
    assert (match.false_slots, match.blamed_rids) == ([], [])


def test_not_found():
    found = [incident(slots=[(1, 9)])]
    (match,) = compare([LATE], found)
    assert (match.incident, match.found, match.named_right, match.in_time) == (None, False, False, False)
    assert (match.first_seen_step, match.latency) == (None, None)
    assert unplanted([match], found) == [0]


def test_found_under_another_name():
    (match,) = compare([LATE], [incident("K06")])
    assert (match.found, match.named_right) == (True, False)


def test_the_right_kind_stands_for_the_fault_and_others_are_counted():
    found = [
        incident("K21", [(4704, 4704)], breach=None, seen=850),
        incident(),
        incident("K01", [(4719, 4719)]),
    ]
    (match,) = compare([LATE], found)
    assert (match.incident, match.others) == (1, [2, 0])  # the earlier one first
    assert unplanted([match], found) == []


def test_seen_too_late():
    (match,) = compare([LATE], [incident(breach=None, seen=854)])
    assert (match.found, match.in_time, match.latency) == (True, False, 13)


def test_seen_before_it_happened_has_no_negative_latency():
    (match,) = compare([LATE], [incident(breach=840)])
    assert (match.first_seen_step, match.latency) == (840, 0)


def test_false_slots_and_innocent_writers():
    (match,) = compare([LATE], [incident(slots=[(4700, 4720)], writer="req-88")])
    assert match.false_slots == [4700, 4701, 4702, 4703, 4720]
    assert match.blamed_rids == ["req-88"]


def test_side_slots_may_be_named_and_need_not():
    answer = Answer(kind="K10", slots=[[8, 9]], step=1, found_by_step=1, damaged=False, side=[[20, 21]])
    (match,) = compare([answer], [incident("K10", [(8, 9), (20, 20)])])
    assert (match.named_right, match.false_slots) == (True, [])
    (match,) = compare([answer], [incident("K10", [(21, 22)])])
    assert (match.named_right, match.false_slots) == (True, [22])


def test_groups_are_kept_apart():
    answer = Answer(kind="K14", slots=[[8, 9]], step=1, found_by_step=1, group="swa")
    found = [incident("K14", [(8, 9)])]
    assert compare([answer], found)[0].incident is None
    assert compare([answer], [incident("K14", [(8, 9)], group="swa")])[0].named_right
    both = Answer(kind="K01", slots=[[8, 9]], step=1, found_by_step=1, window_slots=[[3, 4]])
    assert compare([both], [incident("K01", [(3, 4)], group="swa")])[0].named_right
    assert not compare([both], [incident("K01", [(8, 9)], group="swa")])[0].found


def test_a_fault_without_slots_is_met_by_its_kind():
    answer = Answer(kind="C4", slots=[], step=10, found_by_step=12, damaged=False)
    other = incident("C2", (), breach=None, seen=11, writer=None)
    blackout = incident("C4", (), breach=None, seen=12, writer=None)
    (match,) = compare([answer], [other, blackout])
    assert (match.incident, match.first_seen_step, match.in_time) == (1, 12, True)
    assert unplanted([match], [other, blackout]) == [0]


def test_an_effect_under_a_name_that_is_accepted():
    answer = Answer(kind="C7", slots=[[1, 9]], step=10, found_by_step=12, also=["K21"])
    found = [
        incident("K21", [(1, 9)], breach=None, seen=11, writer=None),
        incident("C7", (), breach=None, seen=20, writer=None),
    ]
    (match,) = compare([answer], found)
    assert match.named_right
    assert match.in_time
    assert unplanted([match], found) == []
    # the fault's own kind stands for it
    assert found[match.incident]["kind"] == "C7"


@pytest.mark.parametrize(
    ("marks", "step"),
    [((3, 5), 3), ((5, 3), 3), ((None, 5), 5), ((3, None), 3), ((None, None), None)],
)
def test_first_seen(marks, step):
    breach, seen = marks
    assert first_seen(incident(breach=breach, seen=seen)) == step
    assert first_seen({"kind": "C1", "slots": []}) is None
