"""Reports of `kvcanary replay`, word for word, and the rules that each of them has to keep."""

from __future__ import annotations

import json
import re
import shlex

import jsonschema
import numpy as np
import pytest

from kvcanary_cli.report.frame import render_text
from kvcanary_cli.report.replay_views import View, renderer
from kvcanary_cli.trace import events as ev
from tests.cli import ROOT, call
from tests.report import made
from tests.report.goldens import CASES, GOLDEN, command, mask, stable, write_traces

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
TEXTS = [name for name, case in CASES.items() if "--format" not in case.flags]
VIEWS = {
    "summary": View(verbose=True),
    "parts": View(slots=True, shadows=True, heatmap=True, show_all=True),
    "incident": View(incident=1),
    "history": View(slot=24, history=True),
}
LEGENDS = ("  1-9 damaged", "  X damaged")
WIDE = ("kvcanary: ", "SUMMARY: ", "why: ", "next: ", "        kvcanary ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("goldens")
    write_traces(path)
    return path


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def damaged_report(folder):
    """The report of the damaged trace, with one slot's history."""
    from kvcanary_cli.main import run

    path = folder / "report.json"
    trace = str(folder / "damaged.jsonl")
    argv = ["replay", trace, "--device", "cpu", "--slot", "24", "--history", "--quiet", "--output", str(path)]
    assert run(argv) == 1
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", CASES)
def test_text(capsys, name):
    done = call(capsys, *command(CASES[name]))
    assert mask(done.out) == (GOLDEN / f"{name}.txt").read_text()
    assert (done.code, done.err) == (CASES[name].code, "")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.with_json])
def test_json(capsys, name):
    done = call(capsys, *command(CASES[name], "--format", "json"))
    assert stable(json.loads(done.out)) == json.loads((GOLDEN / f"{name}.json").read_text())
    assert (done.code, done.err) == (CASES[name].code, "")


@pytest.mark.parametrize("name", TEXTS)
def test_json_keeps_to_the_schema(capsys, name):
    done = call(capsys, *command(CASES[name], "--format", "json"))
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(done.out))


@pytest.mark.parametrize("name", CASES)
def test_jsonl_ends_with_the_summary(capsys, name):
    flags = [flag for flag in CASES[name].flags if flag not in ("--format", "github")]
    done = call(
        capsys, "replay", f"{CASES[name].trace}.jsonl", "--device", "cpu", *flags, "--format", "jsonl"
    )
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert lines[0]["type"] == "start"
    assert lines[0]["inputs"] == {"trace": {"path": f"{CASES[name].trace}.jsonl"}}
    assert [line["type"] for line in lines].index("summary") == len(lines) - 1
    assert lines[-1]["exit_code"] == CASES[name].code


def test_jsonl_tells_of_incidents_while_it_runs(capsys):
    done = call(capsys, "replay", "damaged.jsonl", "--device", "cpu", "--format", "jsonl")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [
        (f["step"], f["finding"]["kind"], f["finding"]["slots"]) for f in found if f["type"] == "progress"
    ] == [
        (3, "K07", [[24, 27]]),
        (7, "K01", [[12, 15]]),
        (9, "K21", [[10, 10]]),
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_pipes_get_plain_lines_of_80_columns(capsys, name):
    out = call(capsys, *command(CASES[name])).out
    assert out.isascii()
    assert "\x1b" not in out
    lines = out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert lines[-1].startswith("kvcanary: ")
    if name not in ("slots", "history"):
        assert [line for line in lines if len(line) > 80 and not line.startswith(WIDE)] == []


@pytest.mark.parametrize("name", TEXTS)
def test_commands_to_paste_work(capsys, name):
    out = call(capsys, *command(CASES[name])).out
    hints = [line[8:] for line in out.splitlines() if re.match(r"(next:  |       ) kvcanary ", line)]
    if CASES[name].code:
        assert hints
    for hint in hints:
        done = call(capsys, *shlex.split(hint)[1:])
        assert done.code in (0, 1, 4), (hint, done.err)


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_every_number_of_the_text_is_in_the_dict(damaged_report, view):
    known = set(numbers(damaged_report))
    text = render_text(damaged_report, renderer(damaged_report, view)(damaged_report))
    lines = [line for line in text.splitlines() if not line.startswith(LEGENDS)]
    # cells of maps are drawings, and sizes are the bytes of the dict in another unit
    shown = re.sub(r"\d[\d,.]* [KMG]iB|\b[.oXs?#\d]{4,64}\b(?=\s|$)", "", "\n".join(lines))
    unknown = {n for n in digits(shown) if n not in known}
    assert unknown == set()


def digits(text: str) -> set[int]:
    """Integers of a text; thousands separators are not part of them."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    return {int(word, 16 if word.startswith("0x") else 10) for word in re.findall(r"0x[0-9a-f]+|\d+", plain)}


def numbers(value: object):
    """Every integer in a report, and the length of every list."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(key)
            yield from numbers(item)
    elif isinstance(value, list):
        yield len(value)
        for item in value:
            yield from numbers(item)
    elif isinstance(value, str):
        yield from digits(value)
    elif isinstance(value, int):
        yield abs(int(value))


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_width_shortens_a_number(damaged_report, view, width):
    sections = renderer(damaged_report, view)(damaged_report)
    piped = render_text(damaged_report, sections)
    for styled in (False, True):
        out = re.sub(r"\x1b\[[0-9;]*m", "", render_text(damaged_report, sections, width=width, styled=styled))
        assert re.findall(r"[\w,.+<=-]*\d[\w,.-]*", out.replace("\n", " ")) != []
        assert digits(piped) <= digits(out)


@pytest.fixture(scope="module")
def huge(folder):
    """20,000 slots, of which every other one has a flipped byte."""
    slots = np.arange(8, 20_008)
    events = [
        ev.Bind(row=1, rid="A"),
        ev.Truth(rid="A", at=0, tokens=list(range(20_001))),
        ev.Alloc(to="A", slots=np.arange(8, 20_012)),
        ev.Forward(rows=[1], prefix=[0], lens=[20_000], slots=slots),
        ev.Kv(op="flip", slots=slots[::2], byte=3, xor=129),
        ev.Forward(rows=[1], prefix=[20_000], slots=np.array([20_008])),
    ]
    made.write(
        folder / "huge.jsonl", events, pool=ev.Pool(slots=20_032, page_size=4, rows=2, row_width=20_004)
    )
    return "huge.jsonl"


def test_long_tables_are_cut_and_say_so(capsys, huge):
    done = call(capsys, "replay", huge, "--device", "cpu", "--slots", "--heatmap")
    lines = done.out.splitlines()
    assert len(lines) < 200
    assert any(line.startswith("... ") and line.endswith("(--all, or --format json)") for line in lines)
    damaged = int(re.search(r"slots=(\d+)", lines[-1])[1])
    assert damaged == 10_000 or "cut_steps=1" in lines[-1]


def test_one_incident_is_a_page(capsys, huge):
    done = call(capsys, "replay", huge, "--device", "cpu", "--incident", "1")
    assert done.code == 1
    assert len(done.out.splitlines()) < 60
