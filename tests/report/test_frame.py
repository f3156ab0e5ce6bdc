"""The frame of a report: layout, verdict line, tables, and the ways numbers are written."""

from __future__ import annotations

import re

import pytest

from kvcanary_cli.exits import Exit
from kvcanary_cli.report import text
from kvcanary_cli.report.frame import Sections, base_report, finish, render_text, strict, verdict_line
from kvcanary_cli.report.tables import Column, Table

TABLE = Table(
    [Column("STATUS"), Column("CAPACITY"), Column("VALUE", "right"), Column("BOUND BY")],
    [
        ["INFO", "verify entries", "1,277,952", "--mem-fraction-static"],
        ["OVER", "token-id batch", "511", "built in"],
    ],
    ["   C4   3 x pool tokens = 3 x 425,984; overflows\n        when shared", None],
)


def sections(**changes) -> Sections:
    fields = {
        "header": [
            ("check-capacities", "launch arguments: 9 given"),
            ("pool", "425,984 slots\nof page size 1"),
        ],
        "body": [TABLE, "", "memory    52.0 MiB"],
        "status": "1 of 5 capacities is exceeded: a step of 512 requests would raise an error in the server",
        "notes": [
            ("why", "bs+1=513 exceeds BATCH_BLOCK=512"),
            ("next", "kvcanary a"),
            ("next", "kvcanary b"),
        ],
        "verdict": {"over": 1, "tight": 0},
    }
    return Sections(**(fields | changes))


def report(*codes: Exit, warnings: int = 0):
    return finish(base_report("check-capacities", inputs={}), *(codes or (Exit.FINDINGS,)), warnings=warnings)


def test_whole_text():
    assert render_text(report(), sections()) == (
        "check-capacities   launch arguments: 9 given\n"
        "pool               425,984 slots\n"
        "                   of page size 1\n"
        "\n"
        "  STATUS  CAPACITY            VALUE  BOUND BY\n"
        "  INFO    verify entries  1,277,952  --mem-fraction-static\n"
        "     C4   3 x pool tokens = 3 x 425,984; overflows\n"
        "          when shared\n"
        "  OVER    token-id batch        511  built in\n"
        "\n"
        "memory    52.0 MiB\n"
        "\n"
        "status: FAIL   1 of 5 capacities is exceeded: a step of 512 requests would raise\n"
        "               an error in the server\n"
        "why:    bs+1=513 exceeds BATCH_BLOCK=512\n"
        "next:   kvcanary a\n"
        "        kvcanary b\n"
        "\n"
        "kvcanary: FAIL check-capacities over=1 tight=0 exit=1\n"
    )


def test_empty_parts_leave_no_gaps():
    bare = sections(header=[], body=[], status="", notes=[], verdict={})
    assert render_text(report(Exit.PASS), bare) == "kvcanary: PASS check-capacities exit=0\n"


def test_commands_to_paste_are_never_wrapped():
    command = "kvcanary replay " + "very-long-name/" * 20
    assert f"next:   {command}\n" in render_text(report(), sections(notes=[("next", command)]))


@pytest.mark.parametrize("width", [40, 60, 80, 200, None])
@pytest.mark.parametrize("styled", [False, True])
def test_no_width_shortens_a_number(width, styled):
    out = re.sub(r"\x1b\[[0-9;]*m", "", render_text(report(), sections(), width=width, styled=styled))
    for cell in (
        "1,277,952",
        "--mem-fraction-static",
        "token-id batch",
        "3 x pool tokens = 3 x 425,984; overflows",
    ):
        assert cell in out
    assert "..." not in out


def test_narrow_terminal_gets_a_block_per_row():
    out = render_text(report(), sections(), width=59)
    assert "STATUS: OVER\nCAPACITY: token-id batch\nVALUE: 511\nBOUND BY: built in\n" in out
    assert render_text(report(), sections(), width=60) == render_text(report(), sections())


def test_terminal_has_the_same_words_as_the_pipe():
    plain = render_text(report(), sections())
    styled = re.sub(r"\x1b\[[0-9;]*m", "", render_text(report(), sections(), styled=True))
    words = [line.split() for line in styled.splitlines() if not set(line.strip()) <= {"-"}]
    assert [word for line in words for word in line] == plain.split()


def test_terminal_colours_only_the_words_that_judge():
    styled = render_text(report(), sections(), styled=True)
    coloured = re.findall(r"\x1b\[(?:1;)?3[0-9]m([^\x1b]*)\x1b", styled)
    assert [word.strip() for word in coloured] == ["OVER", "FAIL", "FAIL"]


@pytest.mark.parametrize(
    ("codes", "status", "exit_code"),
    [
        ([], "pass", 0),
        ([Exit.PASS], "pass", 0),
        ([Exit.INCOMPLETE], "incomplete", 4),
        ([Exit.INCOMPLETE, Exit.FINDINGS], "fail", 1),
        ([Exit.INTERRUPTED], "incomplete", 130),
        ([Exit.INTERRUPTED, Exit.FINDINGS], "fail", 130),
        ([Exit.ENVIRONMENT, Exit.FINDINGS], "error", 3),
    ],
)
def test_finish(codes, status, exit_code):
    done = finish(base_report("replay", inputs={}), *codes)
    assert (done["status"], done["exit_code"]) == (status, exit_code)


@pytest.mark.parametrize(
    ("code", "warnings", "status", "exit_code"),
    [
        (Exit.PASS, 0, "pass", 0),
        (Exit.PASS, 1, "fail", 1),
        (Exit.INCOMPLETE, 2, "fail", 1),
        (Exit.INTERRUPTED, 1, "fail", 130),
        (Exit.FINDINGS, 1, "fail", 1),
    ],
)
def test_strict_counts_warnings(code, warnings, status, exit_code):
    done = strict(report(code, warnings=warnings))
    assert (done["status"], done["exit_code"]) == (status, exit_code)


def test_verdict_values_are_one_word_each():
    verdict = {"rids": ["a b", "c\n"], "part": None, "empty": [], "whole": True}
    line = verdict_line(report(Exit.INCOMPLETE), sections(verdict=verdict))
    assert line == (r"kvcanary: INCOMPLETE check-capacities rids=a\x20b,c\n part=- empty=- whole=yes exit=4")


def test_base_report_has_every_key_even_when_unknown():
    keys = ["schema", "command", "status", "exit_code", "tool", "inputs", "pool", "backend"]
    assert list(base_report("synth", inputs={})) == keys
    assert base_report("synth", inputs={}, packages=["no-such-package"])["tool"]["no-such-package"] is None


def test_text_is_printable_ascii():
    odd = sections(header=[("replay", "caf\u00e9\x1b[31m.jsonl")], body=["r\u00e9q\t1"], status="\u2192 b")
    out = render_text(report(), odd)
    assert out.isascii()
    assert out.replace("\n", "").isprintable()
    assert r"caf\xe9\x1b[31m.jsonl" in out


def test_no_line_ends_in_a_space():
    table = Table([Column("A"), Column("B")], [["x", ""], ["yyyy", "z"]], [" detail ", None])
    out = render_text(report(), sections(header=[("replay", "")], body=[table, "line  "]))
    assert not re.search(r" $", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("rows", "detail"), [([["a"]], []), ([["a", "b"]], ["x", "y"])], ids=["cells", "details"]
)
def test_table_refuses_what_does_not_fit(rows, detail):
    with pytest.raises(ValueError, match="for"):
        Table([Column("A"), Column("B")], rows, detail)


def test_table_of_many_rows_is_fast_enough_to_be_exact():
    table = Table([Column("SLOT", "right")], [[str(i)] for i in range(100_000)])
    assert len(table.lines()) == 100_001


@pytest.mark.parametrize(
    ("num_bytes", "up", "down"),
    [
        (0, "0 B", "0 B"),
        (1023, "1,023 B", "1,023 B"),
        (1024, "1.0 KiB", "1.0 KiB"),
        (1025, "1.1 KiB", "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB", "1,023.9 KiB"),
        (95_630_131, "91.2 MiB", "91.1 MiB"),
        (32 * 425_985 * 4, "52.1 MiB", "52.0 MiB"),
        (5 * 1024**6, "5,120.0 PiB", "5,120.0 PiB"),
    ],
)
def test_size_rounds_against_us(num_bytes, up, down):
    assert (text.size(num_bytes), text.size(num_bytes, down=True)) == (up, down)


@pytest.mark.parametrize(
    ("value", "need", "shown"),
    [
        (4096, 512, "8.00x"),
        (511, 512, "0.99x"),
        (512, 512, "1.00x"),
        (10**18 - 1, 10**18, "0.99x"),
        (5, 0, "-"),
    ],
)
def test_headroom_is_rounded_down(value, need, shown):
    assert text.headroom(value, need) == shown


def test_percent_rounds_coverage_down_and_usage_up():
    assert text.percent(999_999, 1_000_000) == "99.9%"
    assert text.percent(1, 1_000_000, up=True) == "0.1%"
    assert text.percent(28, 10_000, digits=2) == "0.28%"
    assert text.percent(0, 0) == "-"


def test_ranges():
    pairs = text.to_ranges([4719, 7, *range(4705, 4719), 7])
    assert pairs == [[7, 7], [4705, 4719]]
    assert text.ranges(pairs) == "7, 4705-4719"
    assert text.ranges(pairs, limit=1) == "7, ... 1 more"
    assert text.ranges([]) == "-"


@pytest.mark.parametrize(
    ("pair", "shown"),
    [([841, 841], "841"), ([513, 600], "513-600"), ([0, 87], "<=87"), ([None, 87], "<=87"), (None, "-")],
)
def test_window(pair, shown):
    assert text.window(pair) == shown


def test_names_and_plurals():
    assert text.names(["req-1", "b\u00e9"]) == r"req-1 b\xe9"
    assert text.names(range(12), limit=10) == "0 1 2 3 4 5 6 7 8 9 ... 2 more"
    assert (text.plural(1, "step"), text.plural(1200, "step"), text.plural(2, "entry", "entries")) == (
        "1 step",
        "1,200 steps",
        "2 entries",
    )


def test_wrap_never_breaks_a_word():
    word = "x" * 100
    assert text.wrap(f"a {word} b", first="- ") == ["- a", f"  {word}", "  b"]
