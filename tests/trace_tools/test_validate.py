"""Every line that a replay would stop at is found at once, and nothing else is called an error."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.scenarios import SCENARIOS
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace_tools.validate import MAX_LISTED, check_parts, not_checkable, validate_file
from tests.trace_tools.made import clean, replayed, written

HEADER = '{"ev":"header","format":"kvcanary-trace","version":1,"pool":{"slots":33,"rows":4,"row_width":16}}'


def checked(tmp_path, *lines, header=HEADER, end="\n"):
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([header, *lines]) + end)
    return validate_file(str(path))


@pytest.mark.parametrize("name", SCENARIOS)
def test_whole_traces_have_nothing(tmp_path, name):
    header, events = clean(name)
    check = validate_file(written(tmp_path / "t.jsonl", header, events))
    assert (check.num_problems, check.num_remarks) == (0, 0)
    assert sum(check.kinds.values()) == len(events) + 1
    assert check.kinds["forward"] == 60


def test_all_bad_lines_are_listed(tmp_path):
    check = checked(
        tmp_path,
        '{"ev":"bind","row":9,"rid":"A"}',
        '{"ev":"bind","row":1,"rid":"A"}',
        '{"ev":"allocc","to":"A","slots":[1]}',
        '{"ev":"alloc","to":"A","slots":[40]}',
        "nonsense",
        '{"ev":"bind","ro',
        end="",
    )
    assert [problem.line for problem in check.problems] == [2, 4, 5, 6, 7]
    assert check.problems[2].path == "$.slots[0]"
    assert check.truncated == 7
    assert check.kinds["bind"] == 1


def test_many_bad_lines_are_counted(tmp_path):
    check = checked(tmp_path, *['{"ev":"unbind","row":9}'] * 250)
    assert (check.num_problems, len(check.problems)) == (250, MAX_LISTED)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ('{"ev":"forward","rows":[1],"prefix":[0]}', "$.slots"),
        ('{"ev":"reload","key":"h","slots":[3]}', "$.key"),
        ('{"ev":"xfer","id":"t","op":"done","tokens":[4]}', "$.slots"),
    ],
)
def test_what_a_replay_would_stop_at(tmp_path, line, path):
    check = checked(tmp_path, '{"ev":"bind","row":1,"rid":"A"}', line)
    (problem,) = check.problems
    assert (problem.line, problem.path) == (3, path)
    with open_trace(check.name) as reader, pytest.raises(InputError) as raised:
        replayed(reader.header, [event for _, event in reader])
    assert (raised.value.path, raised.value.message) == (path, problem.message)


@pytest.mark.parametrize(
    "line",
    [
        '{"ev":"unbind","row":2}',
        '{"ev":"move","rid":"B","row":2}',
        '{"ev":"forward","rows":[3],"prefix":[0],"slots":[5]}',
        '{"ev":"xfer","id":"t","op":"cancel"}',
        '{"ev":"xfer","id":"t","op":"done","slots":[4],"tokens":[4]}',
    ],
)
def test_remarks_are_no_errors(tmp_path, line):
    check = checked(tmp_path, line)
    assert (check.num_problems, check.num_remarks) == (0, 1)
    late = checked(tmp_path, line, header=HEADER[:-1] + ',"state":"unknown"}')
    assert (late.num_problems, late.num_remarks) == (0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no records"),
        ('{"ev":"sweep"}\n', "the header is expected"),
        ('{"ev":"note"}\n', "no header"),
        (HEADER.replace("33", "1") + "\n", "at least"),
    ],
)
def test_files_without_a_header(tmp_path, text, message):
    (tmp_path / "t.jsonl").write_text(text)
    check = validate_file(str(tmp_path / "t.jsonl"))
    assert check.header is None
    assert message in check.problems[0].message
    assert not_checkable(check) == []


def test_what_could_not_be_checked(tmp_path):
    header = HEADER[:-1] + ',"records":["bind","unbind","end"]}'
    gaps = dict(not_checkable(checked(tmp_path, '{"ev":"bind","row":1,"rid":"A"}', header=header)))
    assert {"real_kv_hash", "verify_token", "write_token", "sweeps", "capacities"} <= set(gaps)
    assert gaps["write-unheld"] == "the recorder does not see `alloc`"
    full = dict(not_checkable(checked(tmp_path, '{"ev":"sweep"}')))
    assert "write-unheld" not in full
    assert "sweeps" not in full


def part(tmp_path, name, number, *, slots=33):
    header = json.loads(HEADER) | {"continues": {"part": number, "of": "run"}}
    header["pool"]["slots"] = slots
    (tmp_path / name).write_text(json.dumps(header) + "\n")
    return validate_file(str(tmp_path / name))


def test_parts(tmp_path):
    one, two = part(tmp_path, "a", 1), part(tmp_path, "b", 2)
    assert check_parts([two, one]) == []
    assert "part 2 is missing" in check_parts([one, part(tmp_path, "c", 3)])[0].message
    assert "there twice" in check_parts([one, two, part(tmp_path, "c", 2)])[0].message
    assert "other sizes" in check_parts([one, part(tmp_path, "c", 2, slots=44)])[0].message
